"""A relay on a log in memory, with the messages that its destinations got."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from aiokafka.structs import TopicPartition
from prometheus_client import CollectorRegistry

from duemq.bus.base import Bus
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.client.consumer.message import KafkaRecord
from duemq.client.consumer.options import ConsumerOptions
from duemq.model.destinations.destination import Credentials, Destination, read_destination
from duemq.model.log.job import Order
from duemq.model.messages.message import Draft
from duemq.model.messages.names import Name
from duemq.model.messages.record import pack_record, unpack_headers
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.jobs.topic_work import TopicWork
from duemq.proxy.jobs.work import DONE
from duemq.relay.base import Outlet, OutletMissing, Reply, Result
from duemq.relay.collector import RelayCollector
from duemq.relay.embedded.log import EmbeddedLog
from duemq.relay.memory import MemoryOutlet
from duemq.relay.relay import Relay
from tests.support.patience import WITHIN_S

FAST = {"kind": "delays", "delays": [1, 1, 1]}
FAILED = Reply(Result.FAILED, "500", "no")


class Site:
    """A log in memory that delivers scheduled messages at once."""

    def __init__(self) -> None:
        self.bus: Bus = MemoryBus(MemoryLog())
        self.by_name: dict[str, Destination] = {}
        self.outlets: dict[str, MemoryOutlet] = {}
        self.disabled: list[tuple[str, str]] = []
        self.names: dict[Name, bytes] = {}  # with fingerprints
        self.opened = 0
        self._listeners: list[Callable[[], None]] = []

    def declare(self, name: str, **fields: Any) -> MemoryOutlet:
        self.by_name[name] = read_destination({"name": name, "url": "https://h.example/", "retry": FAST} | fields)
        self.outlets.setdefault(name, MemoryOutlet())
        self.changed()
        return self.outlets[name]

    def changed(self) -> None:
        for listener in self._listeners:
            listener()

    def credentials_of(self, name: str) -> Credentials:
        return Credentials()

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def open(self, destination: Destination, credentials: Credentials) -> Outlet:
        self.opened += 1
        if destination.name == "missing":
            raise OutletMissing("no library")
        return self.outlets[destination.name]

    async def disable(self, name: str, reason: str) -> None:
        self.disabled.append((name, reason))
        self.declare(name, disabled=reason)

    async def schedule(self, drafts: Sequence[Draft]) -> list[Receipt]:
        receipts: list[Receipt] = []
        for draft in drafts:
            known = draft.name in self.names
            first = self.names.setdefault(draft.name, draft.fingerprint)
            receipts.append(Receipt("new", "scheduled", draft.topic, 0, known, first != draft.fingerprint))
            if not known:
                await self.bus.create_topic(draft.topic, 1)
                headers = unpack_headers(draft.headers, 0, draft.header_count, len(draft.headers))
                await self.bus.append({(draft.topic, 0): [pack_record(draft.key, headers, draft.payload)]})
        return receipts

    async def deliver(self, topic: str, *payloads: bytes | None, key: bytes | None = None, partition: int = 0) -> None:
        await self.bus.create_topic(topic, 2)
        frames = [
            pack_record(key, [("duemq-id", b"id-" + (payload or b"")), ("h", b"1")], payload) for payload in payloads
        ]
        await self.bus.append({(topic, partition): frames})

    async def filled(self, topic: str, count: int) -> None:
        """Return once a topic has this many records."""
        while (info := await self.bus.topic(topic)) is None or info.end_offsets[0] < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def redrive(self, name: str, offset: int) -> None:
        """Send a dead letter of a destination into its topic again, as a job does."""

        async def send(drafts: Sequence[Draft]) -> list[Receipt]:
            return await self.schedule(drafts)

        own = f"destination.{name}"
        job: Any = SimpleNamespace(id="j", order=Order("redrive", {"ids": 1}, source=f"dlq.{own}", topic=own))
        gateway: Any = SimpleNamespace(bus=self.bus, send=send)
        work = TopicWork(gateway, 16)
        assert await work.do(job, 0, [f"0:{offset}"]) == [DONE]

    @asynccontextmanager
    async def relay(self) -> AsyncIterator[Relay]:
        def log_of(group: str, options: ConsumerOptions) -> EmbeddedLog:
            return EmbeddedLog(group, lambda: self.bus, self.schedule, lambda: 1_000, "the log")

        relay = Relay(self, self.on_change, log_of, self.open, self.disable, lambda: 1_000)
        running = asyncio.create_task(relay.run())
        try:
            async with asyncio.timeout(WITHIN_S):
                yield relay
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


class WatchingOutlet(MemoryOutlet):
    """Records the calls to a watcher."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[object] = []

    def pulled(self, partition: TopicPartition, log_id: str, offsets: Sequence[int], start: int) -> None:
        self.told.append((*partition, log_id, list(offsets), start))

    def ended(self, record: KafkaRecord) -> None:
        self.told.append(record.offset)


async def nobody(*_: object) -> None: ...


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  # the test's time-out ends it
        await asyncio.sleep(0.005)


def lag(relay: Relay) -> int | None:
    figures = relay.measured().get("one")
    return None if figures is None else figures.lag


def payloads(outlet: MemoryOutlet) -> list[bytes]:
    return [message.payload for message in outlet.messages]


def metric(relay: Relay, name: str, **labels: str) -> float | None:
    """What `/metrics` says of the destination `one`."""
    registry = CollectorRegistry()
    registry.register(RelayCollector(lambda: relay))
    return registry.get_sample_value(f"duemq_relay_{name}", {"destination": "one", **labels})
