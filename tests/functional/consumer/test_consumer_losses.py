"""What a consumer must not lose, on a real Kafka with a real duemq: retries of topics that were made anew, messages of
any size, what waits behind a partition that is stuck, what a pause keeps, and what a stop cannot send back."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from duemq.client.consumer import Consumer, ConsumerOptions, Delays, Message, Pause, Reject, RetryLater
from duemq.client.consumer.kafka.positions import metadata_of
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.topics.group_topics import dead_letter_topic, retry_topic
from tests.support.consumer.consumer_site import (
    committed,
    make_topic,
    new_group,
    new_topic,
    read_all,
    send,
    until,
)
from tests.support.patience import SERVERS_S

pytestmark = pytest.mark.anyio


async def make(bootstrap: str, topic: str, **configs: str) -> None:
    """Also where a topic of this name is only just being deleted."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:

        async def made() -> bool:
            answer = await admin.create_topics([NewTopic(topic, 1, 1, topic_configs=configs)])
            return bool(answer.topic_errors[0][1] == 0)

        await until(made, f"topic {topic}")
    finally:
        await admin.close()


async def forget(bootstrap: str, topic: str, group: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([topic])
    finally:
        await admin.close()

    async def forgotten() -> bool:
        return await committed(bootstrap, group, topic) is None

    await until(forgotten, "the end of the offsets of a topic that was deleted")


async def test_a_topic_made_anew_keeps_its_retries_and_dead_letters(kafka_with_duemq: str) -> None:
    """Its records are where others were before, and duemq remembers the names of those for a day."""
    topic, group, seen, ids = await new_topic(kafka_with_duemq), new_group(), list[tuple[str, int]](), set[str]()

    async def run(age: str) -> None:
        consumer = Consumer(group, kafka_with_duemq, ConsumerOptions(start="first", retry=Delays(["200ms"])))

        @consumer.on(topic)
        async def handle(message: Message) -> None:
            seen.append((message.text, message.attempt))
            ids.add(message.id)
            if message.text.startswith("never"):
                raise Reject("never")
            if message.attempt == 1:
                raise ValueError("the first time")

        await send(kafka_with_duemq, topic, [f"{age}".encode(), f"never {age}".encode()])
        async with consumer:
            await until(lambda: (age, 2) in seen, f"the retry of the {age} one")
            await until(lambda: consumer.counts[topic, "dead"] == 1, "the count")

    await run("old")
    await forget(kafka_with_duemq, topic, group)
    await make(kafka_with_duemq, topic)
    await run("new")
    letters = await read_all(kafka_with_duemq, dead_letter_topic(group), 2)
    assert [each.value for each in letters] == [b"never old", b"never new"] and len(ids) == 4


async def test_messages_that_cannot_go_back_are_dead_letters_and_hold_up_nothing(kafka_with_duemq: str) -> None:
    """Larger than duemq's buffer takes, or with a key that no schedule can hold."""
    topic, group, seen = f"{await new_topic(kafka_with_duemq)}-large", new_group(), Counter[str]()
    await make(kafka_with_duemq, topic, **{"max.message.bytes": str(12 << 20)})
    consumer = Consumer(group, kafka_with_duemq, ConsumerOptions(start="first", retry=Delays(["100ms"])))

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        seen[message.text[:1]] += 1
        if message.text != "fine":
            raise ValueError("boom")

    async with AIOKafkaProducer(bootstrap_servers=kafka_with_duemq, max_request_size=20 << 20) as producer:
        await producer.send_and_wait(topic, b"x" * 9_000_000, key=b"k", headers=[("trace", b"t")])
        await producer.send_and_wait(topic, b"key", key=b"k" * 70_000)
        await producer.send_and_wait(topic, b"retried")
        for _ in range(5):
            await producer.send_and_wait(topic, b"fine")
    async with consumer:
        letters = {dict(each.headers)["x-duemq-offset"]: each for each in await read_all(
            kafka_with_duemq, dead_letter_topic(group), 3
        )}  # fmt: skip
        await until(lambda: consumer.counts[topic, "dead"] == 3, "all counts")
    assert seen == {"x": 1, "k": 1, "r": 2, "f": 5}
    assert await committed(kafka_with_duemq, group, topic) == (8, "duemq pull=8")
    large, key, retried = letters[b"0"], letters[b"1"], letters[b"2"]
    headers = dict(large.headers)
    assert (large.value, large.key, headers["trace"]) == (b"", b"k", b"t")
    assert (headers["x-duemq-reason"], headers["x-duemq-size"]) == (b"too_large", b"9000000")
    assert (headers["x-duemq-topic"], headers["x-duemq-partition"]) == (topic.encode(), b"0")
    assert (key.value, len(key.key), dict(key.headers)["x-duemq-reason"]) == (b"key", 70_000, b"malformed")
    assert dict(retried.headers)["x-duemq-reason"] == b"retries"


async def test_what_strangers_write_and_null_come_back(kafka_with_duemq: str) -> None:
    topic, group, seen = await new_topic(kafka_with_duemq), new_group(), list[Any]()
    consumer = Consumer(group, kafka_with_duemq, ConsumerOptions(start="first", retry=Delays(["100ms"])))

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        seen.append((message.attempt, message.value, message.headers))
        if message.attempt == 1:
            raise ValueError("the first time")

    async with AIOKafkaProducer(bootstrap_servers=kafka_with_duemq) as producer:
        await producer.send_and_wait(topic, None, key=b"k", headers=[("null", None), ("empty", b"")])
        await producer.send_and_wait(topic, b"x", headers=[("duemq-id", b"\xff\xfe"), ("duemq-due", b"soon")])
    async with consumer:
        await until(lambda: len(seen) == 4, "both, twice")
    null: tuple[Any, ...] = (None, [("null", None), ("empty", b"")])
    text: tuple[Any, ...] = (b"x", [])
    assert sorted(seen, key=repr) == sorted([(1, *null), (1, *text), (2, *null), (2, *text)], key=repr)


async def test_a_delayed_tombstone_is_one(kafka_with_duemq: str) -> None:
    """In a compacted topic, sent by a plain client; so is a null header."""
    topic = f"customers-{new_group()}"
    await make_topic(kafka_with_duemq, topic, settings={"cleanup.policy": "compact"})
    when = [("duemq-topic", topic.encode()), ("duemq-delay", b"1")]
    async with AIOKafkaProducer(bootstrap_servers=kafka_with_duemq) as producer:
        for value in (b"row", None, b""):
            await producer.send_and_wait("duemq.buffer", value, key=b"k", headers=[*when, ("h", None), ("e", b"")])
    found = await read_all(kafka_with_duemq, topic, 3)
    assert sorted((each.value for each in found), key=repr) == sorted((b"row", None, b""), key=repr)
    for each in found:
        assert [pair for pair in each.headers if not pair[0].startswith("duemq-")] == [("h", None), ("e", b"")]


async def test_an_ordered_partition_that_is_stuck_holds_up_no_other(kafka_with_duemq: str) -> None:
    topic, group, seen = await new_topic(kafka_with_duemq, 2), new_group(), list[int]()
    options = ConsumerOptions(start="first", ordered=True, max_in_hand=20, concurrency=4)
    consumer = Consumer(group, kafka_with_duemq, options)

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        if message.record.partition == 0:
            raise ValueError("one bad message without a key")
        seen.append(message.record.offset)

    for partition in range(2):
        await send(kafka_with_duemq, topic, [b"%d" % n for n in range(300)], partition=partition)
    async with consumer:
        await until(lambda: len(seen) == 300, "the other partition")
        await send(kafka_with_duemq, topic, [b"more"], partition=1)
        await until(lambda: len(seen) == 301, "what comes later")
        assert consumer.in_hand <= 20
    assert seen == list(range(301))


async def test_in_order_a_failing_key_holds_up_no_other_key_of_its_partition(kafka_with_duemq: str) -> None:
    """However many messages wait for it: they are read again from Kafka once it is done."""
    topic, group, seen, mended = await new_topic(kafka_with_duemq), new_group(), list[str](), False
    options = ConsumerOptions(
        start="first", ordered=True, retry=Delays(["200ms"] * 500), max_in_hand=100, log_retries=False
    )
    consumer = Consumer(group, kafka_with_duemq, options)

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        if message.key == b"a" and not mended:
            raise ValueError("not yet")
        seen.append(message.text)

    await send(kafka_with_duemq, topic, [b"a%d" % n for n in range(600)], key=b"a")
    await send(kafka_with_duemq, topic, [b"b%d" % n for n in range(300)], key=b"b")
    async with consumer:
        await until(lambda: len(seen) == 300, "the other key")
        await send(kafka_with_duemq, topic, [b"b300"], key=b"b")
        await until(lambda: len(seen) == 301, "what comes later")
        assert consumer.in_hand < 10 and consumer.lag == 600
        mended = True
        await until(lambda: len(seen) == 901, "the key that failed")
    assert seen == [*(f"b{n}" for n in range(301)), *(f"a{n}" for n in range(600))]
    assert await committed(kafka_with_duemq, group, topic) == (901, metadata_of(901))


@pytest.mark.parametrize("mode", ["usual", "ordered", "broadcasting"])
async def test_a_pause_keeps_all_and_uses_up_no_retries(mode: str, kafka_with_duemq: str, tmp_path: object) -> None:
    topic, group, seen, asked, here = await new_topic(kafka_with_duemq), new_group(), Counter[str](), 0, False
    options = ConsumerOptions(
        start="first", retry=Delays([]), ordered=mode == "ordered", offsets_folder=str(tmp_path),
        mode="broadcasting" if mode == "broadcasting" else "clustering",
    )  # fmt: skip
    consumer = Consumer(group, kafka_with_duemq, options)

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        nonlocal asked
        asked += 1
        assert message.attempt == 1
        if not here:
            raise Pause("the store is away", after_s=0.01)
        seen[message.text] += 1

    await send(kafka_with_duemq, topic, [b"%d" % n for n in range(100)])
    async with consumer:
        await until(lambda: asked > 3, "some attempts")
        assert consumer.paused and not seen
        here = True
        await until(lambda: len(seen) == 100, "all")
        await until(lambda: not consumer.in_hand, "none in hand")
    assert set(seen.values()) == {1} and consumer.counts == {(topic, "done"): 100}


class NotYet(RetryLater):
    """As Busy of `once`: another process is at it."""

    counts = False


async def test_what_does_not_count_comes_back_as_often_as_it_takes(kafka_with_duemq: str) -> None:
    topic, group, attempts = await new_topic(kafka_with_duemq), new_group(), list[int]()
    consumer = Consumer(group, kafka_with_duemq, ConsumerOptions(start="first", retry=Delays([])))

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if len(attempts) < 4:
            raise NotYet(delay="100ms")

    await send(kafka_with_duemq, topic, [b"x"])
    async with consumer:
        await until(lambda: consumer.counts[topic, "done"] == 1, "the fourth time")
    assert attempts == [1, 1, 1, 1] and consumer.counts[topic, "retried"] == 3
    assert len(await read_all(kafka_with_duemq, retry_topic(group), 3)) == 3


@pytest.mark.slow
async def test_a_stop_ends_while_kafka_is_away(own_kafka: KafkaServers, caplog: pytest.LogCaptureFixture) -> None:
    """And what it could not store or send back comes again."""
    bootstrap, seen, gone = own_kafka.bootstrap, Counter[str](), asyncio.Event()
    await make(bootstrap, "duemq.buffer")
    topic, group = await new_topic(bootstrap), new_group()
    options = ConsumerOptions(start="first", stop_s=0.5, session_s=6, commit_interval_s=3_600)

    def member() -> Consumer:
        consumer = Consumer(group, bootstrap, options)

        @consumer.on(topic)
        async def handle(message: Message) -> None:
            seen[message.text] += 1
            if gone.is_set():
                return
            await gone.wait()  # what is done sooner is stored with the pull, and does not come again
            if message.text == "fails":
                raise ValueError("while Kafka is away")

        return consumer

    await send(bootstrap, topic, [b"fails"])
    first = member()
    await first.start()
    await until(lambda: seen["fails"], "the message")
    await until(lambda: committed(bootstrap, group, topic), "where the group began")
    await send(bootstrap, topic, [b"done"])
    await until(lambda: seen["done"], "the other message")
    await asyncio.to_thread(own_kafka.kill)
    gone.set()
    await until(lambda: first.counts[topic, "done"] == 1, "one that is done")
    await until(lambda: "return of" in caplog.text, "an attempt to send it back")
    async with asyncio.timeout(SERVERS_S):
        await first.stop()
    assert first.in_hand == 0
    await asyncio.to_thread(own_kafka.start)
    async with member() as second:
        await until(lambda: second.counts[topic, "done"] == 2, "both, again")
    assert seen == {"fails": 2, "done": 2}


async def test_what_was_done_behind_a_slow_message_does_not_come_again(kafka_with_duemq: str) -> None:
    topic, group = await new_topic(kafka_with_duemq), new_group()
    seen = Counter[str]()

    def member(**options: float) -> Consumer:
        consumer = Consumer(group, kafka_with_duemq, ConsumerOptions(start="first", **options))  # type: ignore[arg-type]

        @consumer.on(topic)
        async def handle(message: Message) -> None:
            seen[message.text] += 1
            if message.text == "slow" and seen["slow"] == 1:
                await asyncio.Event().wait()

        return consumer

    await send(kafka_with_duemq, topic, [b"slow", *(b"%d" % n for n in range(3_000))])
    async with member(stop_s=0.1) as first:
        await until(lambda: first.counts[topic, "done"] == 3_000, "all behind the slow one")
    place = await committed(kafka_with_duemq, group, topic)
    assert place is not None and place[0] == 0
    async with member() as second:
        await until(lambda: second.counts[topic, "done"], "the slow one")
        await send(kafka_with_duemq, topic, [b"last"])
        await until(lambda: seen["last"], "what comes after it")
        assert second.counts == {(topic, "done"): 2}
    assert seen.total() == 3_003 and set(seen.values()) == {1, 2}
