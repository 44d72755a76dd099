"""Cursors over a topic: a reader's position in each partition, as opaque URL-safe text.

    cursor = format (u8) | CRC-32 of the topic's name (u32) | the next offset of each partition (u48 each)

Partitions that a cursor does not contain are read from their start: the topic had fewer partitions when the cursor was
created. Topics with more than `MAX_PARTITIONS` partitions have no cursors.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Final
from zlib import crc32

from duemq.bus.base import GroupPosition, TopicInfo
from duemq.model.errors import Rejected

MORE: Final = "."
"""The part of a stored cursor after this character belongs to a relay (`relay/embedded/places.py`)."""
_FORMAT = b"\x01"
_HEAD_BYTES = 5
_OFFSET_BYTES = 6
MAX_PARTITIONS = 2_000  # limit for a topic, because a cursor must fit into a URL
_MAX_CHARACTERS = -(-(_HEAD_BYTES + _OFFSET_BYTES * MAX_PARTITIONS) * 4 // 3)


def encode_cursor(topic: str, offsets: Sequence[int]) -> str:
    raw = [_FORMAT, crc32(topic.encode()).to_bytes(4, "big"), *(at.to_bytes(_OFFSET_BYTES, "big") for at in offsets)]
    return urlsafe_b64encode(b"".join(raw)).decode().rstrip("=")


def cursor_in(stored: bytes) -> str:
    """The cursor in the text that is stored for a consumer."""
    return stored.decode(errors="replace").partition(MORE)[0]


def position_in(stored: bytes | None, topic: str, partition: int) -> GroupPosition | None:
    """A group's position, from the text that is stored for the group."""
    if stored is None:
        return None
    notes = stored.decode(errors="replace").split(MORE)[1:]
    offsets = _offsets(cursor_in(stored), topic, "cursor")
    if partition >= len(offsets):
        return GroupPosition(topic, 0)
    return GroupPosition(topic, offsets[partition], notes[partition] if partition < len(notes) else "")


def decode_cursor(text: str, topic: str, info: TopicInfo | None, field: str) -> list[int]:
    """The next offset of each current partition of the topic. Raises Rejected `bad_cursor`."""
    offsets = _offsets(text, topic, field)
    ends = info.end_offsets if info else ()
    if len(offsets) > len(ends) or any(at > end for at, end in zip(offsets, ends, strict=False)):
        raise Rejected("bad_cursor", f"{field} is beyond the end of topic {topic}: its log was recreated", field)
    return offsets + [0] * (len(ends) - len(offsets))


def _offsets(text: str, topic: str, field: str) -> list[int]:
    refused = Rejected("bad_cursor", f"{field} is not a cursor that this server gave for topic {topic}", field)
    if len(text) > _MAX_CHARACTERS or not text.isascii():
        raise refused
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError as error:
        raise refused from error
    places = raw[_HEAD_BYTES:]
    offsets = [int.from_bytes(places[at : at + _OFFSET_BYTES], "big") for at in range(0, len(places), _OFFSET_BYTES)]
    # Comparing with the encoded cursor also refuses other spellings of the same bytes, other formats and other topics.
    if len(places) % _OFFSET_BYTES or encode_cursor(topic, offsets) != text:
        raise refused
    return offsets
