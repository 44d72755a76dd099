"""Messages in flight to a stream: producers, publishing ids, and unconfirmed messages."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from duemq.relay.base import Reply
from duemq.relay.rabbitmq.shared_reply import SharedReply
from duemq.relay.rabbitmq.stream.connection import StreamConnection
from duemq.relay.rabbitmq.stream.numbering import Numbering, Turn
from duemq.relay.rabbitmq.stream.replies import ACCEPTED, UNCONFIRMED

Partition = tuple[str, int]
"""A partition: topic and number."""

MAX_PRODUCERS: Final = 255
"""Limit for producers on a connection: each has an id of one byte, and one of the 256 ids is for messages without
publishing ids. A broker stores the last publishing ids for 255 names per stream."""
_UNNUMBERED: Final = 255  # id of the publisher that has no name
_WAIT_S: Final = 0.05  # how long a record waits until earlier records are written
_MAX_LATE: Final = 10_000  # ids of messages that were stored after the callers had stopped waiting
_READABLE: Final = 100  # how many characters of the topic a producer name contains


def producer_name(destination: str, log_id: str, topic: str, partition: int) -> str:
    """A name of up to 209 ASCII characters, different for each log of a partition."""
    whole = "\0".join((destination, log_id, topic, str(partition)))
    digest = blake2b(whole.encode(), digest_size=16).hexdigest()
    return f"{destination}.{topic[:_READABLE]}.{partition}.{digest}"


class StreamEntry(SharedReply):
    """A message that was written but is not confirmed."""

    __slots__ = ("data",)

    def __init__(self, id_: str, data: bytes) -> None:
        super().__init__(id_)
        self.data = data


class StreamProducer:
    """The state of one producer name. `publisher`: its publisher id on the connection; None if it is not declared
    there."""

    def __init__(self, name: str, log_id: str) -> None:
        self.name, self.log_id = name, log_id
        self.numbering = Numbering()
        self.publisher: int | None = None
        self.entries: dict[int, StreamEntry] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}  # by offset
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, offset: int) -> None:
        """Wait until a record may be written with its id. If the first open record does not change for a short time,
        the wait ends for all waiting records: they are then written without ids."""
        loop = asyncio.get_running_loop()
        turn = self._waiting[offset] = loop.create_future()
        if self._timer is None:
            self._timer = loop.call_later(_WAIT_S, self._check_overdue, self.numbering.first)
        try:
            await turn
        finally:
            self._waiting.pop(offset, None)

    def move(self) -> None:
        """Wake the first open record if it waits: a record was written or has ended, so another may now be the
        first."""
        if self._waiting and (first := self.numbering.first) is not None:
            _wake(self._waiting.get(first))

    def wake_all(self) -> None:
        for turn in self._waiting.values():
            _wake(turn)

    def _check_overdue(self, first: int | None) -> None:
        """End the wait if the first open record has not changed. `first`: the first open record when this call was
        scheduled."""
        self._timer = None
        if not self._waiting:
            return
        if first == self.numbering.first:
            self.numbering.stop_waiting()
            self.wake_all()
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_WAIT_S, self._check_overdue, self.numbering.first)


def _wake(turn: asyncio.Future[None] | None) -> None:
    if turn is not None and not turn.done():
        turn.set_result(None)


class Producers:
    """The producers of a destination for one stream."""

    def __init__(self, destination: str, stream: str) -> None:
        self._destination, self._stream = destination, stream
        self.by_partition: dict[Partition, StreamProducer] = {}
        self._of_publisher: list[StreamProducer] = []  # declared on this connection, indexed by publisher id
        self._former: list[StreamProducer] = []  # for logs that no longer exist; they may have unconfirmed entries
        self._unnumbered: dict[int, StreamEntry] = {}
        self._last_unnumbered = 0
        self._by_id: dict[str, StreamEntry] = {}
        self._late: OrderedDict[str, None] = OrderedDict()
        self._connection: StreamConnection | None = None
        self._progress_at = 0.0  # time of the last confirm, or of the first write after all were confirmed
        self.unconfirmed_bytes = 0
        """Total size of all unconfirmed messages."""

    # --- calls from the consumer ----------------------------------------------------------------------------------

    def pulled(self, partition: Partition, log_id: str, offsets: Sequence[int], start: int) -> None:
        producer = self.by_partition.get(partition)
        if producer is None or producer.log_id != log_id:
            if producer is not None:
                self._former.append(producer)
            name = producer_name(self._destination, log_id, *partition)
            producer = self.by_partition[partition] = StreamProducer(name, log_id)
        producer.numbering.pulled(offsets, start)
        producer.move()

    def ended(self, partition: Partition, offset: int) -> None:
        producer = self.by_partition.get(partition)
        if producer is not None:
            producer.numbering.ended(offset)
            producer.move()

    # --- connection -----------------------------------------------------------------------------------------------

    def connected(self, connection: StreamConnection) -> None:
        """Use a new connection: write all unconfirmed messages with publishing ids again, before anything else."""
        self._without_publishers()
        self._connection = connection
        connection.declare(_UNNUMBERED, "", self._stream)
        self._former = [producer for producer in self._former if producer.entries]
        for producer in (*self._former, *self.by_partition.values()):
            if producer.entries:
                publisher = self._publisher(connection, producer)
                assert publisher is not None, "the last connection had no more of them"
                for number in producer.numbering.unconfirmed:
                    connection.publish(publisher, number, producer.entries[number].data)

    def lost(self, reply: Reply) -> None:
        """The connection was lost: answer all waiting callers, and keep only the messages with publishing ids."""
        self._connection = None
        self._without_publishers()
        entries = list(self._by_id.values())
        for entry in self._unnumbered.values():
            self._forget(entry)
        self._unnumbered.clear()
        for entry in entries:
            entry.answer(reply)
        for producer in self.by_partition.values():
            producer.wake_all()

    def watch(self, most_s: float) -> None:
        """After `most_s` without a confirm, answer all waiting callers with AWAY: no single message can be at fault.
        The written messages are kept."""
        if self._by_id and asyncio.get_running_loop().time() - self._progress_at > most_s:
            for entry in self._by_id.values():
                entry.answer(UNCONFIRMED)

    def confirmed(self, publisher: int, numbers: Iterable[int]) -> None:
        producer = self._of_publisher[publisher] if publisher != _UNNUMBERED else None
        entries = self._unnumbered if producer is None else producer.entries
        self._progress_at = asyncio.get_running_loop().time()
        for number in numbers:
            entry = entries.pop(number, None)
            if producer is not None:
                producer.numbering.confirmed(number)
            if entry is not None:
                self._forget(entry)
                if not entry.answer(ACCEPTED):
                    self._remember_late(entry.id)

    def _forget(self, entry: StreamEntry) -> None:
        if self._by_id.get(entry.id) is entry:
            del self._by_id[entry.id]
        self.unconfirmed_bytes -= len(entry.data)

    def _remember_late(self, id_: str) -> None:
        self._late[id_] = None
        if len(self._late) > _MAX_LATE:
            self._late.popitem(last=False)

    def _without_publishers(self) -> None:
        for producer in self._of_publisher:
            producer.publisher = None
        self._of_publisher.clear()

    def _publisher(self, connection: StreamConnection, producer: StreamProducer) -> int | None:
        """The producer's publisher id on this connection; None if the connection has too many producers."""
        if producer.publisher is None and len(self._of_publisher) < MAX_PRODUCERS:
            producer.publisher = len(self._of_publisher)
            self._of_publisher.append(producer)
            connection.declare(producer.publisher, producer.name, self._stream)
        return producer.publisher

    # --- messages -------------------------------------------------------------------------------------------------

    def stored_late(self, id_: str) -> bool:
        """Whether a message was stored after the callers had stopped waiting. The id is then removed from the list of
        such messages."""
        return bool(self._late) and self._late.pop(id_, 0) is None

    def under_way(self, id_: str) -> asyncio.Future[Reply] | None:
        """The pending answer to the message with this id; None unless it was written and is not confirmed."""
        entry = self._by_id.get(id_)
        return None if entry is None else entry.wait()

    def write(self, partition: Partition, offset: int, id_: str, data: bytes) -> asyncio.Future[Reply] | None:
        """Write a message; requires a connection. Returns a future for the broker's answer, or None if the message must
        wait for earlier records."""
        connection, producer = self._connection, self.by_partition.get(partition)
        assert connection is not None
        publisher = None if producer is None else self._publisher(connection, producer)
        if producer is None or publisher is None:
            return self._write_unnumbered(connection, id_, data)
        match producer.numbering.turn(offset):
            case Turn.WAIT:
                return None
            case Turn.UNNUMBERED:
                return self._write_unnumbered(connection, id_, data)
        connection.publish(publisher, offset, data)
        entry = producer.entries[offset] = self._entry(id_, data)
        producer.move()
        return entry.wait()

    def _write_unnumbered(self, connection: StreamConnection, id_: str, data: bytes) -> asyncio.Future[Reply]:
        self._last_unnumbered += 1
        connection.publish(_UNNUMBERED, self._last_unnumbered, data)
        entry = self._unnumbered[self._last_unnumbered] = self._entry(id_, data)
        return entry.wait()

    def _entry(self, id_: str, data: bytes) -> StreamEntry:
        if not self._by_id:
            self._progress_at = asyncio.get_running_loop().time()
        entry = self._by_id[id_] = StreamEntry(id_, data)
        self.unconfirmed_bytes += len(data)
        return entry

    async def wait(self, partition: Partition, offset: int) -> None:
        """Wait until `write` should be called again. Also returns when the connection is lost."""
        await self.by_partition[partition].wait(offset)
