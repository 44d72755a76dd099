"""Transactions whose markers a broker lost: a committer ends them as their coordinator had decided (KAFKA-20734)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from duemq.bus.base import Batches, wall_clock
from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.produce.kafka_committer import KafkaCommitter
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import LogFailed
from duemq.model.messages.record import Partition
from tests.chaos.delayed.holds import Api, Hold
from tests.chaos.delayed.proxy import Proxy
from tests.chaos.topics import make_topic
from tests.functional.kafka.kafka_bus import both_protocols, deliver, frames, new_topic, own_log, values
from tests.functional.kafka.unknown_records import write_unknown
from tests.support.servers.real_servers import need_servers

pytestmark = pytest.mark.anyio

transactions = both_protocols

PATIENT_S = 30.0  # a busy machine stands still for longer than a take-over waits


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServers]:
    """A broker that takes records of transactions its coordinator does not know: how the tests make one hang."""
    need_servers()
    extra = {"transaction.partition.verification.enable": "false"}
    with KafkaServers(tmp_path_factory.mktemp("kafka-hanging"), extra=extra) as servers:
        yield servers


@pytest.fixture(autouse=True)
def brokers_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.bus.kafka.requests.partition_producers.LOOK_S", PATIENT_S)


async def begin(committer: KafkaCommitter, batches: Batches) -> None:
    """Send these in a transaction."""
    await committer.producer.begin()
    await committer.producer.send(await committer.prepare(batches, wall_clock()), 60.0)


async def topics(bus: KafkaBus, other: KafkaBus) -> tuple[Partition, Partition]:
    ledger, topic = await own_log(bus), await new_topic(bus)
    await other.create_log(ledger, 1)
    return (ledger, 0), (topic, 0)


@pytest.mark.parametrize("hanging", ["both", "log", "topic"])
async def test_what_was_committed_is_seen_by_the_next_committer(two: tuple[KafkaBus, KafkaBus], hanging: str) -> None:
    bus, other = two
    ledger, topic = await topics(bus, other)
    older = await bus.committer("shard-0")
    await older.commit({ledger: frames("entry 1"), topic: frames("one")})
    assert await values(bus, *ledger) == ["entry 1"]  # its marker is there
    lost = {ledger: frames("entry 2"), topic: frames("two")}
    await write_unknown(
        older, {where: lost[where] for where in lost if hanging in ("both", where[0].partition("-")[0])}
    )
    assert await values(other, *ledger) == ["entry 1"]

    newer = await other.committer("shard-0")
    entries, found = await values(other, *ledger), await values(bus, *topic)
    assert entries == ["entry 1", "entry 2"][: 1 + (hanging != "topic")]
    assert found == ["one", "two"][: 1 + (hanging != "log")]
    await newer.commit({ledger: frames("entry 3"), topic: frames("three")})
    assert await values(other, *ledger) == [*entries, "entry 3"]
    assert await values(other, *topic) == [*found, "three"]


async def test_a_broker_that_is_silent_at_a_take_over_does_not_undo_what_was_committed(
    two: tuple[KafkaBus, KafkaBus], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator forgets at each take-over what it decided, and what hangs is mended only once a broker tells."""
    bus, other = two
    ledger, topic = await topics(bus, other)
    older = await bus.committer("shard-0")
    await older.commit({ledger: frames("entry 1"), topic: frames("one")})
    assert await values(bus, *ledger) == ["entry 1"]
    await write_unknown(older, {topic: frames("two")})
    monkeypatch.setattr("duemq.bus.kafka.requests.partition_producers.LOOK_S", 0.0)
    for _ in range(3):
        newer = await other.committer("shard-0")
        assert await values(bus, *topic) == ["one"]
        with pytest.raises(LogFailed, match="has to be ended first"):
            await newer.commit({topic: frames("three")})
    monkeypatch.setattr("duemq.bus.kafka.requests.partition_producers.LOOK_S", PATIENT_S)
    newer = await other.committer("shard-0")
    await newer.commit({ledger: frames("entry 2"), topic: frames("three")})
    assert await values(bus, *topic) == ["one", "two", "three"]
    assert await values(other, *ledger) == ["entry 1", "entry 2"]


async def test_a_late_commit_of_what_hung_does_not_end_the_next_transaction(
    two: tuple[KafkaBus, KafkaBus], kafka: KafkaServers
) -> None:
    """The transaction that ends what hangs is of the same epoch as the first one of the new committer."""
    bus, reading = two
    topic = f"topic-{secrets.token_hex(4)}"
    await make_topic(kafka.bootstrap, topic, 1, settings={"max.message.bytes": "1300"})
    (ledger, _), (hung, _) = await topics(bus, reading)
    messages = [f"{each} " + "x" * 400 for each in range(6)]
    older = await bus.committer("shard-0")
    await older.commit({(ledger, 0): frames("entry 1")})
    await write_unknown(older, {(hung, 0): frames("two")})
    async with Proxy(int(kafka.bootstrap.rpartition(":")[2])) as proxy:
        near = replace(bus.options, bootstrap=await proxy.open_door(), request_timeout_ms=2_000)
        hold = Hold(Api.END_TXN, f"duemq-{near.cluster}-shard-0".encode(), 2.5, after=Api.PRODUCE)
        proxy.hold([hold])
        other = await KafkaBus.open(near)
        try:
            await other.create_log(ledger, 1)
            committer = None
            with suppress(LogFailed):
                committer = await other.committer("shard-0")
            await hold.armed.wait()
            await deliver(other, ledger, topic, 2, messages, committer)
            await hold.ended.wait()
            assert hold.met and hold.code, "the late request was carried out, in the midst of another transaction"
            assert await values(reading, ledger) == ["entry 1", "entry 2"]
            assert await values(reading, topic) == messages
            assert await values(reading, hung) == ["two"]
        finally:
            await other.close()


async def test_what_was_aborted_is_seen_by_nobody(two: tuple[KafkaBus, KafkaBus]) -> None:
    bus, other = two
    ledger, topic = await topics(bus, other)
    older = await bus.committer("shard-0")
    await older.commit({ledger: frames("entry 1"), topic: frames("one")})
    await begin(older, {ledger: frames("lost")})
    await older.producer.abort()
    await write_unknown(older, {ledger: frames("lost"), topic: frames("lost")})

    newer = await other.committer("shard-0")
    await newer.commit({ledger: frames("entry 2"), topic: frames("two")})
    assert await values(other, *ledger) == ["entry 1", "entry 2"]
    assert await values(other, *topic) == ["one", "two"]


async def test_a_transaction_under_way_is_aborted_with_what_hangs(two: tuple[KafkaBus, KafkaBus]) -> None:
    bus, other = two
    ledger, topic = await topics(bus, other)
    older = await bus.committer("shard-0")
    await begin(older, {ledger: frames("lost")})
    await write_unknown(older, {topic: frames("lost")})

    newer = await other.committer("shard-0")
    await newer.commit({ledger: frames("entry 1"), topic: frames("one")})
    assert await values(other, *ledger) == ["entry 1"]
    assert await values(other, *topic) == ["one"]


async def test_a_committer_looks_again_once_its_coordinator_was_away(two: tuple[KafkaBus, KafkaBus]) -> None:
    bus, other = two
    ledger, topic = await topics(bus, other)
    committer = await bus.committer("shard-0")
    await committer.commit({ledger: frames("entry 1"), topic: frames("one")})
    assert await values(bus, *ledger) == ["entry 1"]
    # As if the markers of a second commit had been lost, which the committer knows to be committed.
    await write_unknown(committer, {ledger: frames("entry 2"), topic: frames("two")})
    coordinator: Any = committer.producer.coordinator()
    coordinator.close()

    with pytest.raises(LogFailed, match="hangs"):
        await committer.commit({topic: frames("three")})
    again = await bus.committer("shard-0")
    assert await values(other, *ledger) == ["entry 1", "entry 2"]
    await again.commit({ledger: frames("entry 3"), topic: frames("three")})
    assert await values(bus, *ledger) == ["entry 1", "entry 2", "entry 3"]
    assert await values(bus, *topic) == ["one", "two", "three"]


async def test_a_partition_is_looked_at_before_its_first_record(two: tuple[KafkaBus, KafkaBus]) -> None:
    bus, other = two
    ledger, topic = await topics(bus, other)
    older = await bus.committer("shard-0")
    await older.commit({ledger: frames("entry 1")})
    await begin(older, {topic: frames("lost")})
    await older.producer.abort()
    newer = await other.committer("shard-0")
    newer.hanging.checked.clear()  # as if its broker had not answered when the committer began
    await write_unknown(newer, {topic: frames("lost")})
    with pytest.raises(LogFailed, match="hangs"):
        await newer.commit({ledger: frames("entry 2"), topic: frames("two")})
    assert await values(bus, *ledger) == ["entry 1"]
