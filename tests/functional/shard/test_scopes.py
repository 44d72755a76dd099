"""Every failure that the log may raise, at every call of it: whom it touches is what its scope says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest

from duemq.bus.base import AppendResults, Batches, Bus, Committer, UnknownTopic, WriteRefused
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.admin.administration import Administration
from duemq.cluster.topics.internal_topics import ADMIN, BUFFER, INTERNAL, JOBS, LEDGER, TRAIL, committer_name
from duemq.delay.node_states import Condition, NodePhase
from duemq.election.base import NodeState
from duemq.model import errors
from duemq.model.errors import DuemqError, Fenced, LogFailed, StoreFailed, Unavailable
from duemq.model.messages.message import Draft
from duemq.model.messages.names import of_client, shard_of_name
from duemq.model.messages.record import Partition
from duemq.model.scope import FailureScope
from duemq.proxy.gateway.base import Receipt
from tests.support.node.memory_nodes import ManualClock, MemoryNode, values

pytestmark = pytest.mark.anyio

BROKEN, SOUND = 0, 1  # shards
CALLS = [name for name, call in vars(Bus).items() if iscoroutinefunction(call) and name != "close"] + ["commit"]
Failure = Callable[[], DuemqError]
NO_ANSWER: Failure = partial(LogFailed, "no broker leads it")
GONE: Failure = partial(UnknownTopic, LEDGER)
REFUSED: Failure = partial(WriteRefused, LEDGER, "not_authorized", "it may not be written")
# What the port says that a call may raise, beside no answer.
MORE: Mapping[str, Sequence[Failure]] = {
    "append": (GONE,),
    "commit": (partial(Fenced, "a newer one has begun"), GONE, REFUSED),
    "create_topic": (REFUSED,),
}


class Fault:
    """What fails: the calls of this name that touch one of these partitions. `met` once one has."""

    def __init__(self, call: str, touched: frozenset[Partition], failure: Callable[[], DuemqError]) -> None:
        self.call, self.touched, self.failure, self.met = call, touched, failure, asyncio.Event()

    def meet(self, call: str, arguments: Sequence[Any]) -> None:
        if call == self.call and self.touched & _touched(call, arguments):
            self.met.set()
            raise self.failure()


class FaultyBus(MemoryBus):
    """Fails as `fault` says. `unreadable`: as of `Bus.troubles`."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.fault: Fault | None = None
        self.unreadable: Mapping[Partition, str] = {}
        for call in CALLS[:-1]:
            setattr(self, call, partial(self._meet, call, getattr(self, call)))

    async def _meet(self, call: str, inner: Callable[..., Awaitable[Any]], *arguments: Any, **named: Any) -> Any:
        if self.fault is not None:
            self.fault.meet(call, arguments)
        result = await inner(*arguments, **named)
        return FaultyCommitter(result, self) if call == "committer" else result

    def troubles(self) -> Mapping[Partition, str]:
        return self.unreadable


class FaultyCommitter:
    def __init__(self, inner: Committer, bus: FaultyBus) -> None:
        self._inner, self._bus = inner, bus

    async def commit(self, batches: Batches) -> AppendResults:
        if self._bus.fault is not None:
            self._bus.fault.meet("commit", (batches,))
        return await self._inner.commit(batches)

    async def close(self) -> None:
        await self._inner.close()


def _touched(call: str, arguments: Sequence[Any]) -> set[Partition]:
    """The partitions that a call of the log touches; of one for a whole topic its first ones."""
    first = arguments[0] if arguments else ""
    if call in ("append", "commit"):
        return set(first)
    if call == "committer":
        return {(LEDGER, shard) for shard in (BROKEN, SOUND) if first == committer_name(shard)}
    if isinstance(first, str) and len(arguments) > 1 and isinstance(arguments[1], int):
        return {(first, arguments[1])}
    return {(first, shard) for shard in (BROKEN, SOUND)} if isinstance(first, str) else set()


@asynccontextmanager
async def node_of_two(path: Path) -> AsyncIterator[tuple[MemoryNode, MemoryLog, FaultyBus, Callable[[int], Any]]]:
    """A node that leads both shards, with the administration beside it; `deliver` a message of a shard."""
    clock = ManualClock()
    log, sent = MemoryLog(clock), 0
    buses: list[FaultyBus] = []

    def open_bus(log: MemoryLog) -> FaultyBus:
        buses.append(FaultyBus(log))
        return buses[-1]

    async with MemoryNode(log, path, bus=open_bus, clock=clock, shards=2) as node, asyncio.TaskGroup() as group:
        admin = Administration(lambda: buses[-1], clock)
        following = group.create_task(admin.run())
        node.election.give(BROKEN, SOUND)
        await node.until(lambda: all(shard.leading for shard in node.node.shards.values()), "both to be led")
        await admin.log.ready.wait()

        async def deliver(shard: int) -> None:
            nonlocal sent
            sent += 1
            text = f"{shard}.{sent}"
            called = str(sent)
            while shard_of_name(name := of_client(called), 2) != shard:
                called += "x"
            draft = Draft("orders", text.encode(), clock() + 1_000, name=name, fingerprint=b"f" * 16)
            (receipt,) = await node.gateway.send([draft])
            assert isinstance(receipt, Receipt), receipt

            def delivered() -> bool:
                clock.now += 100
                return text in values(log, "orders")

            await node.until(delivered, f"shard {shard} to deliver")

        try:
            yield node, log, buses[-1], deliver
        finally:
            buses[-1].fault, buses[-1].unreadable = None, {}
            following.cancel()


async def test_what_fails_for_one_shard_or_one_topic_touches_no_other(tmp_path: Path) -> None:
    """The log of one shard, then the administrative topics: each call, with each failure that is no wider."""
    async with node_of_two(tmp_path) as (node, _, bus, deliver):
        for call in CALLS:
            for failure in (NO_ANSWER, *MORE.get(call, ())):
                assert failure().scope <= FailureScope.SHARD
                bus.fault = Fault(call, frozenset({(BUFFER, BROKEN), (LEDGER, BROKEN)}), failure)
                node.shard.wake()
                await deliver(SOUND)
                topics = INTERNAL - {BUFFER, LEDGER}
                bus.fault = Fault(call, frozenset((topic, number) for topic in topics for number in (0, 1)), failure)
                await deliver(BROKEN)
                bus.fault = None
                assert node.node.phase is NodePhase.SERVING and node.node.bus is bus, f"{call}: all was opened again"
        await deliver(SOUND)


async def test_a_failure_of_the_node_opens_all_of_it_again(tmp_path: Path) -> None:
    for failure in (StoreFailed, Unavailable):
        assert failure.scope is FailureScope.NODE
        async with node_of_two(tmp_path / failure.__name__) as (node, _, bus, _deliver):
            bus.fault = Fault("read", frozenset({(BUFFER, BROKEN)}), partial(failure, "the disk is gone"))
            await bus.fault.met.wait()
            await node.until(lambda: node.node.bus is not bus, "all to be opened again")


async def test_a_shard_whose_log_cannot_be_read_is_left_to_others_and_named(tmp_path: Path) -> None:
    async with node_of_two(tmp_path) as (node, _, bus, deliver):
        for topic in (BUFFER, LEDGER):
            bus.unreadable = {(topic, BROKEN): f"partition 0 of topic {topic!r} cannot be read: no broker leads it"}
            await node.node.check_itself()
            health = node.election.health
            assert health is not None and health.state is NodeState.READY
            assert list(health.unfit) == [BROKEN] and "no broker leads it" in health.unfit[BROKEN]
            ready = node.node.readiness()
            assert ready.reason is None and {number: one.reason for number, one in ready.shards.items()} == {
                BROKEN: "log_unreadable"
            }
            await deliver(SOUND)
        bus.unreadable = {(topic, 0): "no broker leads it" for topic in (ADMIN, JOBS, TRAIL)}
        await node.node.check_itself()
        health = node.election.health
        assert health is not None and health.state is NodeState.READY and not health.unfit
        await deliver(BROKEN)
        bus.unreadable = {(LEDGER, shard): "no broker leads it" for shard in (BROKEN, SOUND)}
        await node.node.check_itself()
        assert node.node.condition is Condition.UNFIT, "all are"


def test_only_what_must_end_a_process_has_its_scope() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DuemqError)]
    assert {kind.__name__ for kind in kinds if kind.scope is FailureScope.PROCESS} == {
        "DuemqError", "Fatal", "FolderRefused", "BadConfig",
    }  # fmt: skip
    assert {kind for kind in kinds if issubclass(kind, Unavailable) and kind.scope > FailureScope.NODE} == set()
