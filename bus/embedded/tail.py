"""The newest chunks of every partition, kept in memory so that reading recent appends does not touch the disk."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from duemq.bus.embedded.chunk import Chunk

# The overhead of a bytes object and its slot in a list.
FRAME_OVERHEAD_BYTES = 48


class RecentChunks:
    """The newest chunks of one partition. `first` is the lowest offset in them; it equals the end if there are none."""

    __slots__ = ("_chunks", "_drop_count", "_firsts", "first")

    def __init__(self, end: int) -> None:
        self.first = end
        self._firsts: list[int] = []
        self._chunks: list[Chunk | None] = []
        self._drop_count = 0

    def add(self, chunk: Chunk) -> None:
        self._firsts.append(chunk.first)
        self._chunks.append(chunk)

    def drop_oldest(self) -> None:
        at = self._drop_count
        oldest = self._chunks[at]
        assert oldest is not None
        self._chunks[at] = None
        self.first = oldest.end
        self._drop_count = at + 1
        # Deleting from the front of the list only when half of it is unused keeps the cost per chunk constant.
        if self._drop_count > 64 and self._drop_count * 2 > len(self._chunks):
            del self._firsts[: self._drop_count], self._chunks[: self._drop_count]
            self._drop_count = 0

    def chunks_from(self, offset: int) -> Iterator[Chunk]:
        """The chunks from the one that contains `offset` on. Only for `first` <= offset < end."""
        chunks = self._chunks
        # By index: small requests make very many chunks, and an iterator would step through all earlier ones.
        for at in range(bisect_right(self._firsts, offset, self._drop_count) - 1, len(chunks)):
            chunk = chunks[at]
            assert chunk is not None
            yield chunk


class TailCache:
    """The newest chunks of all partitions, within `max_bytes` in total; the oldest chunk is dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._ages: deque[tuple[RecentChunks, int]] = deque()

    def add(self, tail: RecentChunks, chunk: Chunk) -> None:
        memory_bytes = chunk.size + FRAME_OVERHEAD_BYTES * len(chunk.frames)
        tail.add(chunk)
        self._ages.append((tail, memory_bytes))
        self._bytes += memory_bytes
        while self._bytes > self._max_bytes:
            oldest, size = self._ages.popleft()
            oldest.drop_oldest()
            self._bytes -= size
