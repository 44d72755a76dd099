"""A round of whole nodes: `duemq.delay.node.Node` in this process, with stores and a shard, on a real broker.

All rounds share duemq's own topics. Those that run side by side have a shard each: their nodes hold no other.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from prometheus_client import CollectorRegistry

from duemq.bus.base import Bus, wall_clock
from duemq.bus.kafka.bus import KafkaBus
from duemq.cluster.topics.internal_topics import BUFFER, LEDGER
from duemq.delay.node import Node, NodeOptions
from duemq.delay.shard.shard import Shard
from duemq.model.errors import DuemqError
from duemq.model.messages.record import pack_record
from duemq.model.topics.cluster_identity import ClusterIdentity
from duemq.storage.data_folder import Folder
from tests.chaos.delayed.holds import Api
from tests.chaos.delayed.journal import Outcome, outcome_of
from tests.chaos.delayed.plan import Plan, Scene
from tests.chaos.delayed.proxy import Proxy
from tests.chaos.delayed.reconcile import Stored, compare_node, read_topics
from tests.chaos.delayed.round import (
    AHEAD_MS,
    MORE,
    OF_DESTINATIONS,
    SEND_S,
    SETTLED_S,
    TAKEN_S,
    WARM,
    Result,
    Site,
    end_of,
    open_bus,
)
from tests.chaos.topics import administration, make_topic
from tests.support.node.memory_nodes import ManualElection

SHARDS = 12
_LOOK_S = 0.05
_PADDING = "x" * 400


class Master:
    """A node that runs, with an election in the hand of the round."""

    def __init__(self, node: Node, election: ManualElection, shard: int, running: asyncio.Task[None]) -> None:
        self.node, self.election, self._shard, self._running = node, election, shard, running

    @property
    def shard(self) -> Shard | None:
        """None while the node is closed."""
        return self.node.shards.get(self._shard)

    @property
    def entry(self) -> int:
        """The number of the last entry that it has committed or followed."""
        return -1 if self.shard is None else self.shard.replica.entry.number

    @property
    def delivered(self) -> int:
        """How many messages the shard has delivered since it began, as this node knows."""
        return 0 if self.shard is None else self.shard.replica.entry.outcomes.delivered

    def check(self) -> None:
        """Raises what ended the node; an AssertionError where its shard is stopped for good."""
        if self._running.done():
            self._running.result()
        assert self.shard is None or not self.shard.stopped, self.node.health.unfit


@asynccontextmanager
async def node_on(site: Site, bootstrap: str, cluster: str, shard: int, path: Path) -> AsyncIterator[Master]:
    folder = Folder.open(path, identity=ClusterIdentity(cluster, SHARDS, b"s" * 32))
    election, stop = ManualElection(), asyncio.Event()
    options = NodeOptions(
        alone=False, trims=False, holds=frozenset({shard}), cache_bytes=4 << 20, write_buffer_bytes=4 << 20
    )

    async def open_bus() -> Bus:
        return await KafkaBus.open(site.options(bootstrap, cluster))

    node = Node(folder, open_bus, election, options, CollectorRegistry(), wall_clock)
    running = asyncio.create_task(node.run(stop), name="node")
    try:
        yield Master(node, election, shard, running)
        stop.set()
        await running
    finally:
        running.cancel()
        await asyncio.wait([running])
        folder.close()


class Commands:
    """Sends plain records, as any Kafka client may. `outcomes`: what was answered, by the messages' ids."""

    def __init__(self, bus: Bus, shard: int, topic: str) -> None:
        self._bus, self._shard, self._topic = bus, shard, topic
        self.outcomes: dict[str, Outcome] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._numbers = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            task = asyncio.create_task(self._send([self._message(), self._message()]), name="send")
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(SEND_S)
        await asyncio.gather(*self._under_way)

    async def _send(self, messages: list[tuple[str, int]]) -> None:
        frames = [self._frame(*message) for message in messages]
        try:
            await self._bus.append({(BUFFER, self._shard): frames})
        except DuemqError as error:
            outcome = outcome_of(error)
        else:
            outcome = Outcome.DONE
        self.outcomes |= {name: outcome for name, _ in messages}

    def _message(self) -> tuple[str, int]:
        self._numbers += 1
        least, most = AHEAD_MS
        return f"{self._topic}.{self._numbers}", wall_clock() + least + self._numbers * 7919 % (most - least)

    def _frame(self, name: str, due: int) -> bytes:
        headers = (("duemq-topic", self._topic.encode()), ("duemq-deliver-at", b"%d" % due))
        return pack_record(None, headers, orjson.dumps({"id": name, "due": due, "x": _PADDING}))


async def play_nodes(site: Site, made: Plan, cluster: str, shard: int, topic: str) -> Result:
    """Play the round and reconcile it. Never raises for what duemq does."""
    result, began = Result(made.number, made.kind.name, "node"), time.monotonic()
    names, nodes, outcomes = (BUFFER, LEDGER, topic), list[Master](), dict[str, Outcome]()
    before: dict[str, list[Stored]] = {}
    try:
        await make_topic(site.bootstrap, topic, 1, settings=OF_DESTINATIONS)
        before = await read_topics(site.bootstrap, names[:2], result.wrong, shard)
        async with asyncio.timeout(SETTLED_S + sum(hold.seconds for hold in made.holds)):
            outcomes = await _run(site, made, cluster, shard, topic, nodes)
        after = await read_topics(site.bootstrap, names[:2], result.wrong, shard)
        after |= await read_topics(site.bootstrap, [topic], result.wrong)
        result.wrong += compare_node(outcomes, topic, before, after)
        new = [record.value for record in after[LEDGER][len(before[LEDGER]) :]]
        result.terms = sum("barrier" in value for value in new)
        result.commits = {"done": len(new) - result.terms}
    except Exception as error:  # an assertion, a time-out, or what a fault in duemq or here raises
        unfit = [each.node.health.unfit for each in nodes]
        result.wrong.append(f"stuck: {type(error).__name__}: {error} {unfit}")
    async with administration(site.bootstrap) as admin:
        await admin.delete_topics([topic])
    result.take(made, time.monotonic() - began)
    result.messages = len(outcomes)
    return result


async def _run(site: Site, made: Plan, cluster: str, shard: int, topic: str, nodes: list[Master]) -> dict[str, Outcome]:
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(Proxy(site.port))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="delayed-node-")))
        doors = [await proxy.open_door() for _ in range(2 if made.kind.scene is Scene.DEPOSED else 1)]
        for number, door in enumerate(doors):
            nodes.append(await stack.enter_async_context(node_on(site, door, cluster, shard, folder / str(number))))
        bus = await open_bus(site.options(doors[0], cluster), {BUFFER: SHARDS})
        stack.push_async_callback(bus.close)
        commands, stop = Commands(bus, shard, topic), asyncio.Event()
        for each in nodes:
            await _until(nodes, lambda each=each: each.node.ready.is_set())
        before = nodes[0].delivered
        nodes[0].election.give(shard)
        async with asyncio.TaskGroup() as group:
            group.create_task(commands.run(stop), name="sender")
            await _until(nodes, lambda: nodes[0].delivered >= before + WARM)
            proxy.hold(made.holds)
            if await _is_held(made, nodes, shard):
                await made.holds[0].ended.wait()
            proxy.stop_holding()
            await asyncio.gather(*(hold.ended.wait() for hold in made.holds if hold.request))
            await _grows(nodes, MORE)
            stop.set()
        end = await end_of(bus, BUFFER, shard)

        def is_done() -> bool:
            last = nodes[-1].shard
            return last is not None and last.replica.entry.applied >= end and last.replica.entry.pending == 0

        await _until(nodes, is_done)
        return commands.outcomes


async def _is_held(made: Plan, nodes: list[Master], shard: int) -> bool:
    """Come back when the request is held, and a second node takes over where there is one. False where none came."""
    if made.kind.api is Api.INIT_PRODUCER_ID and not made.kind.of_sender:
        nodes[0].election.give()
        first = nodes[0].shard
        await _until(nodes, lambda: first is None or not first.leading)
        nodes[0].election.give(shard)
    taken = await made.holds[0].is_taken(TAKEN_S)
    if len(nodes) > 1:
        await asyncio.sleep(made.takeover_s)
        nodes[1].election.give(shard)
        await asyncio.sleep(made.told_s)
        nodes[0].election.give()
    return taken


async def _grows(nodes: list[Master], count: int) -> None:
    """Until the last node has so many entries more."""
    wanted = nodes[-1].entry + count
    await _until(nodes, lambda: nodes[-1].entry >= wanted)


async def _until(nodes: list[Master], condition: Any) -> None:
    while not condition():
        for each in nodes:
            each.check()
        await asyncio.sleep(_LOOK_S)
