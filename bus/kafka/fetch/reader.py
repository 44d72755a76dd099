"""Reads any topic at any offset from the broker, and keeps surplus frames for the next read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from aiokafka import errors

from duemq.bus.kafka.fetch.runs import RunPart, limit_records
from duemq.bus.kafka.record_batches import decode
from duemq.bus.kafka.requests.wire import EARLIEST, FetchedRecords, Wire
from duemq.model.messages.record import Partition, StoredRecord

_FETCH_BYTES = 1 << 20
_CACHE_BYTES = 16 << 20
_AGAIN_MS = 20
_PATIENCE = 50  # retries of a read for committed frames, about a second in total


class BrokerReader:
    """`saw_end` is called with each last stable offset from a broker."""

    def __init__(self, wire: Wire, saw_end: Callable[[Partition, int], None]) -> None:
        self._wire, self._saw_end = wire, saw_end
        self._cache: OrderedDict[tuple[str, int, int], RunPart] = OrderedDict()
        self._cache_bytes = 0

    async def read(
        self, partition: Partition, offset: int, max_records: int, max_bytes: int, known_end: int
    ) -> list[StoredRecord]:
        """Frames from `offset` on; ranges without frames are skipped.

        Waits up to a second for frames below `known_end`: they were committed, but a broker shows them a moment later,
        and only after other clients' older transactions have ended. Raises LogFailed.
        """
        if max_records < 1:
            return []
        for _ in range(_PATIENCE):
            chunk = self._pop_cached(partition, offset)
            if chunk is None:
                # The broker should wait only for frames that are about to arrive.
                chunk = await self._fetch(partition, offset, _AGAIN_MS if offset < known_end else 0)
            frames = chunk.after(offset)
            if frames:
                records = limit_records([frames], max_records, max_bytes)
                if len(records) < len(frames):
                    self._keep(partition, records[-1].offset + 1, chunk)
                return records
            if chunk.end <= offset and offset >= known_end:
                break
            offset = max(chunk.end, offset)
        return []

    def drop(self, partition: Partition) -> None:
        """Drop a partition's cached frames, because the partition was truncated."""
        for place in [place for place in self._cache if place[:2] == partition]:
            self._drop(place)

    def forget(self, topic: str) -> None:
        """Drop a topic's cached frames, because the topic no longer exists."""
        for place in [place for place in self._cache if place[0] == topic]:
            self._drop(place)

    async def _fetch(self, partition: Partition, offset: int, wait_ms: int) -> RunPart:
        async def ask() -> RunPart:
            node = next(iter(self._wire.by_leader([partition])))
            answer = (await self._wire.fetch(node, {partition: offset}, wait_ms, _FETCH_BYTES, "read"))[partition]
            return await self._chunk(partition, offset, answer)

        return await self._wire.retry(ask)

    async def _chunk(self, partition: Partition, offset: int, answer: FetchedRecords) -> RunPart:
        if answer.error is errors.OffsetOutOfRangeError:
            start = (await self._wire.offsets([partition], EARLIEST))[partition]
            return RunPart(offset, max(start, offset), [], 0)
        if answer.error is not None:
            raise answer.error(f"partition {partition[1]} of topic {partition[0]!r}")
        self._saw_end(partition, answer.stable)
        batch = decode(answer.message_set, offset, answer.aborted)
        return RunPart(offset, batch.next_offset, batch.records, batch.size)

    def _pop_cached(self, partition: Partition, offset: int) -> RunPart | None:
        return self._drop((*partition, offset))

    def _keep(self, partition: Partition, offset: int, chunk: RunPart) -> None:
        self._drop((*partition, offset))
        self._cache[*partition, offset] = chunk
        self._cache_bytes += chunk.size
        while self._cache_bytes > _CACHE_BYTES:  # even the new chunk, if one record is larger than the cache
            self._drop(next(iter(self._cache)))

    def _drop(self, place: tuple[str, int, int]) -> RunPart | None:
        chunk = self._cache.pop(place, None)
        if chunk is not None:
            self._cache_bytes -= chunk.size
        return chunk
