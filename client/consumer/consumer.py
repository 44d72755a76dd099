"""The consumer: pulls messages, gives them to handlers, and stores its position.

    pull -> trackers (messages in hand) -> workers (handlers) -> done: the tracker advances
                                                              -> failed: back through duemq, then it advances

The consumer stores the offset of the first message that is not done, and the ranges of messages done after it. It does
so every 5 s, with each pull, and at the end.

A message is done when its handler has returned, or when the log contains it as a retry or a dead letter. If a process
dies, messages that were not done, or not stored as done, are delivered again to the partition's next owner: delivery is
at least once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from duemq.background.stray_cancellation import own_cancellation_only
from duemq.client.consumer.base import ConsumerLog, FetchPosition, MessageSource, Mismatch, Partition, Watcher
from duemq.client.consumer.ending import within
from duemq.client.consumer.failures import verdict
from duemq.client.consumer.message import Message, message_of
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.retry.headers import error_text, header_bytes
from duemq.client.consumer.retry.policy import Pause, Wait
from duemq.client.consumer.signals import stopped_by_signals
from duemq.client.consumer.work.offset_tracker import OffsetTracker
from duemq.client.consumer.work.pool import MakePool, Pool
from duemq.client.consumer.work.room import Room
from duemq.client.consumer.work.routes import FORMER, Routes
from duemq.client.consumer.work.tags import ALL, TagFilter
from duemq.client.consumer.work.work import Route, Work
from duemq.client.consumer.work.worker_pool import WorkerPool
from duemq.model.errors import Rejected
from duemq.model.topics.group_topics import checked_group, retry_topic

log = logging.getLogger(__name__)

Handler = Callable[[Message], Awaitable[object]]
H = TypeVar("H", bound=Handler)

_PULL_MS, _HELD_PULL_MS = 500, 20
_IDLE_S, _MAX_POLL_MS = 60.0, 300_000  # the latter is aiokafka's default
_SETTLE_S = 0.5
_AGAIN_S = 0.2  # between checks for keys that are no longer suspended
_ASIDE = 10  # limit for messages set aside, as a multiple of `max_in_hand`
_PLACE_S = 2.5e-6  # pause per message that is not done: adding it to a position takes a tenth of that time
_SAVE_S = 5.0  # limit for the last save of a partition
_CROWDED_S = 1.0  # between attempts to store offsets while pulling waits for one to succeed
_LEAVE_S = 5.0
_LATE_S = 2.0  # added to `stop_s`: for the last save, cancelled handlers, and leaving the group


class Consumer:
    """One member of a group. Add handlers before the start, and call all methods from the same event loop.

    ```python
    consumer = Consumer("billing", "localhost:9092")

    @consumer.on("orders", tags="paid || refunded")
    async def book(message: Message) -> None: ...

    asyncio.run(consumer.run())
    ```
    """

    def __init__(
        self,
        group: str,
        bootstrap: str = "localhost:9092",
        options: ConsumerOptions | None = None,
        *,
        log: ConsumerLog | None = None,
        watcher: Watcher | None = None,
        pool: MakePool | None = None,
    ) -> None:
        """`bootstrap`: addresses of Kafka brokers. `log`: the log to use instead of Kafka. `watcher`: is notified of
        each message. `pool`: creates what runs the handlers, instead of the workers. Raises Rejected `bad_group`."""
        self.group, self.options = checked_group(group), options or ConsumerOptions()
        self._counts: Counter[tuple[str, str]] = Counter()
        self.mismatches: tuple[Mismatch, ...] = ()
        """Members whose subscriptions differ from the majority's, as the group's leader reported in the last
        rebalance."""
        if log is None:
            from duemq.client.consumer.kafka.log import KafkaLog  # a consumer of another log needs no Kafka client

            log = KafkaLog(group, bootstrap, self.options)
        self._log = log
        self._watcher = watcher
        self._retry = retry_topic(group)
        self.routes = Routes()
        self._trackers: dict[Partition, OffsetTracker] = {}
        concurrency, per_key = self.options.concurrency, self.options.keys_at_once
        self._pool: Pool = WorkerPool(self, concurrency, per_key) if pool is None else pool(self)
        self._in_place = self.options.ordered or self.options.broadcasting
        self._room = Room(self.options, self._in_place)
        self._moved, self._started = asyncio.Event(), asyncio.Event()
        self._idle_s = min(_IDLE_S, self.options.kafka.get("max_poll_interval_ms", _MAX_POLL_MS) / 3_000)
        self._saving, self._saves_soon = asyncio.Lock(), self.options.commit_pause_s > 0
        self._leaving: set[asyncio.Task[None]] = set()  # for partitions that move to other members
        self.source: MessageSource | None = None
        self._running: asyncio.Task[None] | None = None
        self._pulling: asyncio.Task[None] | None = None
        self._again_at_s = 0.0

    def on(self, topic: str, tags: str = ALL, *, timeout_s: float | None = None) -> Callable[[H], H]:
        """Decorate the handler for a topic's messages that have one of the tags (`a || b`; `*` means all).

        A message goes to the first handler that matches; without a match it is skipped. Raises Rejected `bad_tags`.
        """

        def add(handler: H) -> H:
            self.add(topic, handler, tags, timeout_s=timeout_s)
            return handler

        return add

    def add(
        self,
        topic: str,
        handler: Handler,
        tags: str = ALL,
        *,
        timeout_s: float | None = None,
        queued: Callable[[Message], bool] | None = None,
    ) -> None:
        """See `on`. `queued`: see `Route`."""
        if self._running is not None:
            raise Rejected("too_late", "add handlers before the consumer starts", "topic")
        if not inspect.iscoroutinefunction(inspect.unwrap(handler)):
            raise Rejected("bad_handler", f"{handler!r} is not `async def`; use BlockingConsumer", "handler")
        route = Route(handler, self.options.timeout_s if timeout_s is None else timeout_s, queued)
        self.routes.add(topic, TagFilter.parse(tags), route)

    @property
    def subscription(self) -> dict[str, str]:
        """The tag filter for each topic."""
        return self.routes.subscription

    @property
    def in_hand(self) -> int:
        """Number of messages that were pulled and are not done."""
        return self._room.messages

    @property
    def in_hand_bytes(self) -> int:
        """Total size in bytes of the keys, values and headers of the messages in hand. Header sizes are estimates."""
        return self._room.bytes

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """Number of messages by topic and outcome: `done`, `retried`, `dead`, `skipped` (by the tag filter)."""
        done = {(topic, "done"): count for topic, count in self.routes.done.items()}
        return Counter(dict(self._counts)) + Counter(done)  # an atomic copy: metrics are read in another thread

    @property
    def places(self) -> dict[Partition, FetchPosition]:
        """The fetch positions of this member's partitions."""
        return {
            partition: FetchPosition(tracker.commit, tracker.pull)
            for partition, tracker in dict(self._trackers).items()
        }

    @property
    def lag(self) -> int | None:
        """Number of messages in this member's partitions that are not done; None while unknown. On Kafka, it includes
        transaction markers."""
        if self.source is None or not self._trackers:
            return None
        undone = 0
        for partition, tracker in self._trackers.items():
            if (end := self.source.end(partition)) is None:
                return None
            undone += tracker.undone(end)
        return undone

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest message in hand was written to its topic, epoch ms; None if no message is in hand."""
        times = [tracker.oldest_ms for tracker in dict(self._trackers).values()]
        return min((time for time in times if time is not None), default=None)

    @property
    def working(self) -> asyncio.Task[None]:
        """The task that runs the consumer. If the consumer ends without a call of `stop`, the task ends with the error
        that ended it. Exists after `start`."""
        assert self._running is not None
        return self._running

    @property
    def paused(self) -> bool:
        """Whether pulling pauses. With workers: a handler asked for a pause (`Pause`) that has not ended yet."""
        return self._pool.paused

    # --- start and stop -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group and start. Raises Rejected if duemq does not run on this Kafka, and aiokafka's errors."""
        options = self.options
        if not self.routes:
            raise Rejected("no_handler", "a consumer needs a handler: use `on`", "handler")
        own = [] if options.broadcasting else [self._retry]
        try:
            source = await self._log.open(self.subscription, own, self._gained, self._lost, self._report_mismatches)
            self.source = source
            self._running = asyncio.create_task(self._work(), name=f"consumer-{self.group}")
            await source.start()
        except BaseException:
            await self.stop()
            raise
        self._started.set()

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pool.run(), name="worker pool")
                await self._started.wait()
                assert self.source is not None
                self._pulling = group.create_task(_lasting(self._pull(self.source)), name="pull")
                group.create_task(_lasting(self._save_often(self.source)), name="offsets")
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            log.critical("consumer of group %s ends: %r", self.group, error, extra={"action": "end"})
            raise

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Start, and work until SIGINT, SIGTERM or `stop`; then stop. Raises the error that ended the consumer, if
        any."""
        ending = stop or asyncio.Event()
        with stopped_by_signals(ending):
            waiting = asyncio.create_task(ending.wait(), name="consumer stop")
            starting = asyncio.create_task(self.start(), name="consumer start")
            try:
                await asyncio.wait([waiting, starting], return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    await starting
                    assert self._running is not None
                    await asyncio.wait([waiting, self._running], return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                await self.stop()

    async def stop(self) -> None:
        """Wait for running handlers, drop the other messages, store the offsets, and leave the group. Idempotent.

        Takes at most `stop_s` plus 2 s, even if Kafka is unreachable. Messages not done by then are delivered again.
        """
        running, self._running = self._running, None
        if running is None:
            if self.source is None:
                await self._log.close()
            return
        source, now = self.source, asyncio.get_running_loop().time
        assert source is not None
        until = now() + self.options.stop_s + _LATE_S
        try:
            if self._pulling is not None and not running.done():
                self._pulling.cancel()
                await asyncio.wait([self._pulling], timeout=_LATE_S / 4)
                await within(until - now() - _LATE_S / 2, source.let_go(), *self._leaving)
        finally:
            for each in (running, *self._leaving):
                each.cancel()
            if not (await asyncio.wait([running], timeout=max(until - now() - _LATE_S / 4, _LATE_S / 4)))[0]:
                log.warning(
                    "consumer of group %s ends while handlers still run: they ignored being cancelled",
                    self.group, extra={"action": "end"},
                )  # fmt: skip
            await within(max(min(until - now(), _LEAVE_S), _LATE_S / 4), source.stop(), self._log.close())
        if running.done() and not running.cancelled() and (error := running.exception()) is not None:
            raise error

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # --- partitions -----------------------------------------------------------------------------------------------

    async def _gained(self, partitions: Collection[Partition]) -> None:
        log.info("consumer of group %s got %d partitions", self.group, len(partitions), extra={"action": "assigned"})
        self._moved.set()

    def _report_mismatches(self, mismatches: Sequence[Mismatch]) -> None:
        for each in set(mismatches).difference(self.mismatches):
            log.warning("group %s subscribes to different things: %s", self.group, each, extra={"action": "mismatch"})
        self.mismatches = tuple(mismatches)

    async def _lost(self, partitions: Collection[Partition]) -> None:
        trackers = {each: tracker for each in partitions if (tracker := self._trackers.pop(each, None)) is not None}
        self._pool.release(trackers.values())
        leaving = asyncio.create_task(self._leave(trackers), name="leaving partitions")
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        await asyncio.shield(leaving)

    async def _leave(self, trackers: Mapping[Partition, OffsetTracker]) -> None:
        now = asyncio.get_running_loop().time
        until = now() + self.options.stop_s
        if not await self._pool.finish(trackers.values(), self.options.stop_s):
            log.warning(
                "consumer of group %s loses partitions while handlers are busy: their messages will come again",
                self.group, extra={"action": "revoked"},
            )  # fmt: skip
        if self.source is None:
            return
        try:
            async with asyncio.timeout(min(max(until - now(), 0) + _LATE_S / 2, _SAVE_S)):
                await self._save(self.source, trackers)
        except TimeoutError:
            log.warning(
                "consumer of group %s cannot store offsets of partitions that it loses: messages will come again",
                self.group, extra={"action": "commit"},
            )  # fmt: skip

    # --- pulling --------------------------------------------------------------------------------------------------

    async def _pull(self, source: MessageSource) -> None:
        holding: frozenset[Partition] = frozenset()
        now = asyncio.get_running_loop().time
        last_s = now()
        while True:
            full_partitions = self._read_again(source)
            if full_partitions and full_partitions >= source.partitions():
                most = 0
            else:
                most, stuck_partitions = self._room.admitted(self._trackers, source.partitions)
                full_partitions |= stuck_partitions
            if crowded := self._is_crowded():
                self._moved.set()
            if most <= 0 or crowded or self._pool.paused:
                wait_s = _AGAIN_S if any(tracker.aside for tracker in self._trackers.values()) else self._idle_s
                if not await self._room.wait(len(self._trackers), wait_s) and now() - last_s >= self._idle_s:
                    await source.idle()
                    last_s = now()
                continue
            if full_partitions != holding:
                source.hold(full_partitions)
                holding = full_partitions
            for partition, records in (await source.pull(_HELD_PULL_MS if full_partitions else _PULL_MS, most)).items():
                self._accept(partition, records)
            last_s = now()
            self._moved.set()
            await asyncio.sleep(0)  # otherwise, while records are always available, no other task would run

    def _read_again(self, source: MessageSource) -> frozenset[Partition]:
        """Reread partitions for keys that are free again. Returns the partitions that must not be pulled from, because
        the limit for messages set aside has been reached."""
        with_aside = {partition: tracker for partition, tracker in self._trackers.items() if tracker.aside}
        if not with_aside:
            return frozenset()
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._again_at_s and not self._pool.paused:
            self._again_at_s = now_s + _AGAIN_S
            for partition, tracker in with_aside.items():
                aside = tracker.aside
                keys = {key for key in aside.keys if self._pool.is_free(key)} if aside.may_read(now_s) else set()
                if not keys:
                    continue
                self._pool.withdraw(keys)
                if source.rewind(partition, aside.first(keys)):
                    aside.read_again(keys, tracker.pull, now_s)
        if sum(len(tracker.aside) for tracker in with_aside.values()) < _ASIDE * self.options.max_in_hand:
            return frozenset()
        return frozenset(partition for partition, tracker in with_aside.items() if not tracker.aside.reading)

    def _is_crowded(self) -> bool:
        """Whether `max_in_hand` messages are done but not stored as done. Without this limit, the consumer would handle
        everything that it fetched before Kafka became unreachable, and handle it again once Kafka is back."""
        return sum(tracker.unsaved for tracker in self._trackers.values()) >= self.options.max_in_hand

    def _accept(self, partition: Partition, records: list[Any]) -> None:
        tracker = self._tracker(partition, records[0].offset)
        retried, keyed = partition.topic == self._retry, self.options.keys_at_once is not None
        only = self.routes.only(partition.topic)
        works, times = list[Work](), dict[int, int]()
        total, per_header = 0, header_bytes(records[0].headers)  # adding up all headers would cost too much
        aside, skipped = tracker.aside, 0
        for record in tracker.without_done(records):
            message = Message(record) if not retried else message_of(record, True)
            route = only or self.routes.of(message, retried)
            if retried and (now := self.options.instance) and message.origin.instance not in ("", now):
                route = FORMER
            if route is None:
                skipped += record.offset >= aside.until
                continue
            key = self._key(message) if keyed else None
            if record.offset >= aside.until:
                times[record.offset] = record.timestamp
                if key in aside.keys:
                    aside.add(record.offset, key)
                    continue
            elif not aside.take_back(record.offset, key):  # it is done, in hand, or still set aside
                continue
            size = len(record.value or b"") + len(record.key or b"") + len(record.headers) * per_header
            works.append(Work(message, route, tracker, record.offset, size, key))
            total += size
        self._room.add(len(works), total)
        start = tracker.commit
        tracker.pulled(times, records[-1].offset + 1)
        if self._in_place:
            for offset in aside.came(records[-1].offset, asyncio.get_running_loop().time()):
                tracker.done(offset)
        if self._watcher is not None and self.source is not None:
            self._watcher.pulled(partition, self.source.log_id(partition.topic), list(times), start)
        self._counts[partition.topic, "skipped"] += skipped
        self._pool.put(works)

    def _tracker(self, partition: Partition, start: int) -> OffsetTracker:
        """The tracker of a partition; `start` is the position of a new one."""
        if (tracker := self._trackers.get(partition)) is None:
            assert self.source is not None
            tracker = self._trackers[partition] = OffsetTracker(start, self.source.done(partition))
        return tracker

    def _key(self, message: Message) -> object:
        key = message.key
        if key is not None:
            return message.topic, key
        return (message.topic, message.record.partition) if self.options.ordered else None

    # --- results of a message --------------------------------------------------------------------------------------

    def done(self, work: Work) -> None:
        """See `Owner`."""
        work.tracker.done(work.offset)
        work.route.done += 1
        if work.tracker.unsaved == 1 and self._saves_soon:
            self._moved.set()
        if self._watcher is not None:
            self._watcher.ended(work.message.record)
        room = self._room
        room.messages -= 1
        room.bytes -= work.size
        if room.full:
            room.recheck()

    async def failed(self, work: Work, error: BaseException) -> float | None:
        """See `Owner`."""
        message = work.message
        to, text = verdict(self.group, self.options, message, error)
        now = int(time.time() * 1000)
        origin = replace(message.origin.failed(now, text), instance=self.options.instance)
        message = Message(message.record, origin)
        if isinstance(to, Wait) and self._in_place:
            if work.tracker.closed:
                self.released(work)
                return None
            self._counts[message.topic, "retried"] += 1
            work.message = Message(message.record, message.origin.again() if to.counts else message.origin)
            return to.ms(now) / 1000
        became = await self._log.send_back(message, to, text)
        self._end(work, "retried" if isinstance(became, Wait) else "dead")
        return None

    def set_aside(self, work: Work) -> None:
        """See `Owner`."""
        work.tracker.aside.add(work.offset, work.key)
        self.released(work)

    def pausing(self, work: Work, error: Pause, wait_s: float) -> None:
        """See `Owner`."""
        log.warning(
            "consumer of group %s pauses for %g s, as %r asked for: %s",
            self.group, wait_s, work.message, error_text(error, self.options.tell_errors), extra={"action": "pause"},
        )  # fmt: skip

    def resumed(self) -> None:
        """See `Owner`."""
        log.info("consumer of group %s resumes after a pause", self.group, extra={"action": "resume"})
        self._room.open()

    def pull_again(self) -> None:
        """See `Owner`."""
        self._room.open()

    def released(self, work: Work) -> None:
        """See `Owner`."""
        self._room.remove(work.size)

    def _end(self, work: Work, outcome: str) -> None:
        work.tracker.done(work.offset)
        if self._saves_soon:
            self._moved.set()
        if self._watcher is not None:
            self._watcher.ended(work.message.record)
        self._counts[work.message.topic, outcome] += 1
        self.released(work)

    # --- offsets --------------------------------------------------------------------------------------------------

    async def _save_often(self, source: MessageSource) -> None:
        loop = asyncio.get_running_loop()
        last_advance_s = -_SETTLE_S
        while True:
            interval_s = self.options.commit_interval_s
            if self._is_crowded():
                interval_s = min(interval_s, _CROWDED_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._moved.wait()
            self._moved.clear()
            if loop.time() - last_advance_s >= _SETTLE_S:
                await self._advance_positions(source)
                last_advance_s = loop.time()
            await self._save(source, self._trackers)
            if self.options.commit_pause_s and not self._is_crowded():
                undone = sum(len(tracker) + len(tracker.aside) for tracker in self._trackers.values())
                await asyncio.sleep(max(self.options.commit_pause_s, _PLACE_S * undone))

    async def _advance_positions(self, source: MessageSource) -> None:
        """Advance positions without messages: past transaction markers, and in partitions from which no message has
        been pulled."""
        for partition in source.partitions():
            tracker = self._trackers.get(partition)
            if tracker is None or not (len(tracker) or tracker.aside):
                position = await source.position(partition)
                if position is None:
                    continue
                tracker = self._tracker(partition, position)
                if not len(tracker):
                    tracker.pull = max(tracker.pull, position)

    async def _save(self, source: MessageSource, trackers: Mapping[Partition, OffsetTracker]) -> None:
        async with self._saving:
            moved = {
                partition: (tracker, place, tracker.unsaved)
                for partition, tracker in trackers.items()
                if (place := tracker.position) != tracker.saved
            }
            if not moved:
                return
            saved = await source.save({partition: place for partition, (_, place, _) in moved.items()})
            if saved:  # the others are stored even if one partition's log is in doubt
                for tracker, place, done in map(moved.__getitem__, saved):
                    tracker.saved = place
                    tracker.unsaved -= done
                    if tracker.unsaved and self._saves_soon:  # messages were done during the save
                        self._moved.set()
                self._pool.saved()
                self._room.open()


async def _lasting(work: Awaitable[None]) -> None:
    with own_cancellation_only():
        await work
