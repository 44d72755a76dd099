"""Two processes that each believe to be the master of a shard: the broker lets only the newer one write."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.producer import sender

from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.produce.kafka_committer import KafkaCommitter
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import Fenced, Unavailable
from tests.functional.kafka.kafka_bus import both_protocols, frames, new_topic, own_log, values
from tests.support.patience import SERVERS_S

pytestmark = [pytest.mark.anyio, pytest.mark.smoke]

transactions = both_protocols


class Frozen:
    """A committer stopped at a step of its transaction, as a process is by SIGSTOP; `go_on` is its SIGCONT."""

    def __init__(self, committer: KafkaCommitter, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
        producer: Any = committer.producer
        real = getattr(producer, step)
        self.there, self.go_on = asyncio.Event(), asyncio.Event()

        async def stopped(*args: Any, **named: Any) -> Any:
            self.there.set()
            await self.go_on.wait()
            return await real(*args, **named)

        monkeypatch.setattr(producer, step, stopped)


@pytest.mark.parametrize("step", ["begin", "send", "commit"])
async def test_a_master_that_was_replaced_while_frozen_writes_nothing(
    two: tuple[KafkaBus, KafkaBus], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, other = two
    ledger, topic = await own_log(bus), await new_topic(bus)
    await other.create_log(ledger, 1)
    older = await bus.committer("shard-0")
    await older.commit({(topic, 0): frames("one"), (ledger, 0): frames("entry 1")})

    frozen = Frozen(older, step, monkeypatch)
    commit = asyncio.create_task(older.commit({(topic, 0): frames("two"), (ledger, 0): frames("entry 2")}))
    await frozen.there.wait()
    newer = await other.committer("shard-0")
    end = await other.end_offset(ledger, 0)  # final: the open transaction was ended before `committer` returned
    assert await values(other, ledger) == ["entry 1"]
    frozen.go_on.set()
    with pytest.raises(Fenced):
        await commit
    with pytest.raises(Fenced):
        await older.commit({})
    assert await other.end_offset(ledger, 0) == end

    await newer.commit({(topic, 0): frames("two"), (ledger, 0): frames("entry 2")})
    assert await values(other, ledger) == await values(bus, ledger) == ["entry 1", "entry 2"]
    assert await values(bus, topic) == ["one", "two"]


async def test_what_no_reader_sees_yet_is_known_to_be_there(
    two: tuple[KafkaBus, KafkaBus], kafka: KafkaServers
) -> None:
    """Of what was committed the brokers may still be writing the markers: nothing may be said not to exist for it."""
    bus, other = two
    ledger = await own_log(bus)
    await other.create_log(ledger, 1)
    await bus.append({(ledger, 0): frames("one")})
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=f"open-{ledger}", acks="all")
    async with producer:
        await producer.begin_transaction()
        await producer.send_and_wait(ledger, b"two", partition=0)
        assert await other.end_offset(ledger, 0) == await other.sure_end(ledger, 0) == 1
        assert await other.sure_end(ledger, 0, committed=False) == 2
        await producer.abort_transaction()


async def test_a_master_that_died_in_its_transaction_leaves_no_trace(two: tuple[KafkaBus, KafkaBus]) -> None:
    bus, other = two
    ledger, topic = await own_log(bus), await new_topic(bus)
    await other.create_log(ledger, 1)
    dead = await bus.committer("shard-0")
    await dead.producer.begin()
    await dead.producer.send(
        await dead.prepare({(topic, 0): frames("lost"), (ledger, 0): frames("lost")}, 0), SERVERS_S
    )
    await other.append({(topic, 0): frames("behind")})  # readers do not get past an open transaction
    assert await bus.read(topic, 0, 0, 10) == []
    await other.committer("shard-0")
    assert (await values(other, ledger), await values(bus, topic)) == ([], ["behind"])


async def test_a_commit_that_is_cut_off_ends_its_committer(two: tuple[KafkaBus, KafkaBus]) -> None:
    bus, _ = two
    ledger = await own_log(bus)
    committer = await bus.committer("shard-0")
    commit = asyncio.create_task(committer.commit({(ledger, 0): frames("entry 1")}))
    await asyncio.sleep(0)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    with pytest.raises(Unavailable):
        await committer.commit({(ledger, 0): frames("entry 1")})
    again = await bus.committer("shard-0")
    known = await values(bus, ledger)
    await again.commit({(ledger, 0): frames("entry 2")})
    assert await values(bus, ledger) == [*known, "entry 2"]


def test_cycles_do_not_wait_for_aiokafkas_pause() -> None:
    """`produce/v1/producer.py` sets a global of aiokafka that is no part of its API: a cycle takes 25 ms without."""
    assert sender.BACKOFF_OVERRIDE == 0.002
    assert "BACKOFF_OVERRIDE" in inspect.unwrap(sender.AddPartitionsToTxnHandler.handle_response).__code__.co_names
