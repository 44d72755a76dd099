"""Reads partitions at given offsets, as a read_committed reader sees them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aiokafka import errors
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from duemq.bus.kafka.record_batches import decode
from duemq.client.consumer.work.tags import TagFilter
from duemq.client.lag.brokers import Brokers, FetchedValues
from duemq.client.lag.sampling import Estimate, Sampling, counted, draws, wilson
from duemq.client.lag.values import FirstMessage
from duemq.model.errors import LogFailed
from duemq.model.messages.record import StoredRecord, unpack_record

_LOOK_BYTES, _READ_BYTES = 16 << 10, 1 << 20
_NOWHERE = 1 << 63  # past the end of any partition
_FAR_BYTES = 64 << 20  # skip at most this much aborted data to find a message

Spans = Mapping[TopicPartition, tuple[int, int]]


class Read(NamedTuple):
    """Records read from a partition. `messages`: those from the requested offset up to `next`; other offsets in between
    hold no message."""

    messages: list[StoredRecord]
    next: int
    size: int


class Scan:
    """One reading. Caches the records read."""

    def __init__(self, brokers: Brokers, tags: TagFilter, sampling: Sampling, rng: random.Random) -> None:
        self._brokers, self._tags, self._sampling, self._rng = brokers, tags, sampling, rng
        self._first_messages: dict[tuple[TopicPartition, int], FirstMessage | None] = {}
        self.unreadable: set[TopicPartition] = set()
        """Partitions that gave an error: their results are invalid."""

    async def firsts(self, ranges: Iterable[tuple[TopicPartition, int, int]]) -> None:
        """Find the first message in each of (partition, from, to); then `first` returns it."""
        pending = {(where, start): (start, end, 0) for where, start, end in ranges if start < end}
        while pending:
            # A partition can be read at one offset at a time.
            keys = {where: (where, start) for where, start in reversed(pending)}
            offsets = {where: pending[key][0] for where, key in keys.items()}
            for where, read in (await self._read(offsets, _LOOK_BYTES)).items():
                key = keys[where]
                _, end, size = pending[key]
                size += read.size
                message = next((one for one in read.messages if one.offset < end), None)
                if message is not None or read.next >= end or size > _FAR_BYTES:
                    self._first_messages[key] = (
                        None if message is None else FirstMessage(message.offset, message.timestamp)
                    )
                    del pending[key]
                else:
                    pending[key] = (read.next, end, size)

    def first(self, where: TopicPartition, start: int) -> FirstMessage | None:
        """The first message at or after this offset; None if there was none."""
        return self._first_messages.get((where, start))

    async def count(self, spans: Spans) -> dict[TopicPartition, Estimate]:
        """How many messages of one topic pass the filter, in these offsets."""
        estimates = {where: counted(0, 0) for where, (start, end) in spans.items() if start >= end}
        rest = {where: span for where, span in spans.items() if where not in estimates}
        if sum(end - start for start, end in rest.values()) <= self._sampling.exact:
            whole = await self._count_all(rest)
            if whole is not None:
                return estimates | whole
        return estimates | await self._sample(rest)

    async def _count_all(self, spans: Spans) -> dict[TopicPartition, Estimate] | None:
        """Count by reading all; None if that is too much to read."""
        at = {where: start for where, (start, _) in spans.items()}
        hits = dict.fromkeys(spans, 0)
        size = 0
        while at:
            for where, read in (await self._read(at, _READ_BYTES)).items():
                end = spans[where][1]
                hits[where] += sum(one.offset < end and self._passes(one) for one in read.messages)
                size += read.size
                at[where] = read.next
                if read.next >= end:
                    del at[where]
            if at and size > self._sampling.max_bytes:
                return None
        return {where: counted(hits[where], end - start) for where, (start, end) in spans.items()}

    async def _sample(self, spans: Spans) -> dict[TopicPartition, Estimate]:
        drawn = draws(spans, self._sampling.offsets, self._rng)
        verdicts: dict[TopicPartition, dict[int, bool]] = {where: {} for where in spans}
        done = dict.fromkeys(spans, 0)  # draws in order: skipping ahead to a known one would not be random
        size = 0
        while size <= self._sampling.max_bytes:
            at = {where: drawn[where][count] for where, count in done.items() if count < len(drawn[where])}
            if not at:
                break
            for where, read in (await self._read(at, _LOOK_BYTES)).items():
                size += read.size
                messages = {one.offset: one for one in read.messages}
                for one in drawn[where]:  # a batch may cover several of them
                    if at[where] <= one < read.next and one not in verdicts[where]:
                        verdicts[where][one] = one in messages and self._passes(messages[one])
                while done[where] < len(drawn[where]) and drawn[where][done[where]] in verdicts[where]:
                    done[where] += 1
        estimates = {}
        for where, (start, end) in spans.items():
            sample = drawn[where][: done[where]]
            estimates[where] = wilson(sum(verdicts[where][one] for one in sample), len(sample), end - start)
        return estimates

    def _passes(self, message: StoredRecord) -> bool:
        return not self._tags.tags or self._tags.matches(unpack_record(message.frame).headers)

    async def _read(self, offsets: Mapping[TopicPartition, int], max_bytes: int) -> dict[TopicPartition, Read]:
        """Read from each of these offsets on. If no batch comes, the rest of the partition is empty: `next` is past all
        ends."""
        reads = {}
        answers = await self._brokers.fetch(offsets, max_bytes)
        for where, offset in offsets.items():
            read = self._decode(where, offset, answers.get(where))
            if read is None and len(offsets) > 1:
                # The batch was too large to be returned with others.
                read = self._decode(where, offset, (await self._brokers.fetch({where: offset}, max_bytes)).get(where))
            reads[where] = read or Read([], _NOWHERE, 0)
        return reads

    def _decode(self, where: TopicPartition, offset: int, answer: FetchedValues | None) -> Read | None:
        """The messages of an answer; None if it has no complete batch."""
        if answer is not None and answer.error is errors.OffsetOutOfRangeError and answer.start > offset:
            return Read([], answer.start, 0)  # removed by retention
        if answer is None or answer.error is not None:
            self.unreadable.add(where)
            return Read([], _NOWHERE, 0)
        return _messages(where, offset, answer)


def _messages(where: TopicPartition, offset: int, answer: FetchedValues) -> Read | None:
    try:
        decoded = decode(answer.message_set, offset, answer.aborted)
    except KafkaError as error:
        raise LogFailed(f"{where.topic}-{where.partition} at offset {offset}: {error}") from error
    if decoded.next_offset <= offset:
        return None
    return Read(decoded.records, decoded.next_offset, len(answer.message_set))
