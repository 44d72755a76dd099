"""What Kafka refuses: found before anything is sent where that can be, and never holding up anything else."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace

import pytest
from aiokafka.protocol.admin import CreatePartitionsRequest, DeleteTopicsRequest

from duemq.bus.base import TopicRefused, UnknownTopic, WriteRefused
from duemq.bus.kafka.bus import KafkaBus
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import Rejected, Unavailable
from duemq.model.messages.record import pack_record
from tests.functional.kafka.kafka_bus import both_protocols, frames, new_topic, options, own_log, values
from tests.support.patience import SERVERS_S

pytestmark = [pytest.mark.anyio, pytest.mark.smoke]

transactions = both_protocols


async def too_large_for(bus: KafkaBus, topic: str) -> bytes:
    await bus.look_up_topics([topic])
    about = bus.topic_state(topic)
    assert about is not None and about.max_frame_bytes is not None
    return pack_record(None, (), b"x" * (about.max_frame_bytes + 1_024))


async def delete(bus: KafkaBus, topic: str) -> None:
    """Comes back when the broker, too, has learnt of it: until then it goes on taking records."""
    await bus.wire.ask_controller(DeleteTopicsRequest([topic], 5_000))
    known = True
    while known:  # once more after it is gone: the broker shows the new state a moment before it acts on it
        known = not all(code for code, *_ in await bus.wire.metadata([topic]))
        await asyncio.sleep(0.1)


async def goes_on(bus: KafkaBus, ledger: str, topic: str) -> None:
    committer = await bus.committer("shard-0")
    await committer.commit({(topic, 0): frames("after"), (ledger, 0): frames("after")})
    assert await values(bus, ledger) == await values(bus, topic) == ["before", "after"]


@pytest.mark.parametrize("frame", ["large", "missing topic", "missing partition"])
async def test_a_commit_that_a_target_would_refuse_is_not_begun(bus: KafkaBus, frame: str) -> None:
    ledger, topic = await own_log(bus), await new_topic(bus)
    committer = await bus.committer("shard-0")
    await committer.commit({(topic, 0): frames("before"), (ledger, 0): frames("before")})
    where, what, reason = {
        "large": ((topic, 0), await too_large_for(bus, topic), "too_large"),
        "missing topic": (("nowhere", 0), frames("x")[0], "unknown_topic"),
        "missing partition": ((topic, 7), frames("x")[0], "unknown_topic"),
    }[frame]
    with pytest.raises(WriteRefused) as refused:
        await committer.commit({where: [what], (ledger, 0): frames("never")})
    assert (refused.value.topic, refused.value.reason) == (where[0], reason)
    with pytest.raises(Unavailable):
        await committer.commit({(ledger, 0): frames("never")})
    await goes_on(bus, ledger, topic)


async def test_a_batch_that_the_broker_refuses_takes_the_whole_commit_along(
    bus: KafkaBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limit was lowered a moment ago. aiokafka alone would commit the rest."""
    ledger, topic = await own_log(bus), await new_topic(bus)
    committer = await bus.committer("shard-0")
    await committer.commit({(topic, 0): frames("before"), (ledger, 0): frames("before")})
    large = await too_large_for(bus, topic)
    known = bus.catalog.topics[topic]
    monkeypatch.setitem(bus.catalog.topics, topic, known._replace(max_bytes=64 << 20))
    with pytest.raises(WriteRefused) as refused:
        await committer.commit({(topic, 0): [large], (ledger, 0): frames("never")})
    assert (refused.value.topic, refused.value.reason) == (topic, "too_large")
    await goes_on(bus, ledger, topic)


async def test_a_target_deleted_while_it_is_known_is_told_apart_from_a_broken_log(
    bus: KafkaBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soon: an abort would wait for the answer to its batch, which never comes, and all other topics with it."""
    monkeypatch.setattr("duemq.bus.kafka.produce.kafka_committer._ABORT_S", 3_600.0)
    ledger, topic, other = await own_log(bus), await new_topic(bus), await new_topic(bus)
    committer = await bus.committer("shard-0")
    await committer.commit({(topic, 0): frames("before"), (ledger, 0): frames("before"), (other, 0): frames("x")})
    await delete(bus, other)
    with pytest.raises(WriteRefused) as refused:
        async with asyncio.timeout(SERVERS_S):
            await committer.commit({(topic, 0): frames("never"), (ledger, 0): frames("never"), (other, 0): frames("x")})
    assert (refused.value.topic, refused.value.reason) == (other, "unknown_topic")
    await goes_on(bus, ledger, topic)
    assert await bus.topic(other) is None


async def test_a_topic_that_is_new_to_a_committer_holds_up_no_other(bus: KafkaBus) -> None:
    """aiokafka asks for the new one alone, and forgets the leaders of all others."""
    ledger, topic = await own_log(bus), await new_topic(bus)
    committer = await bus.committer("shard-0")
    await committer.producer.client.force_metadata_update()  # now it knows all topics there are
    new = await new_topic(bus)
    await committer.commit({(topic, 0): frames("one"), (ledger, 0): frames("one"), (new, 0): frames("one")})
    assert [await values(bus, each) for each in (topic, ledger, new)] == [["one"]] * 3
    await committer.commit({(topic, 0): frames("two"), (ledger, 0): frames("two")})
    assert [await values(bus, each) for each in (topic, ledger)] == [["one", "two"]] * 2


async def test_appends_that_cannot_be_taken_are_refused_at_once_and_harm_no_other(bus: KafkaBus) -> None:
    topic = await new_topic(bus)
    with pytest.raises(Rejected) as refused:
        await bus.append({(topic, 0): [await too_large_for(bus, topic)]})
    assert refused.value.code == "payload_too_large"
    for where in (("nowhere", 0), (topic, 1), ("not a name", 0)):
        with pytest.raises(UnknownTopic):
            await bus.append({(topic, 0): frames("never"), where: frames("x")})
    await bus.append({(topic, 0): frames("taken")})
    assert await values(bus, topic) == ["taken"]
    with pytest.raises(Rejected, match="not a name"):
        await bus.create_topic("not a name", 1)


async def test_an_own_topic_that_does_not_fit_is_refused_with_the_reason(bus: KafkaBus, kafka: KafkaServers) -> None:
    plain = await new_topic(bus, 2)
    with pytest.raises(TopicRefused, match="has 2 partitions and must have 3"):
        await bus.create_log(plain, 3)
    larger = await KafkaBus.open(replace(options(kafka.bootstrap), max_message_bytes=64 << 20))
    with pytest.raises(TopicRefused) as refused:
        await larger.create_log(plain, 2)
    await larger.close()
    for part in (
        "message.timestamp.type is CreateTime and must be LogAppendTime",
        "max.message.bytes is 8388608 and must be 67108864 or more",
    ):
        assert part in str(refused.value)


async def test_an_own_topic_that_is_more_than_needed_is_taken(bus: KafkaBus, kafka: KafkaServers) -> None:
    log = await own_log(bus)
    other = await KafkaBus.open(replace(options(kafka.bootstrap), retention_ms=1_000, max_message_bytes=1 << 20))
    assert (await other.create_log(log, 1)).name == log
    shorter = f"log-{secrets.token_hex(4)}"
    await other.create_log(shorter, 1)
    await other.close()
    with pytest.raises(TopicRefused, match=r"retention\.ms is 1000 and must be 604800000 or more, or -1"):
        await bus.create_log(shorter, 1)


async def test_partitions_that_somebody_adds_to_an_own_topic_are_reported(
    kafka: KafkaServers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody would ever read what Kafka clients put there."""
    for pause in ("_SOON_S", "_LOOK_S"):
        monkeypatch.setattr(f"duemq.bus.kafka.topics.own_topics.{pause}", 0.2)
    bus = await KafkaBus.open(options(kafka.bootstrap))
    try:
        log = await own_log(bus)
        answer = await bus.wire.ask_controller(CreatePartitionsRequest([(log, (2, None))], 30_000, False))
        assert [code for _, code, _ in answer.topic_errors] == [0]
        async with asyncio.timeout(SERVERS_S):
            while not bus.misfits():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        said = "it has 2 partitions and must have 1: the others are never read"
        assert bus.misfits() == {log: said} and said in caplog.text
    finally:
        await bus.close()
