"""A node goes on whatever one topic's name brings about, on a log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import errors
from prometheus_client import CollectorRegistry, generate_latest

from duemq.bus.base import TopicInfo, WriteRefused, wall_clock
from duemq.bus.kafka.topics.topics import _refusal
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.delay.node import Node, NodeOptions
from duemq.delay.node_backend import NodeBackend
from duemq.election.single import SingleElection
from duemq.model.errors import Rejected
from duemq.model.messages.message import Draft
from duemq.model.messages.record import pack_record, unpack_record
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.storage.data_folder import Folder
from tests.support.patience import WITHIN_S

KINDS = {
    "no right to create": errors.TopicAuthorizationFailedError,
    "its name collides": errors.InvalidTopicError,
    "a policy of the brokers": errors.PolicyViolationError,
    "the controller moved": errors.NotControllerError,
    "too few brokers": errors.InvalidReplicationFactorError,
    "unknown to duemq": errors.UnknownError,
}


def values(log: MemoryLog, topic: str) -> list[bytes]:
    return [unpack_record(one.frame).payload for part in log.topics.get(topic, []) for one in part.frames]


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Running:
    """A node that is alone, on a bus of the test's own kind."""

    def __init__(self, folder: Path, log: MemoryLog, bus: type[MemoryBus]) -> None:
        self.log, self.metrics = log, CollectorRegistry()
        self._folder = Folder.open(folder)

        async def open_bus() -> MemoryBus:
            return bus(log)

        options = NodeOptions(trims=False)
        self.node = Node(self._folder, open_bus, SingleElection(1), options, self.metrics, wall_clock)
        self._stop = asyncio.Event()
        self.gateway = CommandGateway(NodeBackend(self.node))

    async def __aenter__(self) -> Running:
        self._task = asyncio.create_task(self.node.run(self._stop), name="node")
        await self.node.ready.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await self._task  # raises what ended the node
        self._folder.close()

    async def plain(self, topic: str, value: bytes) -> None:
        headers = (("duemq-topic", topic.encode()), ("duemq-delay", b"20"))
        await MemoryBus(self.log).append({(BUFFER, 0): [pack_record(None, headers, value)]})


@pytest.mark.parametrize("error", KINDS.values(), ids=KINDS)
def test_a_topic_that_cannot_be_made_stops_nobody(tmp_path: Path, error: type[errors.KafkaError]) -> None:
    class Refusing(MemoryBus):
        async def create_topic(self, topic: str, partitions: int) -> TopicInfo:
            if topic == "a_b":
                raise _refusal(topic, error, "as the broker says")
            return await super().create_topic(topic, partitions)

    async def test() -> None:
        log = MemoryLog()
        async with Running(tmp_path, log, Refusing) as running:
            await running.plain("a_b", b"bad")
            await until(lambda: "a_b" in running.gateway.troubles())
            answers = await running.gateway.send([Draft("a_b", b"x"), Draft("good", b"one", wall_clock() + 50)])
            assert [isinstance(answer, Rejected) for answer in answers] == [True, False]
            await until(lambda: values(log, "good") == [b"one"])
            assert "as the broker says" in (running.gateway.trouble("a_b") or "")
            assert b'duemq_topic_refused{reason="' in generate_latest(running.metrics)
            assert running.gateway.why_not_ready() is None

    asyncio.run(test())


def test_what_a_commit_learns_of_a_target_is_a_refusal_of_that_target(tmp_path: Path) -> None:
    class Closed(MemoryBus):
        def __init__(self, log: MemoryLog) -> None:
            super().__init__(log, refuse=self._no)

        def _no(self, batches: object) -> None:
            assert isinstance(batches, dict)
            if any(topic == "closed" for topic, _ in batches):
                raise WriteRefused("closed", "not_authorized", "duemq's user may not write to it")

    async def test() -> None:
        log = MemoryLog()
        async with Running(tmp_path, log, Closed) as running:
            (receipt,) = await running.gateway.send([Draft("closed", b"x", wall_clock() + 20)])
            assert not isinstance(receipt, Rejected)
            await until(lambda: "closed" in running.gateway.troubles())
            await running.gateway.send([Draft("good", b"one", wall_clock() + 20)])
            await until(lambda: values(log, "good") == [b"one"])
            state = await running.gateway.state(receipt.id)
            assert state is not None and (state.status, state.attempt) == ("scheduled", 1)
            assert "may not write" in state.reason

    asyncio.run(test())


def test_a_topic_that_was_deleted_is_made_again_and_one_that_grew_is_used_whole(tmp_path: Path) -> None:
    async def test() -> None:
        log = MemoryLog()
        async with Running(tmp_path, log, MemoryBus) as running:
            await running.gateway.send([Draft("orders", b"1")])
            del log.topics["orders"]
            answers = await running.gateway.send([Draft("orders", b"2"), Draft("mail", b"x")])
            assert [answer.status for answer in answers if not isinstance(answer, Rejected)] == ["delivered"] * 2
            await running.gateway.send([Draft("orders", b"3", wall_clock() + 100)])
            del log.topics["orders"]
            await until(lambda: values(log, "orders") == [b"3"])

    asyncio.run(test())
