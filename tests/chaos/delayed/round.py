"""A round below a node: a bus, a committer and the plain model of a shard, behind a proxy of their own."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from duemq.bus.base import wall_clock
from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.options import KafkaOptions
from duemq.cluster.topics.internal_topics import committer_name
from duemq.model.errors import Unavailable
from tests.chaos.delayed.holds import Api
from tests.chaos.delayed.journal import Journal
from tests.chaos.delayed.model_shard import Logs, ModelShard, Sender
from tests.chaos.delayed.plan import REQUEST_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS, Plan, Scene
from tests.chaos.delayed.proxy import Proxy
from tests.chaos.delayed.reconcile import compare, read_topics
from tests.chaos.pace import SLOW
from tests.chaos.topics import administration, make_topic

SETTLED_S = 90.0 * SLOW
TAKEN_S = 12.0 * SLOW
WARM, MORE = 4, 3  # messages delivered before a request is held, and commits after it
AHEAD_MS = (300, 2_500)
SEND_S = 0.1
_LOOK_S = 0.02
OF_DESTINATIONS = {"max.message.bytes": "1300"}


@dataclass
class Result:
    """What a round came to. `level`: "model" (a bus, a committer and a plain model of a shard) or "node".

    `wrong`: what is not as it must be; empty where all is. `codes`: what the broker answered to the requests that were
    held, as Kafka's error codes. `commits`: by their outcomes; of nodes only those that are in the ledger.
    """

    number: int
    kind: str
    level: str
    wrong: list[str] = field(default_factory=list)
    held_s: list[float] = field(default_factory=list)
    codes: list[int | None] = field(default_factory=list)
    met: bool = False
    commits: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    terms: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def take(self, made: Plan, seconds: float) -> None:
        """What became of the requests that were held."""
        held = [hold for hold in made.holds if hold.request]
        self.held_s, self.codes = [round(hold.held_s, 3) for hold in held], [hold.code for hold in held]
        self.met, self.seconds = made.holds[0].met, round(seconds, 1)


@dataclass(frozen=True)
class Site:
    """The broker of all rounds, and how they use it. `more`: further arguments of `KafkaOptions`."""

    bootstrap: str
    more: dict[str, Any] = field(default_factory=dict)
    shard: type[ModelShard] = ModelShard

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    def options(self, bootstrap: str, cluster: str) -> KafkaOptions:
        return KafkaOptions(
            bootstrap, cluster=cluster, request_timeout_ms=REQUEST_TIMEOUT_MS,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, buffer_bytes=1 << 20, **self.more,
        )  # fmt: skip


async def play(site: Site, made: Plan, cluster: str) -> Result:
    """Play the round and reconcile it. Never raises for what duemq does."""
    result, began = Result(made.number, made.kind.name, "model"), time.monotonic()
    logs = Logs(f"{cluster}.buffer", f"{cluster}.ledger", (f"{cluster}.a", f"{cluster}.b"))
    journal = Journal()
    shards: list[ModelShard] = []
    try:
        for topic in logs.topic_states:
            await make_topic(site.bootstrap, topic, 1, settings=OF_DESTINATIONS)
        async with asyncio.timeout(SETTLED_S + sum(hold.seconds for hold in made.holds)):
            await _run(site, made, cluster, logs, journal, shards)
        topics = await read_topics(site.bootstrap, logs.names, result.wrong)
        result.wrong += compare(journal, logs, topics)
    except Exception as error:  # an assertion, a time-out, or what a fault in duemq or here raises
        result.wrong.append(f"stuck: {type(error).__name__}: {error} {[shard.failures[-3:] for shard in shards]}")
    async with administration(site.bootstrap) as admin:
        await admin.delete_topics(logs.names)
    result.take(made, time.monotonic() - began)
    result.commits = dict(Counter(str(commit.outcome) for commit in journal.commits))
    result.messages, result.terms = len(journal.sent), journal.terms
    result.failures = [failure for shard in shards for failure in shard.failures]
    return result


async def _run(site: Site, made: Plan, cluster: str, logs: Logs, journal: Journal, shards: list[ModelShard]) -> None:
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(Proxy(site.port))
        buses = []
        for _ in range(2 if made.kind.scene is Scene.DEPOSED else 1):
            options = site.options(await proxy.open_door(), cluster)
            buses.append(await open_bus(options, {logs.buffer: 1, logs.ledger: 1}))
            stack.push_async_callback(buses[-1].close)
        for number, bus in enumerate(buses):
            shard = site.shard(
                bus, logs, committer_name(0), f"node-{number}", journal, made.pause_s, wall_clock
            )  # fmt: skip
            shards.append(shard)
        sending = asyncio.Event()
        sender = Sender(made.chance.choice(buses), logs, journal, SEND_S, AHEAD_MS)
        async with asyncio.TaskGroup() as group:
            group.create_task(shards[0].run(), name="shard")
            group.create_task(sender.run(sending, wall_clock), name="sender")
            while len(shards[0].state.delivered) < WARM:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(_LOOK_S)
            proxy.hold(made.holds)
            if await _is_held(made, shards, group):
                await made.holds[0].ended.wait()
            proxy.stop_holding()
            await asyncio.gather(*(hold.ended.wait() for hold in made.holds if hold.request))
            await _commits(journal, journal.done + MORE)
            sending.set()
            end, last = await end_of(buses[-1], logs.buffer, 0), shards[-1]
            while not (last.leading.is_set() and last.state.is_done(end)):  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(_LOOK_S)
            for shard in shards:
                shard.owns = False


async def _is_held(made: Plan, shards: list[ModelShard], group: asyncio.TaskGroup) -> bool:
    """Come back when the request is held, and a second master takes over where there is one.

    False where no such request was sent: transactions v2 do without some.
    """
    if made.kind.api is Api.INIT_PRODUCER_ID:
        shards[0].reopen.set()
    taken = await made.holds[0].is_taken(TAKEN_S)
    if len(shards) > 1:
        await asyncio.sleep(made.takeover_s)
        group.create_task(shards[1].run(), name="second shard")
        await asyncio.sleep(made.told_s)
        shards[0].owns = False
    return taken


async def open_bus(options: KafkaOptions, logs: Mapping[str, int]) -> KafkaBus:
    """A bus with these logs of its own, by their partitions. Tried again: the time-outs are short for a busy broker."""
    while True:
        bus = None
        try:
            bus = await KafkaBus.open(options)
            for topic, partitions in logs.items():
                await bus.create_log(topic, partitions)
            return bus
        except Unavailable:
            if bus is not None:
                await bus.close()
            await asyncio.sleep(_LOOK_S)


async def end_of(bus: KafkaBus, topic: str, partition: int) -> int:
    """The end of a log to which nobody sends any more."""
    while True:
        try:
            return await bus.sure_end(topic, partition)
        except Unavailable:
            await asyncio.sleep(_LOOK_S)


async def _commits(journal: Journal, count: int) -> None:
    """Until so many were answered with success."""
    while journal.done < count:  # noqa: ASYNC110  # nobody tells
        await asyncio.sleep(_LOOK_S)
