"""A node that is alone on a real Kafka, with an administrator of the brokers beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from prometheus_client import CollectorRegistry

from duemq.bus.base import UnknownTopic, wall_clock
from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.options import KafkaOptions
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.delay.node import Node, NodeOptions
from duemq.delay.node_backend import NodeBackend
from duemq.election.single import SingleElection
from duemq.model.errors import DuemqError, LogFailed
from duemq.model.messages.message import Draft
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.storage.data_folder import Folder
from tests.functional.kafka.kafka_bus import values
from tests.support.patience import WITHIN_S


class DestinationSite:
    """`good` is a topic that takes everything; `bus` belongs to nobody but the test."""

    def __init__(self, node: Node, bus: KafkaBus, admin: Any, producer: Any) -> None:
        self.node, self.bus, self._admin, self._producer = node, bus, admin, producer
        self.gateway = CommandGateway(NodeBackend(node))
        self._sent = 0

    async def make(self, topic: str, partitions: int = 1, **settings: Any) -> None:
        made = await self._admin.create_topics([NewTopic(topic, partitions, **({"replication_factor": 1} | settings))])
        assert all(code == 0 for _, code, *_ in made.topic_errors), made
        await self.until(lambda: self._is_there(topic), f"topic {topic}")

    async def delete(self, topic: str) -> None:
        await self._admin.delete_topics([topic])

    async def plain(self, topic: str, value: bytes, delay_ms: int = 200) -> None:
        """A record of a Kafka client in the buffer, which passes no gate."""
        headers = [("duemq-topic", topic.encode()), ("duemq-delay", b"%d" % delay_ms)]
        await self._producer.send_and_wait(BUFFER, value, partition=0, headers=headers)

    async def schedule(self, topic: str, value: bytes, delay_ms: int = 200, key: bytes | None = None) -> str:
        (receipt,) = await self.gateway.send([Draft(topic, value, wall_clock() + delay_ms, key)])
        assert not isinstance(receipt, DuemqError), receipt
        return receipt.id

    async def good_goes_on(self) -> None:
        """A message to the good topic is delivered, whatever became of others."""
        self._sent += 1
        text = f"good {self._sent}"
        await self.schedule("good", text.encode())
        await self.until(lambda: self._holds("good", text), f"{text} in the good topic")

    async def arrives(self, topic: str, text: str) -> None:
        await self.until(lambda: self._holds(topic, text), f"{text} in {topic}")

    async def says(self, topic: str, part: str) -> None:
        """The trouble of this topic is told, and the node is ready all the same."""

        async def told() -> bool:
            return part in (self.gateway.troubles().get(topic) or "")

        await self.until(told, f"{part!r} of {topic}")
        assert self.gateway.trouble(topic) is not None
        assert self.gateway.why_not_ready() is None

    async def until(self, done: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                while not await done():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"waited in vain for {what}; troubles: {self.gateway.troubles()}") from None

    async def _is_there(self, topic: str) -> bool:
        await self.bus.look_up_topics([topic])
        return self.bus.topic_state(topic) is not None

    async def _holds(self, topic: str, text: str) -> bool:
        try:
            return text in await values(self.bus, topic)
        except (UnknownTopic, LogFailed):  # it was deleted, and is not made again yet
            return False


@asynccontextmanager
async def destination_site(folder: Path, options: KafkaOptions, copies: int = 1) -> AsyncIterator[DestinationSite]:
    """`copies`: of the good topic."""
    opened = Folder.open(folder)
    node = Node(
        opened, lambda: KafkaBus.open(options), SingleElection(1), NodeOptions(alone=True, trims=False),
        CollectorRegistry(), wall_clock,
    )  # fmt: skip
    stop = asyncio.Event()
    running = asyncio.create_task(node.run(stop), name="node")
    ready = asyncio.create_task(node.ready.wait())
    await asyncio.wait([running, ready], timeout=WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
    assert node.ready.is_set(), node.why_not_ready
    bus = await KafkaBus.open(options)
    admin = AIOKafkaAdminClient(bootstrap_servers=options.bootstrap)
    producer = AIOKafkaProducer(bootstrap_servers=options.bootstrap)
    await admin.start()
    await producer.start()
    site = DestinationSite(node, bus, admin, producer)
    try:
        await site.make("good", replication_factor=copies)
        yield site
        assert not running.done(), "the node ended"
    finally:
        stop.set()
        await asyncio.wait([running], timeout=WITHIN_S)
        await asyncio.gather(bus.close(), admin.close(), producer.stop(), return_exceptions=True)
        opened.close()
