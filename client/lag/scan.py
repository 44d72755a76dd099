"""Reads records from partitions at given offsets, with the isolation level `read_committed`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aiokafka import errors
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from duemq.bus.kafka.record_batches import decode
from duemq.client.consumer.work.tags import TagFilter
from duemq.client.lag.brokers import Brokers, FetchedValues
from duemq.client.lag.values import FirstMessage, Matches
from duemq.model.errors import LogFailed
from duemq.model.messages.record import StoredRecord, unpack_record

_LOOK_BYTES, _READ_BYTES = 16 << 10, 1 << 20
_MAX_BYTES = 32 << 20  # limit for the data that is read to count the messages of a topic
_NOWHERE = 1 << 63  # an offset past the end of any partition
_FAR_BYTES = 64 << 20  # limit for the aborted data that is skipped to find a message

Spans = Mapping[TopicPartition, tuple[int, int]]


class Read(NamedTuple):
    """Records read from a partition. `messages`: all messages from the requested offset up to `next`; other offsets in
    between contain no message. `size`: bytes read."""

    messages: list[StoredRecord]
    next: int
    size: int


class Scan:
    """The scan of one reading. It caches the first messages found. `max_offsets`: how many offsets are read to count
    the messages of a topic."""

    def __init__(self, brokers: Brokers, tags: TagFilter, max_offsets: int) -> None:
        self._brokers, self._tags, self._max_offsets = brokers, tags, max_offsets
        self._first_messages: dict[tuple[TopicPartition, int], FirstMessage | None] = {}
        self.unreadable: set[TopicPartition] = set()
        """Partitions whose reads failed: their results are invalid."""

    async def firsts(self, ranges: Iterable[tuple[TopicPartition, int, int]]) -> None:
        """Find the first message in each range (partition, from, to); afterwards `first` returns it."""
        pending = {(where, start): (start, end, 0) for where, start, end in ranges if start < end}
        while pending:
            # A partition can be read at only one offset at a time.
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
        """The first message at or after the start of a range that `firsts` read; None if it found none."""
        return self._first_messages.get((where, start))

    async def count(self, spans: Spans) -> dict[TopicPartition, Matches]:
        """How many messages in these ranges of one topic pass the filter. Only the oldest messages are read, up to the
        limits."""
        at = {where: start for where, (start, end) in spans.items() if start < end}
        hits = dict.fromkeys(spans, 0)
        offsets = size = 0
        while at and offsets < self._max_offsets and size < _MAX_BYTES:
            for where, read in (await self._read(at, _READ_BYTES)).items():
                start, end = at.pop(where), spans[where][1]
                hits[where] += sum(one.offset < end and self._passes(one) for one in read.messages)
                size += read.size
                offsets += min(read.next, end) - start
                if read.next < end:
                    at[where] = read.next
        return {where: Matches(hits[where], where not in at) for where in spans}

    def _passes(self, message: StoredRecord) -> bool:
        return not self._tags.tags or self._tags.matches(unpack_record(message.frame).headers)

    async def _read(self, offsets: Mapping[TopicPartition, int], max_bytes: int) -> dict[TopicPartition, Read]:
        """Read each partition from its offset on. If a partition returns no batch, it has no further message, and
        `next` is past its end."""
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
        """The messages in an answer; None if the answer contains no complete batch."""
        if answer is not None and answer.error is errors.OffsetOutOfRangeError and answer.start > offset:
            return Read([], answer.start, 0)  # retention has removed the records at the offset
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
