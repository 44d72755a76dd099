"""Chunks: the frames of one append, stored as one value in the log. A large append is cut into several chunks.

    value = crc32 of the rest (u32) | frame count (u32) | timestamp (u64) | position (u64) | frame lengths (u32 each)
          | frames

`position` is the total size of all earlier frames of the partition, including trimmed ones. So the difference between
two positions is the size of all frames between them, whether trimmed or not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import accumulate, pairwise, repeat
from struct import Struct, pack, unpack_from
from typing import NamedTuple
from zlib import crc32

from duemq.model.messages.record import StoredRecord

MAX_FRAMES = 2_000
MAX_BYTES = 1 << 20

_CRC_BYTES = 4
_HEAD = Struct("<IQQ")
_LENGTHS_AT = _CRC_BYTES + _HEAD.size

# This takes half as long as calling the class, because a named tuple's constructor is Python code.
_new_record = partial(tuple.__new__, StoredRecord)


class Chunk(NamedTuple):
    """Frames at consecutive offsets from `first` on. `size`: their total size in bytes."""

    first: int
    timestamp: int
    position: int
    frames: list[bytes]
    size: int

    @property
    def end(self) -> int:
        return self.first + len(self.frames)


class ChunkHead(NamedTuple):
    """A chunk's value without its frames."""

    frames: int
    timestamp: int
    position: int
    size: int


def cut(
    frames: list[bytes], lengths: list[int], first: int, timestamp: int, position: int
) -> Iterator[tuple[Chunk, list[int]]]:
    """Cut a batch into chunks, each with the lengths of its frames. Only a chunk with a single frame may exceed
    `MAX_BYTES`."""
    size = sum(lengths)
    if len(frames) <= MAX_FRAMES and size <= MAX_BYTES:
        yield Chunk(first, timestamp, position, frames, size), lengths
        return
    ends = list(accumulate(lengths, initial=0))
    start = 0
    while start < len(frames):
        stop = bisect_right(ends, ends[start] + MAX_BYTES) - 1
        stop = min(max(stop, start + 1), start + MAX_FRAMES, len(frames))
        part, size = frames[start:stop], ends[stop] - ends[start]
        yield Chunk(first + start, timestamp, position + ends[start], part, size), lengths[start:stop]
        start = stop


def pack_chunk(chunk: Chunk, lengths: list[int]) -> bytes:
    count = len(lengths)
    head = _HEAD.pack(count, chunk.timestamp, chunk.position)
    body = b"".join((head, pack(f"<{count}I", *lengths), *chunk.frames))
    return crc32(body).to_bytes(_CRC_BYTES, "little") + body


def read_head(value: bytes) -> ChunkHead:
    """Verify a value's checksum and return its head. Raises ValueError if the value is damaged."""
    if len(value) < _LENGTHS_AT or crc32(memoryview(value)[_CRC_BYTES:]) != int.from_bytes(
        value[:_CRC_BYTES], "little"
    ):
        raise ValueError("its checksum does not match")
    count, timestamp, position = _HEAD.unpack_from(value, _CRC_BYTES)
    return ChunkHead(count, timestamp, position, len(value) - _LENGTHS_AT - 4 * count)


def unpack_chunk(first: int, value: bytes) -> Chunk:
    """The inverse of `pack_chunk`. Raises ValueError for a damaged value."""
    count, timestamp, position, size = read_head(value)
    start = len(value) - size
    ends = accumulate(unpack_from(f"<{count}I", value, _LENGTHS_AT), initial=start)
    return Chunk(first, timestamp, position, [value[a:b] for a, b in pairwise(ends)], size)


def frames_from(chunks: Iterable[Chunk], offset: int, max_records: int, max_bytes: int) -> list[StoredRecord]:
    """Frames from `offset` on, within the limits of `Bus.read`. The first of these chunks must contain `offset`."""
    records: list[StoredRecord] = []
    total = 0
    for chunk in chunks:
        offset = max(offset, chunk.first)  # between two chunks there may be a gap
        skip, limit = offset - chunk.first, max_records - len(records)
        frames, size = chunk.frames, chunk.size
        if skip or limit < len(frames):
            frames = frames[skip : skip + limit]
            size = sum(map(len, frames))
        full = total + size > max_bytes
        if full:
            room = bisect_left(list(accumulate(map(len, frames), initial=total)), max_bytes + 1) - 1
            frames = frames[: room if records else max(room, 1)]
        records += map(
            _new_record, zip(range(offset, offset + len(frames)), repeat(chunk.timestamp), frames, strict=False)
        )
        if full or len(records) >= max_records:
            break
        total += size
        offset = chunk.end
    return records
