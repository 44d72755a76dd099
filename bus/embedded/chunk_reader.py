"""Reads chunks that are no longer in memory from RocksDB, and verifies each one's checksum."""

from __future__ import annotations

from collections.abc import Iterator

from rocksdict import Rdict

from duemq.bus.embedded.chunk import Chunk, frames_from, unpack_chunk
from duemq.bus.embedded.log_topic import LogPartition
from duemq.bus.embedded.rocksdb_log import scan_options
from duemq.model.errors import CorruptStore
from duemq.model.messages.record import StoredRecord
from duemq.model.rocksdb_errors import translate_errors

# RocksDB's iterators hold the GIL, and one read must not block the process for more than a few milliseconds.
MAX_READ_BYTES = 2 << 20
_KEPT_CHUNKS = 8


class ChunkReader:
    def __init__(self, db: Rdict) -> None:
        self._db = db
        self._options = scan_options()
        # The chunk where each reader stopped, kept so that small reads do not verify and split it every time.
        self._recent: dict[LogPartition, Chunk] = {}

    def read(self, partition: LogPartition, offset: int, max_records: int, max_bytes: int) -> list[StoredRecord]:
        """Read as `Bus.read` does, for start <= `offset` < end, but at most `MAX_READ_BYTES`."""
        chunks = self.chunks_from(partition, offset)
        return frames_from(chunks, offset, max_records, min(max_bytes, MAX_READ_BYTES))

    def chunks_from(self, partition: LogPartition, offset: int) -> Iterator[Chunk]:
        """The chunks from the one that contains `offset` on, up to the end that readers may see. Raises
        CorruptStore."""
        end = partition.end
        recent = self._recent.get(partition)
        if recent is not None and recent.first <= offset < recent.end:
            yield recent
            offset = partition.skip(recent.end)
        if offset >= end:
            return
        name = partition.name
        with translate_errors(f"reading topic {name[0]!r}, partition {name[1]}, offset {offset}"):
            rows = self._db.iter(self._options)
            rows.seek_for_prev(partition.key(offset))
            while offset < end:
                rows.status()
                if not rows.valid() or not (key := rows.key()).startswith(partition.prefix):
                    raise _corrupt(partition, offset, "there is no such record")
                try:
                    chunk = unpack_chunk(int.from_bytes(key[-8:], "big"), rows.value())
                except ValueError as error:
                    raise _corrupt(partition, offset, str(error)) from error
                if not chunk.first <= offset < chunk.end:
                    raise _corrupt(partition, offset, f"records are missing, those found begin at {chunk.first}")
                self._keep(partition, chunk)
                yield chunk
                offset = partition.skip(chunk.end)
                rows.next()

    def chunk_at(self, partition: LogPartition, offset: int) -> Chunk:
        """The chunk that contains the offset, for start <= `offset` < end."""
        return next(self.chunks_from(partition, offset))

    def first_since(self, partition: LogPartition, timestamp: int) -> int:
        """The lowest offset whose frame was appended at this time (epoch ms) or later; the end if there is none."""
        low, high = partition.skip(partition.start.offset), partition.end
        probe = low  # usually no chunk is too old, so check the first one first
        while low < high:
            chunk = self.chunk_at(partition, probe)
            if chunk.timestamp < timestamp:
                low = partition.skip(chunk.end)
            else:
                high = max(low, chunk.first)
            middle = (low + high) // 2
            probe = partition.skip(middle)
            if probe >= high > middle:  # only a gap is left above the middle
                high = next(first for first, end in partition.gaps if first <= middle < end)
                probe = (low + high) // 2
        return partition.skip(low)

    def _keep(self, partition: LogPartition, chunk: Chunk) -> None:
        self._recent.pop(partition, None)
        self._recent[partition] = chunk
        if len(self._recent) > _KEPT_CHUNKS:
            del self._recent[next(iter(self._recent))]


def _corrupt(partition: LogPartition, offset: int, why: str) -> CorruptStore:
    topic, number = partition.name
    return CorruptStore(f"the log is damaged at topic {topic!r}, partition {number}, offset {offset}: {why}")
