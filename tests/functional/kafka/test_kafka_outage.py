"""The broker goes away and comes back: nothing acknowledged is lost, and the bus goes on by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from prometheus_client import CollectorRegistry

from duemq.bus.base import wall_clock
from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.produce.kafka_committer import KafkaCommitter
from duemq.cluster.backend import NoCluster
from duemq.cluster.clocks.clock_watch import ClockWatch
from duemq.cluster.topics.internal_topics import create_logs
from duemq.cluster.topics.topic_states import TopicStates
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import DuemqError, LogFailed, Unavailable
from duemq.model.log.ledger import START
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.record import Partition
from duemq.proxy.app import create_app
from duemq.proxy.gateway.cluster_backend import ProxyBackend
from duemq.proxy.gateway.gateway import CommandGateway
from duemq.proxy.gateway.ledger_follower import LedgerFollower
from duemq.proxy.request.ingress import Ingress, MessageLimits
from duemq.web.settings import HttpSettings
from tests.functional.kafka.kafka_bus import both_protocols, frames, new_topic, options, own_log, values
from tests.support.patience import SERVERS_S
from tests.support.servers.real_servers import need_servers
from tests.unit.gateway.test_gateway import Cluster

pytestmark = pytest.mark.anyio

transactions = both_protocols


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServers]:
    """A broker for these tests alone, in place of the shared one; `bus` is opened on it, too."""
    need_servers()
    with KafkaServers(tmp_path_factory.mktemp("kafka-outage")) as servers:
        yield servers


class Writers:
    """Append and commit without end, each with one number after the other, until told to stop."""

    def __init__(self, bus: KafkaBus, log: str, ledger: str, topic: str) -> None:
        self._bus, self._log, self._ledger, self._topic = bus, log, ledger, topic
        self.appended: list[str] = []
        self.committed: list[str] = []
        self.errors: list[DuemqError] = []
        self.stop = False

    async def append(self) -> None:
        number = 0
        while not self.stop:
            number += 1
            try:
                await self._bus.append({(self._log, 0): frames(str(number))})
            except (LogFailed, Unavailable) as error:
                self.errors.append(error)
                await asyncio.sleep(0.05)
            else:
                self.appended.append(str(number))

    async def commit(self) -> None:
        """As a shard does: after a failure a new committer, and on from where the ledger ends."""
        committer: KafkaCommitter | None = None
        number = 0
        while not self.stop:
            try:
                if committer is None:
                    committer = await self._bus.committer("shard-0")
                    number = len(await values(self._bus, self._ledger))
                where: tuple[Partition, Partition] = ((self._ledger, 0), (self._topic, 0))
                await committer.commit(dict.fromkeys(where, frames(str(number + 1))))
            except (LogFailed, Unavailable) as error:
                self.errors.append(error)
                committer = None
                await asyncio.sleep(0.05)
            else:
                number += 1
                self.committed.append(str(number))


async def until(condition: object, within_s: float = SERVERS_S) -> None:
    assert callable(condition)
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_broker_killed_under_load_loses_and_repeats_nothing(bus: KafkaBus, kafka: KafkaServers) -> None:
    log, ledger, topic = await own_log(bus), await own_log(bus), await new_topic(bus)
    writers = Writers(bus, log, ledger, topic)
    work = [asyncio.create_task(writers.append()), asyncio.create_task(writers.commit())]
    await until(lambda: len(writers.appended) > 20 and len(writers.committed) > 20)
    kafka.kill()
    assert bus.trouble() is None
    await until(lambda: bus.trouble() is not None)
    assert "has answered" in str(bus.trouble())
    before = len(writers.appended), len(writers.committed)
    await asyncio.to_thread(kafka.start)
    await until(lambda: len(writers.appended) > before[0] + 20 and len(writers.committed) > before[1] + 20, 60)
    await until(lambda: bus.trouble() is None)
    writers.stop = True
    await asyncio.gather(*work)
    entries = await values(bus, ledger)
    assert entries == [str(number) for number in range(1, len(entries) + 1)]
    assert set(writers.committed) <= set(entries)
    assert await values(bus, topic) == entries
    found = await values(bus, log)
    assert len(found) == len(set(found))
    assert set(writers.appended) <= set(found)


async def test_closing_does_not_wait_for_a_broker_that_is_away(kafka: KafkaServers) -> None:
    bus = await KafkaBus.open(options(kafka.bootstrap))
    log = await own_log(bus)
    committer = await bus.committer("shard-0")
    await committer.commit({(log, 0): frames("1")})
    kafka.pause()
    try:
        pending = [
            asyncio.create_task(bus.append({(log, 0): frames("2")})),
            asyncio.create_task(committer.commit({(log, 0): frames("2")})),
            asyncio.create_task(bus.end_offset(log, 0)),
        ]
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await bus.close()
        assert time.monotonic() - began < 10
        for each in await asyncio.gather(*pending, return_exceptions=True):
            assert isinstance(each, LogFailed | Unavailable), each
    finally:
        kafka.resume()


async def test_a_message_that_no_broker_acknowledged_is_not_said_to_be_refused(kafka: KafkaServers) -> None:
    bus = await KafkaBus.open(replace(options(kafka.bootstrap), transaction_timeout_ms=3_000))
    follower, watch, cluster = LedgerFollower(bus, 1), ClockWatch(wall_clock), Cluster()
    follower.entries[0] = START
    try:
        await create_logs(bus, 1)
        topic = await new_topic(bus)
        backend = ProxyBackend(
            "c", bus, IdCodec(b"s" * 32), TopicStates(bus, 0), follower, cluster, cluster, NoCluster(), watch,
            CollectorRegistry(),
        )  # fmt: skip
        app = create_app(
            CommandGateway(backend),
            Ingress(MessageLimits()),
            HttpSettings(),
            CollectorRegistry(),
            wall_clock,
            asyncio.Event(),
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://duemq") as http:
            order = {"topic": topic, "deliver_after": "1h"}
            assert (await http.post("/v1/messages", json=order)).status_code == 201
            kafka.pause()
            try:
                answers = await asyncio.gather(
                    http.post("/v1/messages", json=order), http.post("/v1/messages:batch", json={"messages": [order]})
                )
            finally:
                kafka.resume()
            for answer in answers:
                assert (answer.status_code, answer.json()["code"]) == (504, "outcome_unknown"), answer.text
                assert "Retry-After" not in answer.headers
    finally:
        await bus.close()
