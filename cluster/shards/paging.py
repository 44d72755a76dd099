"""Pages of a search across several shards: the shards' results are merged in key order, and a page has a cursor for the
next one."""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence

from duemq.cluster.shards.shard_reader import MessageState, Query, SearchPart
from duemq.model.errors import Rejected
from duemq.model.messages.key import KEY_BYTES
from duemq.model.messages.place import PLACE_BYTES


def merge(parts: Sequence[SearchPart], limit: int) -> tuple[list[MessageState], tuple[bytes, int] | None]:
    """One page of the shards' results, in order, with the key and shard after which the next page starts."""
    bound = min((part.looked for part in parts if part.looked is not None), default=None)
    rows = sorted(
        ((key, shard, state) for shard, part in enumerate(parts) for key, state in part.messages),
        key=lambda item: item[:2],
    )
    if bound is not None:
        rows = [row for row in rows if row[0] <= bound]
    if len(rows) > limit:
        key, shard, _ = rows[limit - 1]
        return [state for _, _, state in rows[:limit]], (key, shard)
    position = None if bound is None else (bound, len(parts))
    return [state for _, _, state in rows], position


def shorten(parts: Mapping[int, SearchPart], limit: int) -> dict[int, SearchPart]:
    """The same parts, without messages that cannot be among the first `limit` messages overall."""
    keys = sorted(key for part in parts.values() for key, _ in part.messages)
    if len(keys) <= limit:
        return dict(parts)
    last = keys[limit - 1]
    return {shard: _through(last, part) for shard, part in parts.items()}


def _through(last: bytes, part: SearchPart) -> SearchPart:
    messages = [message for message in part.messages if message[0] <= last]
    return part if len(messages) == len(part.messages) else SearchPart(messages, last)


def before(key: bytes) -> bytes:
    """The key directly below the given one, so that a search above it starts with the given key."""
    return key if not any(key) else (int.from_bytes(key, "big") - 1).to_bytes(len(key), "big")


def write_cursor(key: bytes, shard: int) -> str:
    """The cursor for a list that continues above this key or, in the shards after `shard`, at this key."""
    raw = key + shard.to_bytes(2, "big")
    return urlsafe_b64encode(raw + zlib.crc32(raw).to_bytes(4, "big")).decode().rstrip("=")


def start_of(query: Query) -> tuple[bytes, int]:
    """The key above which a search begins, and the last shard that continues there. Raises Rejected `bad_cursor`."""
    size = PLACE_BYTES if query.newest else KEY_BYTES
    return (bytes(size), -1) if query.cursor is None else _read_cursor(query.cursor, size)


def _read_cursor(text: str, size: int) -> tuple[bytes, int]:
    """The key (with `size` bytes) and the shard in a cursor."""
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError as error:
        raise Rejected("bad_cursor", "this cursor did not come from a list", "cursor") from error
    body, check = raw[:-4], raw[-4:]
    if len(body) != size + 2 or zlib.crc32(body).to_bytes(4, "big") != check:
        raise Rejected("bad_cursor", "this cursor did not come from a list", "cursor")
    return body[:size], int.from_bytes(body[size:], "big")
