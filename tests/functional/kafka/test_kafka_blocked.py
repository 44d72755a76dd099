"""Open transactions on duemq's own topics: strangers' are seen, and what a proxy left open is ended by the next one."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from aiokafka import AIOKafkaProducer

from duemq.bus.base import Batches, wall_clock
from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.produce.kafka_committer import KafkaCommitter
from duemq.bus.kafka.topics import blocked_partitions
from duemq.cluster.topics.internal_topics import IMPORTER
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.messages.record import Partition, StoredRecord
from tests.functional.kafka.kafka_bus import both_protocols, frames, options, own_log, values
from tests.support.patience import SERVERS_S

pytestmark = pytest.mark.anyio

transactions = both_protocols

BROKERS_S = 60.0  # after which brokers end a transaction by themselves


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_partitions, "_EVERY_S", 0.05)
    monkeypatch.setattr(blocked_partitions, "_BLOCKED_S", 0.3)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SERVERS_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def left_open(shared: KafkaOptions, log: str, batches: Batches) -> KafkaBus:
    """The bus of a proxy that hangs within the transaction of an import."""
    proxy = await KafkaBus.open(replace(shared, transaction_timeout_ms=int(BROKERS_S * 1000)))
    await proxy.create_log(log, 1)
    committer: KafkaCommitter = await proxy.committer(IMPORTER)
    await committer.producer.begin()
    await committer.producer.send(await committer.prepare(batches, wall_clock()), BROKERS_S)
    return proxy


async def test_a_strangers_transaction_is_seen_with_its_producer_and_since_when(
    bus: KafkaBus, kafka: KafkaServers, caplog: pytest.LogCaptureFixture
) -> None:
    log = await own_log(bus, 2)
    await bus.append({(log, 1): frames("before")})
    stranger = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=f"a-user-{log}")
    await stranger.start()
    began = wall_clock()
    await stranger.begin_transaction()
    await stranger.send_and_wait(log, b"x", partition=1)
    sent = wall_clock()
    await bus.append({(log, 1): frames("behind")})
    await until(lambda: bool(bus.blocked()))
    ((where, transaction),) = bus.blocked().items()
    assert where == (log, 1) and transaction.offset == 1
    assert transaction.transactional_id == f"a-user-{log}" and transaction.producer_id >= 0
    assert began - 1 <= transaction.since <= sent + 1
    assert f"topic {log}: partition 1 is not read after offset 1: a transaction of producer" in caplog.text
    await stranger.abort_transaction()
    await until(lambda: not bus.blocked())
    assert await values(bus, log, 1) == ["before", "behind"]
    await stranger.stop()


async def test_commits_one_after_the_other_block_nothing(bus: KafkaBus) -> None:
    log = await own_log(bus)
    committer = await bus.committer("shard-0")
    ends, seen = time.monotonic() + 1.0, set[Partition]()
    while time.monotonic() < ends:
        await committer.commit({(log, 0): frames("entry")})
        seen |= bus.blocked().keys()
    assert not seen


@pytest.mark.parametrize("starts_later", [True, False])
async def test_what_a_proxy_left_open_is_ended_by_another_one(
    kafka: KafkaServers, transactions: str, starts_later: bool
) -> None:
    """By one that starts then at once, by one that works already within seconds; by themselves brokers take longer."""
    shared, log = options(kafka.bootstrap, transactions=transactions), f"log-{secrets.token_hex(4)}"
    next_proxy: KafkaBus | None = None
    if not starts_later:
        next_proxy = await KafkaBus.open(shared, abandoned=[IMPORTER])
        await next_proxy.create_log(log, 1)
    dead = await left_open(shared, log, {(log, 0): frames("never")})
    began = time.monotonic()
    if next_proxy is None:
        next_proxy = await KafkaBus.open(shared, abandoned=[IMPORTER])
        await next_proxy.create_log(log, 1)
    await next_proxy.append({(log, 0): frames("behind")})
    subscription, records = next_proxy.subscribe(log, 0), list[StoredRecord]()
    async with asyncio.timeout(BROKERS_S / 2):
        while not records:
            records = await next_proxy.read(log, 0, 0, 10)
            await subscription.wait(0.1)
    assert time.monotonic() - began < BROKERS_S / 2
    assert await values(next_proxy, log) == ["behind"]
    await asyncio.gather(next_proxy.close(), dead.close())


async def test_an_import_under_way_in_the_same_process_goes_on(kafka: KafkaServers, transactions: str) -> None:
    shared, log = options(kafka.bootstrap, transactions=transactions), f"log-{secrets.token_hex(4)}"
    bus = await KafkaBus.open(shared, abandoned=[IMPORTER])
    await bus.create_log(log, 1)
    committer = await bus.committer(IMPORTER)
    await committer.producer.begin()
    await committer.producer.send(await committer.prepare({(log, 0): frames("slow")}, wall_clock()), BROKERS_S)
    await until(lambda: bool(bus.blocked()))
    await bus.blocked_partitions.refresh()
    await committer.producer.commit()
    async with asyncio.timeout(SERVERS_S):
        while not (texts := await values(bus, log)):  # noqa: ASYNC110 - a commit is answered before its marker stands
            await asyncio.sleep(0.02)
    assert texts == ["slow"]
    await bus.close()
