"""Appends outside transactions, with one idempotent producer for all partitions.

Calls that arrive while a partition's previous batch is in flight form the next batch, so batches grow with the load.
While brokers are slow, calls wait here, up to a limit in bytes. A call that would exceed the limit is refused, and no
part of it is sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from duemq.bus.base import AppendResult, AppendResults, Batches, PartlyAppended
from duemq.bus.kafka.aiokafka_internals import give_up
from duemq.bus.kafka.clients import new_producer
from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.produce.stop import notice_error, stop
from duemq.bus.kafka.record_batches import append_result, batches_of, refusal_of
from duemq.bus.kafka.topics.catalog import Catalog, TopicMetadata
from duemq.model.errors import DuemqError, LogFailed, Rejected, Unavailable
from duemq.model.messages.record import Partition

log = logging.getLogger(__name__)

_GATHERED_BYTES = 4 << 20  # a lane sends calls together until they have this size
_LOOK_S = 0.05  # the pause between checks of whether a partition has a leader again
_WAITING_BYTES = 32 << 20  # the limit for all unanswered calls; a batch in flight is in memory three times


Outcomes = Mapping[Partition, AppendResult | DuemqError]


class _Call(NamedTuple):
    frames: Sequence[bytes]
    size: int
    future: asyncio.Future[AppendResult]


class _TooLarge(Exception):
    """A broker refused a batch because of its size.

    Only the first `sent_count` frames are in the log (see `positions`).
    """

    def __init__(self, sent_count: int, positions: list[tuple[int, int, int]], stamp: int) -> None:
        super().__init__(sent_count)
        self.sent_count, self.positions, self.stamp = sent_count, positions, stamp


def join_outcomes(outcomes: Outcomes) -> AppendResults:
    """The offsets of all parts of an append. Raises the failure if all parts failed alike, PartlyAppended if their
    outcomes differ."""
    results = {where: one for where, one in outcomes.items() if not isinstance(one, DuemqError)}
    failures = {where: one for where, one in outcomes.items() if isinstance(one, DuemqError)}
    if not failures:
        return results
    if results or len({isinstance(failure, LogFailed) for failure in failures.values()}) > 1:
        raise PartlyAppended(results, failures)
    raise next(iter(failures.values()))


class Appender:
    """One producer, opened on demand, and a lane (a queue of calls) per partition.

    `on_end` is called with the partition and the end offset of each batch that a broker acknowledged. `clock`: epoch
    ms.
    """

    def __init__(
        self,
        options: KafkaOptions,
        catalog: Catalog,
        on_end: Callable[[Partition, int], None],
        clock: Callable[[], int],
        max_bytes: int = _WAITING_BYTES,
    ) -> None:
        self._options, self._catalog, self._on_end, self._clock = options, catalog, on_end, clock
        self.max_bytes, self.waiting_bytes = max_bytes, 0
        self.producer: Any = None
        self._renewal: asyncio.Task[None] | None = None
        self.sends: dict[asyncio.Future[None], Any] = {}  # sends in flight, with their producers
        self.lanes: dict[Partition, list[_Call]] = {}
        self.closed_since: dict[Partition, float] = {}  # by partition: since when it accepts nothing
        self._driving: set[asyncio.Task[None]] = set()
        self._stopping: set[asyncio.Task[None]] = set()
        self._closed = False

    async def open(self) -> None:
        """Raises Unavailable."""
        producer = new_producer(enable_idempotence=True, acks="all", **self._options.client())
        try:
            async with asyncio.timeout(self._options.delivery_timeout_s):
                await producer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            await stop(producer, failed=True)
            raise Unavailable(f"Kafka does not accept a producer now: {error!r}") from error
        except BaseException:
            await stop(producer, failed=True)
            raise
        self.producer = producer

    async def append(self, batches: Batches) -> Outcomes:
        """The outcome of each part. LogFailed: the part may be in the log. Unavailable or Rejected: it is not in the
        log."""
        size = sum(_size_of(frames) for frames in batches.values())
        if self.waiting_bytes and self.waiting_bytes + size > self.max_bytes:
            detail = f"{self.waiting_bytes} bytes wait for Kafka, which takes them more slowly than they come"
            return dict.fromkeys(batches, Unavailable(detail))
        puts = {where: self.put(where, frames) for where, frames in batches.items()}
        return {where: await _outcome(put) for where, put in puts.items()}

    def put(self, where: Partition, frames: Sequence[bytes]) -> asyncio.Future[AppendResult]:
        """Append to one partition. The future raises LogFailed (outcome unknown), Unavailable (nothing was sent) or
        Rejected (nothing was sent, because a frame is too large)."""
        future = asyncio.get_running_loop().create_future()
        call = _Call(frames, _size_of(frames), future)
        self.waiting_bytes += call.size
        lane = self.lanes.get(where)
        if lane is None:
            self.lanes[where] = [call]
            _spawn(self._driving, self._drive(where), f"kafka append {where[0]} {where[1]}")
        else:
            lane.append(call)
        return future

    async def close(self) -> None:
        self._closed = True
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])
        for lane in list(self._driving):
            lane.cancel()
        await asyncio.gather(*self._driving, return_exceptions=True)
        if self.producer is not None:
            _spawn(self._stopping, stop(self.producer), "kafka producer stop")
        await asyncio.gather(*self._stopping)

    # --- one partition --------------------------------------------------------------------------------------------

    async def _drive(self, where: Partition) -> None:
        """Send the lane's calls until it is empty."""
        lane = self.lanes[where]
        calls: list[_Call] = []
        try:
            while lane:
                size = count = 0
                while count < len(lane) and size < _GATHERED_BYTES:
                    size += lane[count].size
                    count += 1
                calls = lane[:count]
                del lane[:count]
                try:
                    await self._send_all(where, calls)
                except DuemqError as error:
                    _fail(calls, error)
                finally:
                    self.waiting_bytes -= size
        finally:
            del self.lanes[where]
            self.waiting_bytes -= sum(call.size for call in lane)
            _fail(calls, LogFailed("the log was closed during an append: it may or may not be in the log"))
            _fail(lane, Unavailable("the log is closed"))

    async def _send_all(self, where: Partition, calls: list[_Call]) -> None:
        """Send calls together. If the broker refuses a batch as too large, each remaining call is sent alone, so that
        one oversized call does not fail the others."""
        try:
            await self._send(where, calls)
            return
        except _TooLarge as refusal:
            rest = self._answer_written(calls, refusal)
        for call in rest:
            await self._send_alone(where, call)

    async def _send_alone(self, where: Partition, call: _Call) -> None:
        topic = where[0]
        try:
            # If the topic's limit was lowered, smaller batches may work.
            if (why := refusal_of(topic, call.frames, (await self._metadata_of(topic)).max_frame_bytes)) is not None:
                raise Rejected("payload_too_large", why)
            await self._send(where, [call])
        except _TooLarge as refusal:
            if self._answer_written([call], refusal):
                detail = f"topic {topic!r} does not take a message of this size"
                _fail([call], Rejected("payload_too_large", detail))
        except DuemqError as error:
            _fail([call], error)

    def _answer_written(self, calls: list[_Call], refusal: _TooLarge) -> list[_Call]:
        """Answer the calls that are at least partly in the log; return the others."""
        end, whole = 0, 0
        for call in calls:
            end += len(call.frames)
            if end > refusal.sent_count:
                break
            whole += 1
        self._resolve(calls[:whole], refusal.positions, refusal.stamp)
        rest = calls[whole:]
        if rest and end - len(rest[0].frames) < refusal.sent_count:
            _fail(
                rest[:1], LogFailed("Kafka refused the size of a part of an append: another part of it is in the log")
            )
            del rest[0]
        return rest

    async def _send(self, where: Partition, calls: list[_Call]) -> None:
        """Raises LogFailed, Unavailable, or _TooLarge."""
        topic = where[0]
        frames = calls[0].frames if len(calls) == 1 else [frame for call in calls for frame in call.frames]
        metadata, producer = await self._open_partition(where), await self._ready()
        stamp = self._clock()
        batches = batches_of(frames, metadata.max_bytes, stamp, transactional=False)
        positions: list[tuple[int, int, int]] = []
        sending = asyncio.get_running_loop().create_future()
        self.sends[sending] = producer
        try:
            async with asyncio.timeout(self._options.delivery_timeout_s):
                for batch in batches:
                    ack = await (await producer.send_batch(batch.builder, topic, partition=where[1]))
                    if ack.offset < 0:
                        raise LogFailed(f"Kafka has already appended to {topic!r}, and no longer knows the offset")
                    positions.append((batch.start, ack.offset, ack.timestamp))
        except (MessageSizeTooLargeError, RecordListTooLargeError) as error:
            self._catalog.forget(topic)
            self._replace(producer, error)
            sent_count = batches[len(positions)].start
            if positions:
                self._on_end(where, positions[-1][1] + sent_count - positions[-1][0])
            raise _TooLarge(sent_count, positions, stamp) from error
        except (KafkaError, OSError, TimeoutError, AssertionError) as error:
            # The producer's sequence numbers in this partition are no longer usable, because aiokafka never gives up on
            # a batch: every later send to this partition would fail.
            give_up(producer, *where)
            self._replace(producer, error)
            raise _unknown(error) from error
        finally:
            del self.sends[sending]
            sending.set_result(None)
        self._on_end(where, positions[-1][1] + len(frames) - positions[-1][0])
        self._resolve(calls, positions, stamp)

    async def _metadata_of(self, topic: str) -> TopicMetadata:
        """Raises Unavailable: nothing was sent."""
        metadata = await recall_before_append(self._catalog, topic)
        if metadata is None:
            raise Unavailable(f"topic {topic!r} is gone")
        return metadata

    async def _open_partition(self, where: Partition) -> TopicMetadata:
        """Wait while a partition accepts nothing, at most as long as a send would. Then raise Unavailable, not
        LogFailed.

        Later calls are then refused at once.
        """
        while True:
            metadata = await self._metadata_of(where[0])
            if where[1] not in metadata.trouble:
                self.closed_since.pop(where, None)
                return metadata
            now = time.monotonic()
            if now - self.closed_since.setdefault(where, now) > self._options.delivery_timeout_s:
                raise Unavailable(f"topic {where[0]!r}: {metadata.topic_state.trouble_text}")
            await asyncio.sleep(_LOOK_S)

    def _resolve(self, calls: list[_Call], positions: list[tuple[int, int, int]], stamp: int) -> None:
        start, part = 0, 0
        for call in calls:
            end = start + len(call.frames)
            while part + 1 < len(positions) and positions[part + 1][0] <= start:
                part += 1
            at, offset, when = positions[part]
            own = [(0, offset + start - at, when)]
            own += [(at - start, offset, when) for at, offset, when in positions[part + 1 :] if at < end]
            if not call.future.done():
                call.future.set_result(append_result(own, stamp))
            start = end

    # --- the producer ---------------------------------------------------------------------------------------------

    async def _ready(self) -> Any:
        """The producer, or a new one if the last one failed. Raises Unavailable: nothing was sent."""
        if self.producer is None:
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.create_task(self.open(), name="kafka producer")
                self._renewal.add_done_callback(notice_error)
            renewal = self._renewal
            await asyncio.wait([renewal])  # unlike a shield, this does not raise that task's CancelledError
            if renewal.cancelled():
                raise Unavailable("the Kafka producer was cancelled while it was opened")
            renewal.result()
        return self.producer

    def _replace(self, producer: Any, error: BaseException) -> None:
        """Stop using this producer, because it cannot continue in one partition. Batches in flight may still be
        appended."""
        if self.producer is not producer:
            return
        self.producer = None
        log.warning("the kafka producer is replaced: %r", error, extra={"action": "kafka_producer"})
        _spawn(self._stopping, self._retire(producer), "kafka producer stop")

    async def _retire(self, producer: Any) -> None:
        if sends := [sending for sending, its in self.sends.items() if its is producer]:
            await asyncio.wait(sends, timeout=self._options.delivery_timeout_s)
        await stop(producer, failed=True)


async def _outcome(put: asyncio.Future[AppendResult]) -> AppendResult | DuemqError:
    try:
        return await put
    except DuemqError as error:
        return error


def _size_of(frames: Sequence[bytes]) -> int:
    return sum(map(len, frames))


def _spawn(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None], name: str) -> None:
    task = asyncio.create_task(work, name=name)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def recall_before_append(catalog: Catalog, topic: str) -> TopicMetadata | None:
    """Call `Catalog.recall` before anything is sent. Raises Unavailable instead of LogFailed, because the outcome is
    known."""
    try:
        return await catalog.recall(topic)
    except LogFailed as error:
        raise Unavailable(str(error)) from error


def _unknown(error: BaseException) -> LogFailed:
    what = "no answer in time" if isinstance(error, TimeoutError) else repr(error)
    return LogFailed(f"Kafka did not acknowledge an append ({what}): it may or may not be in the log")


def _fail(calls: Sequence[_Call], error: DuemqError) -> None:
    for call in calls:
        if not call.future.done():
            call.future.set_exception(error)
