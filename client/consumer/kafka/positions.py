"""What a consumer says in the metadata of a committed offset: how far it has pulled, and what it subscribes to.

The committed offset is that of the first message that is not done; from the two, anybody can tell how many are in hand.
`done` are the ranges that are done behind it, as far as there is room for them.

`of` is the beginning of the topic's id, by which a member that starts later can tell that the topic was made anew.

The offset itself stands there as well. MirrorMaker 2 copies a group with its metadata, and translates the offset alone:
a commit with another offset than its metadata is such a copy, and the rest of the metadata concerns the other cluster.

The topics stand with the offset of one partition that each group has, that of its retries: a member that starts later
can tell from them a topic that was made, or made anew, since then, from one that the group reads for the first time.
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
MAX_BYTES = 4_096  # what a broker keeps with an offset (`offset.metadata.max.bytes`), if it is not told otherwise
_MAX_TOPICS = 400
_DONE = " done="
_AT = "________"
"""Before the offset among the topics, where members of older versions look for none of this name."""


def metadata_of(pull: int, topic_id: str | None = None, topics: Collection[str] = (), commit: int | None = None) -> str:
    """The metadata of a commit. `pull`: the offset of the next message to be fetched. `topic_id`: in hex, where it is
    known. Of more than 400 topics the first, by name, are in it. `commit`: the offset that is committed."""
    at = "" if commit is None else _AT + base64.urlsafe_b64encode(commit.to_bytes(6, "big")).decode()
    marks = at + "".join(map(_mark, sorted(topics)[:_MAX_TOPICS]))
    return f"duemq pull={pull}" + (f" of={topic_id[:8]}" if topic_id else "") + (f" topics={marks}" if marks else "")


def with_done(metadata: str, place: FetchPosition, most: int = MAX_BYTES) -> str:
    """The metadata with what is done behind the offset of a place, up to `most` bytes in all."""
    done = encode_ranges(place.done, place.commit, most - len(metadata) - len(_DONE))
    return f"{metadata}{_DONE}{done}" if done else metadata


def own_metadata(commit: int, metadata: str | None) -> str | None:
    """The metadata of a committed offset; None for one that was copied from another cluster."""
    match = _PULL.fullmatch(metadata or "")
    written = "" if match is None else match[3] or ""
    if not written.startswith(_AT) or len(written) < 16:
        return metadata
    return metadata if int.from_bytes(base64.urlsafe_b64decode(written[8:16]), "big") == commit else None


def pull_in(metadata: str | None) -> int | None:
    """The pull offset in a commit's metadata; None where it is no consumer of ours that wrote it."""
    match = _PULL.fullmatch(metadata or "")
    return None if match is None else int(match[1])


def done_in(commit: int, metadata: str | None) -> Ranges:
    """What is done behind a committed offset."""
    match = _PULL.fullmatch(metadata or "")
    return () if match is None else decode_ranges(match[4] or "", commit)


def is_of(metadata: str | None, topic_id: str | None) -> bool:
    """Whether a commit may be of the topic with this id: False only where both say which one, and differ."""
    id_prefix = says_of(metadata)
    return id_prefix is None or not topic_id or topic_id.startswith(id_prefix)


def says_of(metadata: str | None) -> str | None:
    """How the id of the topic begins that a commit is of; None where it does not say."""
    match = _PULL.fullmatch(metadata or "")
    return None if match is None else match[2]


def topics_in(metadata: Iterable[str | None], among: Iterable[str]) -> frozenset[str]:
    """Topics of `among` that stand in the metadata of a commit."""
    marks: set[str] = set()
    for each in metadata:
        match = _PULL.fullmatch(each or "")
        written = "" if match is None else match[3] or ""
        marks.update(written[at : at + 8] for at in range(0, len(written), 8))
    return frozenset(topic for topic in among if _mark(topic) in marks)


def _mark(topic: str) -> str:
    """Eight characters for a name of up to 249."""
    return base64.urlsafe_b64encode(hashlib.sha256(topic.encode()).digest()[:6]).decode()
