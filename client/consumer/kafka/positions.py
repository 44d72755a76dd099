"""The metadata of a consumer's committed offset: how far the consumer has pulled, and its subscription.

The committed offset is that of the first message that is not done. `pull` is the next offset to fetch. The difference
shows how many messages are in hand. `done` lists the ranges done after the committed offset, if they fit.

`of` is the start of the topic's id. With it, a member that starts later detects that the topic was recreated.

The metadata repeats the committed offset. MirrorMaker 2 copies a group's commits with their metadata, but translates
only the offset. So a commit whose offset differs from the one in its metadata is such a copy, and the rest of its
metadata describes the other cluster.

`topics` is stored only with the first partition of the group's retry topic, which each group has. With it, a member
that starts later detects whether a topic was created or recreated after that commit, or is new to the group.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection, Iterable

from duemq.client.consumer.base import FetchPosition
from duemq.client.consumer.done_ranges import Ranges, decode_ranges, encode_ranges

_PULL = re.compile(
    r"duemq pull=(\d{1,18})(?: of=([0-9a-f]{8}))?(?: topics=((?:[\w-]{8})*))?(?: done=([\w-]+))?", re.ASCII
)
MAX_BYTES = 4_096  # a broker's default limit for an offset's metadata (`offset.metadata.max.bytes`)
_MAX_TOPICS = 400
_DONE = " done="
_AT = "________"
"""Precedes the offset in the topic list. Members of older versions take it for a topic that they do not read."""


def metadata_of(pull: int, topic_id: str | None = None, topics: Collection[str] = (), commit: int | None = None) -> str:
    """The metadata of a commit. `pull`: the offset of the next message to fetch. `topic_id`: in hex, if known.
    `topics`: only the first 400 by name are included. `commit`: the committed offset."""
    at = "" if commit is None else _AT + base64.urlsafe_b64encode(commit.to_bytes(6, "big")).decode()
    marks = at + "".join(map(_mark, sorted(topics)[:_MAX_TOPICS]))
    return f"duemq pull={pull}" + (f" of={topic_id[:8]}" if topic_id else "") + (f" topics={marks}" if marks else "")


def with_done(metadata: str, place: FetchPosition, most: int = MAX_BYTES) -> str:
    """The metadata plus the ranges done after the committed offset, up to `most` bytes in all."""
    done = encode_ranges(place.done, place.commit, most - len(metadata) - len(_DONE))
    return f"{metadata}{_DONE}{done}" if done else metadata


def own_metadata(commit: int, metadata: str | None) -> str | None:
    """The metadata of a committed offset; None if it was copied from another cluster."""
    match = _PULL.fullmatch(metadata or "")
    written = "" if match is None else match[3] or ""
    if not written.startswith(_AT) or len(written) < 16:
        return metadata
    return metadata if int.from_bytes(base64.urlsafe_b64decode(written[8:16]), "big") == commit else None


def pull_in(metadata: str | None) -> int | None:
    """The pull offset in a commit's metadata; None if another kind of consumer wrote it."""
    match = _PULL.fullmatch(metadata or "")
    return None if match is None else int(match[1])


def done_in(commit: int, metadata: str | None) -> Ranges:
    """The ranges done after a committed offset."""
    match = _PULL.fullmatch(metadata or "")
    return () if match is None else decode_ranges(match[4] or "", commit)


def is_of(metadata: str | None, topic_id: str | None) -> bool:
    """Whether a commit may belong to the topic with this id: False only if both ids are known and differ."""
    id_prefix = says_of(metadata)
    return id_prefix is None or not topic_id or topic_id.startswith(id_prefix)


def says_of(metadata: str | None) -> str | None:
    """The start of the topic's id in a commit's metadata; None if the metadata contains no id."""
    match = _PULL.fullmatch(metadata or "")
    return None if match is None else match[2]


def topics_in(metadata: Iterable[str | None], among: Iterable[str]) -> frozenset[str]:
    """Those topics in `among` that the metadata of any of the commits lists."""
    marks: set[str] = set()
    for each in metadata:
        match = _PULL.fullmatch(each or "")
        written = "" if match is None else match[3] or ""
        marks.update(written[at : at + 8] for at in range(0, len(written), 8))
    return frozenset(topic for topic in among if _mark(topic) in marks)


def _mark(topic: str) -> str:
    """Eight characters that represent a topic's name, which may have up to 249."""
    return base64.urlsafe_b64encode(hashlib.sha256(topic.encode()).digest()[:6]).decode()
