"""A broker is killed, a log forgets what was next, a handler is gone: a consumer lets nothing end in silence."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.structs import TopicPartition

from duemq.client.consumer import Consumer, ConsumerOptions, Delays, Message
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.topics.group_topics import dead_letter_topic
from tests.e2e.server import Server
from tests.support.consumer.consumer_site import committed, new_group, new_topic, read_all, send, until
from tests.support.servers.real_servers import need_servers

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServers]:
    """A broker for these tests alone, with a duemq on it."""
    need_servers()
    folder: Path = tmp_path_factory.mktemp("consumer-outage")
    with ExitStack() as stack:
        servers = stack.enter_context(KafkaServers(folder / "kafka"))
        stack.enter_context(Server(folder / "data", "--kafka", servers.bootstrap)).start()
        yield servers


async def test_a_broker_is_killed_and_comes_back(
    kafka: KafkaServers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.client.consumer.kafka.retry_publisher._SEND_S", 2.0)
    topic, group, seen = await new_topic(kafka.bootstrap, 2), new_group(), Counter[str]()
    options = ConsumerOptions(start="first", retry=Delays(["100ms"] * 3), commit_interval_s=0.5)
    consumer, failing, gone = Consumer(group, kafka.bootstrap, options), asyncio.Event(), asyncio.Event()

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        seen[message.text] += 1
        if message.text == "retried" and message.attempt == 1:
            failing.set()
            await gone.wait()
            raise ValueError("when nobody can take it back")

    async with consumer:
        await send(kafka.bootstrap, topic, [b"before", b"retried"], partition=0)
        await failing.wait()
        await send(kafka.bootstrap, topic, [b"meanwhile"], partition=0)
        await asyncio.to_thread(kafka.kill)
        gone.set()
        await until(lambda: "return of" in caplog.text, "an attempt to send it back that fails")
        await asyncio.to_thread(kafka.start)
        await until(lambda: seen["retried"] >= 2, "the retry, once the broker is back")
        await send(kafka.bootstrap, topic, [b"after"], partition=1)
        await until(lambda: seen["after"], "what came after")

        async def stored() -> bool:
            places = [await committed(kafka.bootstrap, group, topic, number) for number in range(2)]
            return [place and place[0] for place in places] == [3, 1]

        await until(stored, "commits of all of it")
    assert seen.keys() == {"before", "retried", "meanwhile", "after"}


async def test_what_the_log_has_forgotten_is_told(kafka: KafkaServers, caplog: pytest.LogCaptureFixture) -> None:
    topic, group, seen = await new_topic(kafka.bootstrap), new_group(), list[str]()
    await send(kafka.bootstrap, topic, [b"0"])

    def member() -> Consumer:
        consumer = Consumer(group, kafka.bootstrap, ConsumerOptions(start="first"))

        @consumer.on(topic)
        async def handle(message: Message) -> None:
            seen.append(message.text)

        return consumer

    async with member():
        await until(lambda: seen == ["0"], "the first")
    await send(kafka.bootstrap, topic, [b"1", b"2", b"3"])
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=3)})
    await admin.close()
    with caplog.at_level(logging.ERROR, "duemq.client.consumer"):
        async with member():
            await until(lambda: seen == ["0", "3"], "what is left")
    told = f"consumer of {topic}-0 was at offset 1, and the log now starts at 3: records in between are lost"
    assert told in caplog.text


async def test_a_retry_without_a_handler_is_a_dead_letter(kafka: KafkaServers) -> None:
    """A topic was taken out of the program while its messages waited for a retry."""
    old, new, group = await new_topic(kafka.bootstrap), await new_topic(kafka.bootstrap), new_group()
    await send(kafka.bootstrap, old, [b"pay"])
    options = ConsumerOptions(start="first", retry=Delays(["1s"]))
    consumer = Consumer(group, kafka.bootstrap, options)

    @consumer.on(old)
    async def fail(message: Message) -> None:
        raise ValueError("boom")

    async with consumer:
        await until(lambda: consumer.counts[old, "retried"], "sent back")
    following = Consumer(group, kafka.bootstrap, options)

    @following.on(new)
    async def handle(message: Message) -> None: ...

    async with following:
        (letter,) = await read_all(kafka.bootstrap, dead_letter_topic(group), 1)
    headers = dict(letter.headers)
    assert (letter.value, headers["x-duemq-topic"], headers["x-duemq-reason"]) == (b"pay", old.encode(), b"no_handler")


async def test_a_stop_finishes_what_handlers_have_and_leaves_the_rest(kafka: KafkaServers) -> None:
    topic, group, release = await new_topic(kafka.bootstrap), new_group(), asyncio.Event()
    began, ended = list[str](), list[str]()
    consumer = Consumer(group, kafka.bootstrap, ConsumerOptions(start="first", concurrency=2))

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        began.append(message.text)
        await release.wait()
        ended.append(message.text)

    await send(kafka.bootstrap, topic, [b"%d" % number for number in range(10)])
    await consumer.start()
    await until(lambda: len(began) == 2 and consumer.in_hand == 10, "two in handlers, eight waiting")
    stopping = asyncio.create_task(consumer.stop())
    await until(lambda: consumer.in_hand == 2, "the rest is let go")
    release.set()
    await stopping
    assert began == ["0", "1"] and sorted(ended) == ["0", "1"] and consumer.in_hand == 0
    place = await committed(kafka.bootstrap, group, topic)
    assert place is not None and place[0] == 2


@pytest.mark.parametrize("leaves", [False, True], ids=["another member comes", "it stops"])
async def test_while_partitions_go_nothing_is_stored_but_what_is_done(
    leaves: bool, kafka: KafkaServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka still tells how far it has pulled, and Kafka still takes commits: those would skip what was in hand."""
    monkeypatch.setattr("duemq.client.consumer.consumer._SETTLE_S", 0.0)
    topic, group, held, seen = await new_topic(kafka.bootstrap, 2), new_group(), list[str](), list[str]()
    options = ConsumerOptions(start="first", commit_interval_s=0.02, stop_s=1.5, concurrency=2)

    def member(began: list[str], takes_s: float) -> Consumer:
        consumer = Consumer(group, kafka.bootstrap, options)

        @consumer.on(topic)
        async def handle(message: Message) -> None:
            began.append(message.text)
            await asyncio.sleep(takes_s)

        return consumer

    for partition in range(2):
        await send(kafka.bootstrap, topic, [b"%d-%d" % (partition, n) for n in range(50)], partition=partition)
    async with member(held, 3600.0) as slow:
        await until(lambda: slow.in_hand == 100, "all in hand")
        if not leaves:
            async with member(seen, 0.0):
                await until(lambda: len(set(seen)) == 50, "a partition of its own, from its beginning")
    async with member(seen, 0.0):
        await until(lambda: len(set(seen)) == 100, "each message")
