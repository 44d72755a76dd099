"""The consumer on a real Kafka with a real duemq."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from duemq.client.consumer import BlockingConsumer, ConsumerCollector
from duemq.client.consumer.consumer import Consumer
from duemq.client.consumer.kafka.positions import metadata_of
from duemq.client.consumer.kafka.retry_publisher import RetryPublisher
from duemq.client.consumer.kafka.topics import prepare
from duemq.client.consumer.letter import letter_of
from duemq.client.consumer.message import Message, message_of
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.retry.policy import Delays, Levels, Reject, RetryLater, Wait
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import Rejected
from duemq.model.messages.names import of_client, shard_of_name
from duemq.model.topics.group_topics import dead_letter_topic, retry_topic
from tests.support.consumer.consumer_site import committed, new_group, new_topic, read_all, send, until
from tests.support.patience import SERVERS_S

pytestmark = pytest.mark.anyio

FIRST = ConsumerOptions(start="first")


async def test_messages_are_handled_and_committed(kafka_with_duemq: str) -> None:
    topic, group, seen = await new_topic(kafka_with_duemq), new_group(), list[Message]()
    await send(kafka_with_duemq, topic, [b"%d" % n for n in range(500)], key=b"k", headers=[("trace", b"t")])
    consumer = Consumer(group, kafka_with_duemq, FIRST)

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        seen.append(message)

    async with consumer:
        await until(lambda: len(seen) == 500, "all messages")
        await until(lambda: committed(kafka_with_duemq, group, topic), "a commit with the pull")
    assert [int(each.text) for each in seen] == list(range(500))
    assert (seen[7].key, seen[7].headers, seen[7].id) == (
        b"k",
        [("trace", b"t")],
        f"{topic}:0:7:{seen[7].record.timestamp}",
    )
    assert await committed(kafka_with_duemq, group, topic) == (500, metadata_of(500))
    assert consumer.counts[topic, "done"] == 500 and consumer.in_hand == consumer.in_hand_bytes == 0

    async with consumer_of(group, kafka_with_duemq, topic, seen):
        await send(kafka_with_duemq, topic, [b"500"])
        await until(lambda: len(seen) > 500, "the next message")
    assert [each.text for each in seen[500:]] == ["500"]


def consumer_of(
    group: str, bootstrap: str, topic: str, seen: list[Message], options: ConsumerOptions = FIRST
) -> Consumer:
    consumer = Consumer(group, bootstrap, options)

    async def handle(message: Message) -> None:
        seen.append(message)

    consumer.add(topic, handle)
    return consumer


async def test_what_is_not_done_is_not_committed(kafka_with_duemq: str) -> None:
    """The third message stays in its handler: whatever is done behind it, the commit stays in front of it."""
    topic, group, seen, held = await new_topic(kafka_with_duemq), new_group(), list[str](), asyncio.Event()
    await send(kafka_with_duemq, topic, [b"%d" % n for n in range(10)])
    consumer = Consumer(group, kafka_with_duemq, ConsumerOptions(start="first", stop_s=0.2))

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        if message.text == "2":
            await held.wait()
        seen.append(message.text)

    async with consumer:
        await until(lambda: len(seen) == 9, "all but one")

        async def stored() -> bool:
            return await committed(kafka_with_duemq, group, topic) == (2, metadata_of(10))

        await until(stored, "the commit in front of the third, with the pull")
    again: list[Message] = []
    async with consumer_of(group, kafka_with_duemq, topic, again):
        await send(kafka_with_duemq, topic, [b"10"])
        await until(lambda: len(again) == 2, "the third, and what came since")
    assert [each.text for each in again] == ["2", "10"]


async def test_a_failure_comes_back_by_its_level_and_ends_in_the_dead_letters(kafka_with_duemq: str) -> None:
    topic, group = await new_topic(kafka_with_duemq), new_group()
    options = ConsumerOptions(start="first", retry=Levels(first=1, retries=2))
    consumer, seen = Consumer(group, kafka_with_duemq, options), list[tuple[float, Message]]()

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        seen.append((time.time(), message))
        raise ValueError("boom")

    await send(kafka_with_duemq, topic, [b"pay"], key=b"k", headers=[("trace", b"t")])
    async with consumer:
        (dead,) = await read_all(kafka_with_duemq, dead_letter_topic(group), 1)
        await until(lambda: consumer.counts[topic, "dead"] == 1, "the count")
    assert [(each.attempt, each.topic, each.text, each.key, each.headers) for _, each in seen] == [
        (attempt, topic, "pay", b"k", [("trace", b"t")]) for attempt in (1, 2, 3)
    ]
    assert len({each.id for _, each in seen}) == 1
    for (before, _), (at, message), level_s in zip(seen, seen[1:], (1, 5), strict=False):
        assert message.record.topic == retry_topic(group)
        assert message.due_ms is not None and level_s <= message.due_ms / 1000 - before < level_s + 2
        assert 0 <= at - message.due_ms / 1000
    headers = dict(dead.headers)
    assert (dead.value, dead.key) == (b"pay", b"k")
    assert headers["x-duemq-topic"] == topic.encode() and headers["x-duemq-id"].startswith(f"{topic}:0:0:".encode())
    assert (headers["x-duemq-retried"], headers["x-duemq-reason"], headers["x-duemq-error"]) == (
        b"2",
        b"retries",
        b"boom",
    )
    assert headers["trace"] == b"t"
    assert await committed(kafka_with_duemq, group, topic) == (1, metadata_of(1))


async def test_a_handler_says_when_or_that_it_never_will(kafka_with_duemq: str) -> None:
    topic, group, seen = await new_topic(kafka_with_duemq), new_group(), Counter[str]()
    consumer = Consumer(group, kafka_with_duemq, FIRST)
    later = {
        "soon": RetryLater(delay=timedelta(seconds=0.5)),
        "level": RetryLater(level=1),
        "at": RetryLater(at="2020-01-01T00:00:00Z"),
    }

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        seen[message.text] += 1
        if message.text in later and message.attempt == 1:
            raise later[message.text]
        if message.text == "never":
            raise Reject("not for us")
        if message.text == "negative":
            raise RetryLater(level=-1)

    await send(kafka_with_duemq, topic, [b"soon", b"level", b"at", b"never", b"negative", b"fine"])
    async with consumer:
        dead = await read_all(kafka_with_duemq, dead_letter_topic(group), 2)
        await until(lambda: seen.total() == 9, "the retries")
    assert seen == {"soon": 2, "level": 2, "at": 2, "never": 1, "negative": 1, "fine": 1}
    assert {(each.value, dict(each.headers)["x-duemq-reason"]) for each in dead} == {
        (b"never", b"rejected"), (b"negative", b"rejected"),
    }  # fmt: skip


async def test_a_handler_that_takes_too_long_has_failed(kafka_with_duemq: str) -> None:
    topic, group, ended = await new_topic(kafka_with_duemq), new_group(), list[str]()
    options = ConsumerOptions(start="first", timeout_s=0.3, retry=Delays(["200ms"]), concurrency=1)
    consumer = Consumer(group, kafka_with_duemq, options)

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        if message.text == "slow" and message.attempt == 1:
            await asyncio.sleep(60)
        ended.append(message.text)

    await send(kafka_with_duemq, topic, [b"slow", b"next"])
    async with consumer:
        await until(lambda: sorted(ended) == ["next", "slow"], "both")
    assert ended == ["next", "slow"] and consumer.counts[topic, "retried"] == 1


async def test_a_message_sent_back_twice_comes_once(kafka_with_duemq: str) -> None:
    """As after a crash between sending back and committing."""
    topic, group = await new_topic(kafka_with_duemq), new_group()
    await send(kafka_with_duemq, topic, [b"pay", b"last"])
    pay, last = (message_of(each, False) for each in await read_all(kafka_with_duemq, topic, 2))
    partitions = await prepare(group, kafka_with_duemq, FIRST, [topic])
    for message, wait_ms in ((pay, 300), (pay, 300), (last, 900)):
        publisher = RetryPublisher(group, kafka_with_duemq, FIRST)
        await publisher.start(partitions)
        await publisher.send(message, Wait("after", wait_ms), "boom")
        await publisher.stop()
    assert [each.value for each in await read_all(kafka_with_duemq, retry_topic(group), 2)] == [b"pay", b"last"]


async def test_no_client_takes_the_name_of_a_retry(kafka_with_duemq: str) -> None:
    """Not by `duemq-name`, in the very shard that decides about the retry. Sent back again, it tells of another error:
    it comes once all the same."""
    topic, group = await new_topic(kafka_with_duemq), new_group()
    await send(kafka_with_duemq, topic, [b"pay", b"last"])
    pay, last = (message_of(each, False) for each in await read_all(kafka_with_duemq, topic, 2))
    partitions = await prepare(group, kafka_with_duemq, FIRST, [topic])
    taken = letter_of(group, pay, Wait("after", 300), "boom").name
    other = [("duemq-topic", topic.encode()), ("duemq-delay", b"1h"), ("duemq-name", taken.encode())]
    await send(
        kafka_with_duemq, "duemq.buffer", [b"other"], headers=other,
        partition=shard_of_name(of_client(taken), partitions),
    )  # fmt: skip
    for message, wait_ms, error in ((pay, 300, "boom"), (pay, 200, "bang"), (last, 900, "boom")):
        publisher = RetryPublisher(group, kafka_with_duemq, FIRST)
        await publisher.start(partitions)
        await publisher.send(message, Wait("after", wait_ms), error)
        await publisher.stop()
    records = await read_all(kafka_with_duemq, retry_topic(group), 2)
    assert [each.value for each in records] == [b"pay", b"last"]
    assert message_of(records[0], True).headers == [], "what marks a return is no header of the message"


async def test_tags_choose_the_handler(kafka_with_duemq: str) -> None:
    topic, group, seen = await new_topic(kafka_with_duemq), new_group(), list[tuple[str, str]]()
    consumer = Consumer(group, kafka_with_duemq, ConsumerOptions(start="first", retry=Delays(["100ms"])))

    @consumer.on(topic, tags="paid || refunded")
    async def money(message: Message) -> None:
        seen.append(("money", message.text))
        if message.attempt == 1:
            raise ValueError("once")

    @consumer.on(topic, tags="sent")
    async def post(message: Message) -> None:
        seen.append(("post", message.text))

    for tag in (b"paid", b"other", b"sent", b"eu,refunded"):
        await send(kafka_with_duemq, topic, [tag], headers=[("tags", tag)])
    async with consumer:
        await until(lambda: len(seen) == 5, "what is meant, two of it twice")
    assert sorted(seen) == sorted([("money", "paid"), ("money", "eu,refunded")] * 2 + [("post", "sent")])
    assert consumer.counts[topic, "skipped"] == 1
    assert await committed(kafka_with_duemq, group, topic) == (4, metadata_of(4))


async def test_ordered_messages_wait_for_a_retry_of_their_key_only(kafka_with_duemq: str) -> None:
    topic, group, seen = await new_topic(kafka_with_duemq), new_group(), list[str]()
    options = ConsumerOptions(start="first", ordered=True, retry=Delays(["700ms", "100ms"]))
    consumer = Consumer(group, kafka_with_duemq, options)

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        seen.append(f"{message.text}.{message.attempt}")
        if message.text == "a0" and message.attempt < 3:
            raise ValueError("not yet")

    for key in (b"a", b"b"):
        await send(kafka_with_duemq, topic, [key + b"%d" % n for n in range(5)], key=key)
    async with consumer:
        await until(lambda: len(seen) == 12, "all of both keys")
    of_a = [each for each in seen if each[0] == "a"]
    assert of_a == ["a0.1", "a0.2", "a0.3", "a1.1", "a2.1", "a3.1", "a4.1"]
    assert [each for each in seen if each[0] == "b"] == [f"b{n}.1" for n in range(5)]
    assert seen.index("b4.1") < seen.index("a0.2")


@pytest.mark.parametrize("room", [{"max_in_hand": 50}, {"max_in_hand_bytes": 50_000}], ids=["count", "bytes"])
async def test_no_more_is_in_hand_than_there_is_room_for(room: dict[str, int], kafka_with_duemq: str) -> None:
    topic, group, release = await new_topic(kafka_with_duemq), new_group(), asyncio.Event()
    options = ConsumerOptions(start="first", concurrency=10, **room)  # type: ignore[arg-type]
    consumer, most = Consumer(group, kafka_with_duemq, options), Counter[str]()

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        most["now"] += 1
        most["at once"] = max(most["at once"], most["now"])
        most["in hand"] = max(most["in hand"], consumer.in_hand)
        await release.wait()
        most["now"] -= 1
        most["done"] += 1

    await send(kafka_with_duemq, topic, [b"%1000d" % n for n in range(300)])
    async with consumer:
        await until(lambda: consumer.in_hand == 50, "as many as there is room for")
        release.set()
        await until(lambda: most["done"] == 300, "all")
    assert (most["at once"], most["in hand"]) == (10, 50)


async def test_two_members_share_and_one_takes_over(kafka_with_duemq: str) -> None:
    topic, group = await new_topic(kafka_with_duemq, 4), new_group()
    seen: tuple[list[Message], list[Message]] = ([], [])
    first, second = (consumer_of(group, kafka_with_duemq, topic, each) for each in seen)

    def assigned(consumer: Consumer) -> int:
        source = consumer.source
        return 0 if source is None else sum(each.topic == topic for each in source.partitions())

    async with first:
        async with second:
            await until(lambda: assigned(first) == assigned(second) == 2, "two partitions each")
            for partition in range(4):
                await send(kafka_with_duemq, topic, [b"%d" % n for n in range(25)], partition=partition)
            await until(lambda: sum(map(len, seen)) == 100, "all")
            assert {len(each) for each in seen} == {50}
        await until(lambda: assigned(first) == 4, "all partitions")
        for partition in range(4):
            await send(kafka_with_duemq, topic, [b"more"], partition=partition)
        await until(lambda: sum(map(len, seen)) == 104, "the rest")
    assert len(seen[0]) == 54


async def test_a_member_that_subscribes_to_something_else_is_named(kafka_with_duemq: str) -> None:
    topic, group = await new_topic(kafka_with_duemq, 4), new_group()
    members = [Consumer(group, kafka_with_duemq, ConsumerOptions(member=name)) for name in ("a", "b", "c")]
    for consumer in members:
        consumer.add(topic, seen_by_nobody, "paid" if consumer.options.member == "c" else "paid || refunded")
    async with members[0], members[1], members[2]:
        await until(lambda: all(consumer.mismatches for consumer in members), "all know")
        for consumer in members:
            (mismatch,) = consumer.mismatches
            assert mismatch.member.startswith("duemq-c-") and mismatch.topic == topic
            assert (mismatch.expected_tags, mismatch.found_tags) == ("paid || refunded", "paid")
        await members[2].stop()
        await until(lambda: not (members[0].mismatches or members[1].mismatches), "it is gone")


async def test_every_member_has_every_message_where_it_is_broadcast(kafka_with_duemq: str, tmp_path: Path) -> None:
    topic, group = await new_topic(kafka_with_duemq, 2), new_group()
    await send(kafka_with_duemq, topic, [b"0"], partition=0)
    seen: dict[str, list[Message]] = {"a": [], "b": []}

    def member(name: str) -> Consumer:
        options = ConsumerOptions(
            mode="broadcasting", start="first", member=name, offsets_folder=tmp_path, commit_interval_s=0.1
        )
        return consumer_of(group, kafka_with_duemq, topic, seen[name], options)

    async with member("a"), member("b"):
        await send(kafka_with_duemq, topic, [b"1"], partition=1)
        await until(lambda: all(len(each) == 2 for each in seen.values()), "both messages at both")
    await send(kafka_with_duemq, topic, [b"2"], partition=1)
    async with member("a"):
        await until(lambda: len(seen["a"]) == 3, "what came meanwhile")
    assert sorted(each.text for each in seen["a"]) == ["0", "1", "2"]


@pytest.mark.parametrize(("start", "expected"), [("first", "old new now"), ("time", "new now"), ("last", "now")])
async def test_where_a_group_begins(start: str, expected: str, kafka_with_duemq: str) -> None:
    topic, group, seen = await new_topic(kafka_with_duemq), new_group(), list[Message]()
    await send(kafka_with_duemq, topic, [b"old"])
    since = (await read_all(kafka_with_duemq, topic, 1))[0].timestamp + 1
    await until(lambda: time.time() * 1000 > since + 1, "the next millisecond")
    await send(kafka_with_duemq, topic, [b"new"])
    options = ConsumerOptions(start=since if start == "time" else start)
    async with consumer_of(group, kafka_with_duemq, topic, seen, options):
        # Even a group that was given nothing has a place, so that its next start skips nothing.
        await until(lambda: committed(kafka_with_duemq, group, topic), "a place")
    await send(kafka_with_duemq, topic, [b"now"])
    async with consumer_of(group, kafka_with_duemq, topic, seen, options):
        await until(lambda: "now" in [each.text for each in seen], "the last message")
    assert " ".join(each.text for each in seen) == expected


async def test_a_kafka_without_duemq_is_told_at_once(kafka: KafkaServers) -> None:
    consumer = Consumer(new_group(), kafka.bootstrap, ConsumerOptions(buffer_topic="no.such.topic"))

    @consumer.on("orders")
    async def handle(message: Message) -> None: ...

    with pytest.raises(Rejected, match=r"no\.such\.topic.*duemq is not running"):
        await consumer.start()


async def test_wrong_use_is_told_at_once() -> None:
    consumer = Consumer("billing")
    with pytest.raises(Rejected, match="needs a handler"):
        await consumer.start()
    with pytest.raises(Rejected, match="BlockingConsumer"):
        consumer.on("orders")(lambda message: None)  # type: ignore[type-var]
    with pytest.raises(Rejected, match="is not a group"):
        Consumer("no good")


async def test_blocking_handlers_run_in_threads(kafka_with_duemq: str) -> None:
    topic, group, seen = await new_topic(kafka_with_duemq), new_group(), Counter[str]()
    options = ConsumerOptions(start="first", retry=Delays(["200ms"]), concurrency=4)
    consumer, together = BlockingConsumer(group, kafka_with_duemq, options), threading.Barrier(4)

    @consumer.on(topic)
    def handle(message: Message) -> None:
        together.wait(SERVERS_S)  # only four at once get past it
        seen[message.text] += 1
        if message.attempt == 1:
            raise ValueError("once")

    with pytest.raises(Rejected, match="use Consumer"):
        consumer.add(topic, seen_by_nobody)  # type: ignore[arg-type, unused-ignore]
    await send(kafka_with_duemq, topic, [b"a", b"b", b"c", b"d"])
    running = asyncio.create_task(asyncio.to_thread(consumer.run))
    await until(lambda: consumer.counts.get((topic, "done")) == 4, "all of them twice")
    consumer.stop()
    await running
    assert seen == {"a": 2, "b": 2, "c": 2, "d": 2} and consumer.counts[topic, "retried"] == 4


async def seen_by_nobody(message: Message) -> None: ...


async def test_a_consumer_has_metrics(kafka_with_duemq: str) -> None:
    topic, group, seen = await new_topic(kafka_with_duemq), new_group(), list[Message]()
    await send(kafka_with_duemq, topic, [b"a", b"b"])
    consumer, registry = consumer_of(group, kafka_with_duemq, topic, seen), CollectorRegistry()
    registry.register(ConsumerCollector(consumer))
    async with consumer:
        await until(lambda: len(seen) == 2, "both")
        of_partition = {"group": group, "topic": topic, "partition": "0"}
        assert registry.get_sample_value("duemq_consumer_commit_offset", of_partition) == 2
        assert registry.get_sample_value("duemq_consumer_pull_offset", of_partition) == 2
    done = {"group": group, "topic": topic, "outcome": "done"}
    assert registry.get_sample_value("duemq_consumer_messages_total", done) == 2
    assert registry.get_sample_value("duemq_consumer_in_hand_messages", {"group": group}) == 0


async def test_the_example_runs(kafka_with_duemq: str) -> None:
    example = Path(__file__).parents[3] / "examples" / "consumer.py"
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-P", example, "--bootstrap", kafka_with_duemq,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(running.communicate(), SERVERS_S)
    assert running.returncode == 0, err.decode()
    lines = [" ".join(line.split()[:3]) for line in out.decode().splitlines()]
    attempts = {"fine": 1, "busy": 2, "flaky": 2, "broken": 3, "hopeless": 1}
    expected = [f"{order} attempt {n}" for order, most in attempts.items() for n in range(1, most + 1)]
    assert sorted(lines) == sorted([*expected, "refund goes to", "broken is a", "hopeless is a"])
