"""Runs of frames that were read from a broker, by offset."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter

from duemq.model.messages.record import StoredRecord

# The overhead of a frame's objects in addition to its bytes.
FRAME_OVERHEAD_BYTES = 200

_offset_of = attrgetter("offset")


class RunPart:
    """All committed frames with `first` <= offset < `end`. There may be none, because a broker's markers use offsets,
    too."""

    __slots__ = ("end", "first", "records", "size")

    def __init__(self, first: int, end: int, records: list[StoredRecord], size: int) -> None:
        self.first, self.end, self.records = first, end, records
        self.size = size + FRAME_OVERHEAD_BYTES * len(records)

    def after(self, offset: int) -> list[StoredRecord]:
        """The part's frames, from this offset on."""
        if offset <= self.first:
            return self.records
        return self.records[bisect_left(self.records, offset, key=_offset_of) :]


class FrameRun:
    """Chunks without a gap between them. If there are none, `first` and `end` are the offset at which the next chunk
    begins."""

    __slots__ = ("_chunks", "_firsts", "end", "first", "size")

    def __init__(self, at: int) -> None:
        self.first = self.end = at
        self.size = 0
        self._chunks: list[RunPart] = []
        self._firsts: list[int] = []

    @property
    def last(self) -> int:
        """The offset after the last frame; only the broker's markers follow."""
        return self._chunks[-1].records[-1].offset + 1 if self._chunks else self.first

    def add(self, chunk: RunPart) -> None:
        """Append a chunk whose `first` is the run's `end`."""
        if chunk.records:
            self._chunks.append(chunk)
            self._firsts.append(chunk.first)
            self.size += chunk.size
        elif not self._chunks:
            self.first = chunk.end
        self.end = chunk.end

    def drop_before(self, offset: int, down_to: int) -> None:
        """Drop the oldest chunks while all of their frames are below `offset` and the run is larger than `down_to`."""
        gone = 0
        while gone < len(self._chunks) and self.size > down_to and self._end_of(gone) <= offset:
            self.size -= self._chunks[gone].size
            gone += 1
        if gone:
            self.first = self._end_of(gone - 1)
            del self._chunks[:gone], self._firsts[:gone]

    def cut(self, offset: int) -> None:
        """Drop all frames below this offset."""
        self.drop_before(offset, 0)
        if self._chunks and self.first < offset:
            oldest = self._chunks[0]
            oldest.records = oldest.after(offset)
            self.first = oldest.first = self._firsts[0] = offset

    def bytes_after(self, offset: int) -> int:
        """The size of the chunks that a reader at this offset has not fully read."""
        if offset <= self.first:
            return self.size
        at = bisect_right(self._firsts, offset) - 1
        if at >= 0 and self._end_of(at) <= offset:
            at += 1
        return sum(chunk.size for chunk in self._chunks[max(at, 0) :])

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[StoredRecord]:
        """Frames from `offset` on. Only for `first` <= `offset`."""
        at = max(bisect_right(self._firsts, offset) - 1, 0)
        return limit_records((chunk.after(offset) for chunk in self._chunks[at:]), max_records, max_bytes)

    def _end_of(self, at: int) -> int:
        return self._firsts[at + 1] if at + 1 < len(self._firsts) else self.end


def limit_records(parts: Iterable[list[StoredRecord]], max_records: int, max_bytes: int) -> list[StoredRecord]:
    """The first frames in these parts, within the limits of `Bus.read`."""
    records: list[StoredRecord] = []
    for part in parts:
        room = max_records - len(records)
        if room <= 0:
            break
        size = sum(len(record.frame) for record in part)
        if len(part) <= room and size <= max_bytes:
            records += part
            max_bytes -= size
            continue
        for record in part[:room]:
            max_bytes -= len(record.frame)
            if records and max_bytes < 0:
                return records
            records.append(record)
        if len(part) > room:
            break
    return records
