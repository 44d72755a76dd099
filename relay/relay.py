"""Runs a consumer for each destination that is declared and active, independently of the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from duemq.background.loop import Loop
from duemq.client.consumer.base import ConsumerLog, Watcher
from duemq.client.consumer.consumer import Consumer
from duemq.client.consumer.options import ConsumerOptions
from duemq.cluster.relays.figures import RelayFigures
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.model.destinations.destination import Credentials, Destination, System
from duemq.model.errors import DuemqError, Rejected
from duemq.model.topics.topic_names import TopicNames
from duemq.relay.base import Outlet, OutletMissing, Result
from duemq.relay.delivery import Delivery, Disable, policy_of
from duemq.relay.figures import DestinationFigures
from duemq.relay.groups.group_consumer import group_consumer
from duemq.relay.groups.lease_pool import LeasePool
from duemq.relay.settings import RelaySettings

log = logging.getLogger(__name__)

_AGAIN_S, _LONGEST_S = 0.5, 30.0  # before a destination that failed is restarted
# Limits for messages in hand. In ordered destinations, a few messages with each suspended key stay in hand.
_IN_HAND, _IN_HAND_ORDERED, _IN_HAND_BYTES = 2_000, 10_000, 16 << 20
_GROUP_COMMIT_PAUSE_S = 0.002  # short, because an ack waits until the cursor is stored
# Storing a cursor costs an fsync, which delays deliveries. Messages done since the last store repeat after a crash.
_COMMIT_PAUSE_S = 0.02
_STOP_S = 10.0
_LOOK_S = 60.0
_ENDED_S = 20.0  # long enough for a consumer to stop (`_STOP_S`) and close its outlet
_RENEW_SOON_S, _RENEW_S = 60.0, 6 * 3600.0  # by default, Kafka drops a group's offsets after 7 days without members
_TIMEOUT_MARGIN_S = 0.1  # timeouts are checked 20 times a second


class DeclaredDestinations(Protocol):
    """The declared destinations, as this process knows them."""

    @property
    def by_name(self) -> Mapping[str, Destination]: ...

    def credentials_of(self, name: str) -> Credentials: ...


MakeLog = Callable[[str, ConsumerOptions], ConsumerLog]
"""Creates the log for a group."""
OpenOutlet = Callable[[Destination, Credentials], Outlet]
"""Creates the outlet for a destination. Raises OutletMissing."""


@dataclass(slots=True)
class _Work:
    """A destination at work. `declared`: the declaration with which it was started."""

    declared: tuple[Destination, Credentials]
    figures: DestinationFigures
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    delivery: Delivery | None = None
    pool: LeasePool | None = None
    consumer: Consumer | None = None

    def reads(self, name: str, topics: Collection[str]) -> bool:
        """Whether this is the work for the destination `name`, and reads any of these topics."""
        destination = self.declared[0]
        return destination.name == name and any(
            topic in topics for topic in (destination.own_topic, *destination.topics)
        )


class Relay:
    """A relay. `on_change`: takes a function to call after each change of the declarations. `disable`: disables a
    destination; its arguments are the name and the reason. `clock`: returns epoch ms. `kafka`: see `ConsumerOptions`.
    `name`: this relay's name, shown next to its counters."""

    def __init__(
        self,
        declared: DeclaredDestinations,
        on_change: Callable[[Callable[[], None]], None],
        make_log: MakeLog,
        open_outlet: OpenOutlet,
        disable: Disable,
        clock: Callable[[], int],
        kafka: Mapping[str, Any] | None = None,
        name: str = "",
        names: TopicNames = TopicNames(),  # noqa: B008  # a value
        settings: RelaySettings = RelaySettings(),  # noqa: B008  # a value
    ) -> None:
        """`names`: maps names of groups and topics to their names on the Kafka brokers."""
        self._declared, self._make_log, self._open_outlet = declared, make_log, open_outlet
        self._disable, self._clock, self._kafka, self._name = disable, clock, kafka or {}, name
        self._names, self._settings = names.on_brokers, settings
        self._working: dict[str, _Work] = {}
        self._ending: list[_Work] = []
        self._figures: dict[str, DestinationFigures] = {}
        self._began = asyncio.Event()
        self._loop = Loop("relay", self._follow)
        on_change(self._loop.wake)

    @property
    def names(self) -> list[str]:
        """The names of the declared destinations, active or not."""
        return list(self._figures)

    def figures_of(self, name: str) -> DestinationFigures | None:
        return self._figures.get(name)

    def trouble(self, name: str) -> str:
        """Why a destination accepts no messages, as a sentence. Empty if it accepts them, or is only paused."""
        destination, work = self._declared.by_name.get(name), self._working.get(name)
        disabled = destination.disabled if destination is not None else ""
        return disabled or (work.figures.trouble if work is not None else "")

    @property
    def now(self) -> int:
        """The current time, epoch ms."""
        return self._clock()

    def measured(self) -> dict[str, RelayFigures]:
        """The figures of the destinations at work in this process, by name."""
        return {name: self._measure(work) for name, work in self._working.items()}

    def measured_of(self, name: str) -> RelayFigures | None:
        """The figures of one destination; None if it is not at work in this process."""
        work = self._working.get(name)
        return None if work is None else self._measure(work)

    async def pool_of(self, name: str) -> LeasePool:
        """The pool of a group. Waits until the group is at work in this process."""
        while (work := self._working.get(name)) is None or work.pool is None:
            await self._began.wait()
        return work.pool

    def _measure(self, work: _Work) -> RelayFigures:
        figures, consumer, pool = work.figures, work.consumer, work.pool
        throttle = None if work.delivery is None else work.delivery.throttle
        in_flight, limit = (throttle.in_flight, int(throttle.limit)) if throttle else (0, 0)
        if pool is not None:
            in_flight, limit = pool.leased, pool.most
        return RelayFigures(
            relays=(self._name,),
            lag=consumer.lag if consumer else None,
            in_flight=in_flight,
            limit=limit,
            in_hand=consumer.in_hand if consumer else 0,
            dead=_dead(consumer) if consumer else 0,
            results={result.value: figures.results[result] for result in Result},
            statuses=dict(figures.statuses.most_common(10)),
            lateness=tuple(figures.lateness.counts),
            took=tuple(figures.took.counts),
            last_accepted_at=figures.last_accepted_at,
            last_failures=tuple(attempt._asdict() for attempt in reversed(figures.attempts)),
            trouble=figures.trouble,
            oldest_at=consumer.oldest_ms if consumer else None,
            rate=work.declared[0].rate,
        )

    async def ended(self, name: str, topics: Collection[str]) -> None:
        """Return once no consumer in this process reads any of these topics for a destination. A consumer that is still
        stopping will store its position, which would overwrite a reset of the group.

        Raises Rejected `conflict` if the destination keeps running, for example because it is still declared.
        """
        works = [work for work in (*self._working.values(), *self._ending) if work.reads(name, topics)]
        tasks = [work.task for work in works if work.task is not None]
        if tasks and (await asyncio.wait(tasks, timeout=_ENDED_S))[1]:
            raise Rejected("conflict", f"a relay is at work for {works[0].declared[0].group}: try again", "topics")

    async def run(self) -> None:
        """Work until cancelled; then finish the messages in flight and store all positions."""
        renewal = Loop(
            "groups of paused destinations",
            self._renew,
            every_s=_RENEW_S,
            delay_s=_RENEW_SOON_S,
            first_s=_RENEW_SOON_S,
            longest_s=_RENEW_S,
        )
        renewing = asyncio.create_task(renewal.run(), name="groups of paused destinations")
        try:
            await self._loop.run()
        finally:
            renewing.cancel()
            for name in list(self._working):
                self._end(name)
            if tasks := [work.task for work in self._ending if work.task is not None]:
                await asyncio.shield(asyncio.wait(tasks))

    async def _follow(self) -> float:
        """Start new destinations, stop deleted or paused ones, and restart changed ones once they have stopped. No
        destination waits for another."""
        active = {
            name: (destination, self._declared.credentials_of(name))
            for name, destination in self._declared.by_name.items()
            if destination.active
        }
        for name in [name for name, work in self._working.items() if active.get(name) != work.declared]:
            self._end(name)
        for name in self._figures.keys() - self._declared.by_name.keys():
            del self._figures[name]
        for name in self._declared.by_name:
            self._figures.setdefault(name, DestinationFigures())
        ending = {work.declared[0].name for work in self._ending}
        for name, declared in active.items():
            if name not in self._working and name not in ending:
                work = _Work(declared, self._figures[name])
                work.figures.trouble = ""  # it was about the previous declaration
                work.task = asyncio.create_task(self._keep_working(work), name=f"destination {name}")
                self._working[name] = work
        return _LOOK_S

    async def _renew(self) -> None:
        """Renew the positions of paused destinations: some logs drop the positions of a group without members."""
        failures: list[Exception] = []
        for destination in [each for each in self._declared.by_name.values() if not each.active]:
            consumer_log = self._make_log(self._names(destination.group), ConsumerOptions(kafka=self._kafka))
            try:
                own_topics = map(self._names, (destination.own_topic, destination.retry_topic))
                await consumer_log.renew((*destination.topics, *own_topics))
            except Exception as error:  # the other groups must still be renewed
                failures.append(error)
        if failures:
            raise failures[0]

    def _end(self, name: str) -> None:
        work = self._working.pop(name)
        work.stop.set()
        self._ending.append(work)

        def ended(_: asyncio.Task[None]) -> None:
            self._ending.remove(work)
            self._loop.wake()

        if work.task is not None:
            work.task.add_done_callback(ended)

    async def _keep_working(self, work: _Work) -> None:
        """Run a destination's consumer until it is stopped. After an error, the consumer is started again."""

        def on_failure(error: Exception) -> None:
            work.figures.trouble = str(error) or repr(error)

        loop = Loop(
            "destination", lambda: self._work(work, loop), work.declared[0].name, every_s=_AGAIN_S,
            expected=(DuemqError, OutletMissing, OSError), first_s=_AGAIN_S, longest_s=_LONGEST_S,
            on_failure=on_failure,
        )  # fmt: skip
        await loop.run(work.stop)

    async def _work(self, work: _Work, loop: Loop) -> None:
        destination, credentials = work.declared
        if destination.system is System.PULL:
            await self._lease(work, loop)
            return
        outlet = self._open_outlet(destination, credentials)
        try:
            work.delivery = Delivery(destination, outlet, work.figures, self._clock, self._disable)
            concurrency = destination.concurrency or outlet.concurrency
            most = max(_IN_HAND_ORDERED if destination.ordered else _IN_HAND, 2 * concurrency)
            options = self._options(destination, concurrency, most)
            watcher = outlet if isinstance(outlet, Watcher) else None
            group = self._names(destination.group)
            consumer = Consumer(group, options=options, log=self._make_log(group, options), watcher=watcher)
            for topic in self._topics(destination):
                consumer.add(topic, work.delivery.handle, queued=work.delivery.queued)
            await self._consume(work, consumer, loop)
        finally:
            work.delivery = None
            await outlet.close()

    async def _lease(self, work: _Work, loop: Loop) -> None:
        """Work for a group: its messages wait in a pool for callers."""
        destination = work.declared[0]
        options = replace(
            self._options(destination, 1, destination.concurrency or self._settings.group_messages),
            max_in_hand_bytes=self._settings.group_bytes,
            commit_pause_s=_GROUP_COMMIT_PAUSE_S,
        )
        group, topics = self._names(destination.group), self._topics(destination)
        log_of_group = self._make_log(group, options)
        consumer, work.pool = group_consumer(group, topics, options, log_of_group, work.figures, self._clock)
        self._began.set()
        self._began = asyncio.Event()
        try:
            await self._consume(work, consumer, loop)
        finally:
            work.pool = None

    async def _consume(self, work: _Work, consumer: Consumer, loop: Loop) -> None:
        well = asyncio.get_running_loop().call_later(_LONGEST_S, loop.record_success)
        name = work.declared[0].name
        work.consumer = consumer
        try:
            log.info("destination %s starts", name, extra={"action": "destination"})
            await _run(consumer, work.stop)
        finally:
            well.cancel()
            work.consumer = None

    def _topics(self, destination: Destination) -> tuple[str, ...]:
        return (*destination.topics, self._names(destination.own_topic))

    def _options(self, destination: Destination, concurrency: int, most: int) -> ConsumerOptions:
        """The options for a destination's consumer. `most`: limit for messages in hand."""
        return ConsumerOptions(
            concurrency=concurrency,
            ordered=destination.ordered,
            start="first",
            retry=policy_of(destination.retry),
            timeout_s=destination.timeout / 1000 + _TIMEOUT_MARGIN_S,
            max_in_hand=most,
            max_in_hand_bytes=_IN_HAND_BYTES,
            commit_pause_s=_COMMIT_PAUSE_S,
            stop_s=_STOP_S,
            log_retries=False,
            kafka=self._kafka,
            buffer_topic=self._names(BUFFER),
            instance=destination.instance,
        )


def _dead(consumer: Consumer) -> int:
    """Number of messages that became dead letters since the consumer started."""
    return sum(count for (_, outcome), count in consumer.counts.items() if outcome == "dead")


async def _run(consumer: Consumer, stop: asyncio.Event) -> None:
    """Works like `Consumer.run`, but without signal handlers, because the server handles the signals."""
    await consumer.start()
    waiting = asyncio.create_task(stop.wait(), name="stop of a destination")
    try:
        await asyncio.wait([waiting, consumer.working], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        await consumer.stop()
