"""A take-over on a Kafka that others use, too: it asks about the topics that duemq wrote to, once for all shards."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest

from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.requests.describe_requests import DescribeProducersRequest
from duemq.model.errors import LogFailed
from tests.chaos.topics import make_topic
from tests.functional.kafka.kafka_bus import both_protocols, frames, new_topic, own_log, values
from tests.functional.kafka.unknown_records import write_unknown
from tests.support.servers.aiokafka_parts import topics_of
from tests.support.servers.real_servers import need_servers

pytestmark = pytest.mark.anyio

transactions = both_protocols

SHARDS = 8


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A broker that takes records of transactions its coordinator does not know: how the tests make one hang."""
    from duemq.dev.kafka.kafka import KafkaServers

    need_servers()
    extra = {"transaction.partition.verification.enable": "false"}
    with KafkaServers(tmp_path_factory.mktemp("kafka-neighbours"), extra=extra) as servers:
        yield servers


def questions(bus: KafkaBus, monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The topics of each DescribeProducers request from now on."""
    asked: list[set[str]] = []
    ask = bus.wire.ask

    async def asking(node: int | str, request: Any, *more: Any) -> Any:
        if isinstance(request, DescribeProducersRequest):
            asked.append({topic for topic, *_ in topics_of(request)})
        return await ask(node, request, *more)

    monkeypatch.setattr(bus.wire, "ask", asking)
    return asked


async def test_take_overs_ask_about_no_topic_of_others_and_all_at_once(
    bus: KafkaBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(bus.options.bootstrap, f"others-{secrets.token_hex(4)}", 40)
    ledger, topic = await own_log(bus, SHARDS), await new_topic(bus, 3)
    asked = questions(bus, monkeypatch)
    opened = await asyncio.gather(*(bus.committer(f"shard-{each}", lambda: {topic}) for each in range(SHARDS)))
    assert set().union(*asked) == {ledger, topic} and len(asked) <= SHARDS // 2
    for number, committer in enumerate(opened):
        looked = {(topic, each) for each in range(3)} | {(ledger, each) for each in range(SHARDS)}
        assert committer.hanging.checked == looked
        await committer.commit({(ledger, number): frames("entry"), (topic, 0): frames("message")})
    assert len(await values(bus, topic)) == SHARDS


async def test_what_hangs_in_a_topic_that_the_last_entry_names_is_ended(two: tuple[KafkaBus, KafkaBus]) -> None:
    """The last entry may be read only once the one before is fenced."""
    bus, other = two
    ledger, topic = await own_log(bus), await new_topic(bus)
    await other.create_log(ledger, 1)
    older = await bus.committer("shard-0", frozenset)
    await older.commit({(ledger, 0): frames("entry 1"), (topic, 0): frames("one")})
    assert await values(bus, ledger) == ["entry 1"]
    await write_unknown(older, {(topic, 0): frames("two")})

    written: set[str] = set()
    newer = await other.committer("shard-0", lambda: written)
    await newer.commit({(ledger, 0): frames("barrier")})
    assert await values(bus, topic) == ["one"]
    written.add(topic)
    with pytest.raises(LogFailed, match="hangs"):
        await newer.commit({(ledger, 0): frames("entry 2")})
    await other.committer("shard-0", lambda: written)
    assert await values(bus, topic) == ["one", "two"]


async def test_what_hangs_in_a_topic_that_was_not_asked_about_is_found_before_a_record_and_ended_as_it_was_decided(
    two: tuple[KafkaBus, KafkaBus],
) -> None:
    bus, other = two
    ledger, topic = await own_log(bus), await new_topic(bus)
    await other.create_log(ledger, 1)
    older = await bus.committer("shard-0", frozenset)
    await older.commit({(ledger, 0): frames("entry 1"), (topic, 0): frames("one")})
    assert await values(bus, ledger) == ["entry 1"]
    await write_unknown(older, {(topic, 0): frames("two")})

    newer = await other.committer("shard-0", frozenset)
    await newer.producer.begin()
    await newer.producer.abort()  # a later decision, about another transaction
    newer = await other.committer("shard-0", frozenset)
    with pytest.raises(LogFailed, match="hangs"):
        await newer.commit({(topic, 0): frames("three")})
    newer = await other.committer("shard-0", frozenset)
    await newer.commit({(ledger, 0): frames("entry 2"), (topic, 0): frames("three")})
    assert await values(bus, topic) == ["one", "two", "three"]
