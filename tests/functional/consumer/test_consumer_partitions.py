"""Partitions and topics that come, go and come again while a group reads them, on a real Kafka. No duemq is needed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import TopicPartition

from duemq.client.consumer import Consumer, ConsumerOptions, Message
from duemq.client.consumer.kafka.positions import metadata_of
from duemq.client.consumer.kafka.rebalance import Rebalance
from duemq.client.consumer.kafka.source import KafkaMessageSource
from duemq.client.consumer.kafka.topics import prepare
from duemq.client.consumer.message import KafkaRecord
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import Rejected
from duemq.model.topics.group_topics import dead_letter_topic, retry_topic
from tests.functional.kafka.kafka_bus import batch_with_a_bad_name
from tests.support.consumer.consumer_site import (
    add_partitions,
    admin_of,
    committed,
    delete_topic,
    known_to,
    make_topic,
    new_group,
    new_topic,
    send,
    until,
)
from tests.support.patience import SERVERS_S

pytestmark = pytest.mark.anyio

BUFFER_BYTES = 3 << 20
SOON = {"metadata_max_age_ms": 300}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def buffer(kafka: KafkaServers) -> str:
    """A topic in the place of duemq's buffer."""
    return await new_topic(kafka.bootstrap, 1, **{"max.message.bytes": str(BUFFER_BYTES)})


class Member:
    """A consumer of one group, and what it was given."""

    def __init__(self, bootstrap: str, buffer: str, group: str, *topics: str, **options: object) -> None:
        settings: dict[str, object] = {"kafka": SOON, "commit_interval_s": 0.2, "stop_s": 5.0} | options
        options_ = ConsumerOptions(buffer_topic=buffer, **settings)  # type: ignore[arg-type]
        self.consumer = Consumer(group, bootstrap, options_, watcher=self)
        self.seen: list[str] = []
        self.logs: list[tuple[str, str]] = []  # topics and ids of logs, once in a row
        self.messages: list[Message] = []
        for topic in topics:
            self.consumer.add(topic, self.handle)

    async def handle(self, message: Message) -> None:
        self.messages.append(message)
        self.seen.append(message.text)

    def pulled(self, partition: TopicPartition, log_id: str, offsets: Sequence[int], start: int) -> None:
        if (log := (partition.topic, log_id)) not in self.logs[-1:]:
            self.logs.append(log)

    def ended(self, record: KafkaRecord) -> None: ...

    def has(self, *partitions: TopicPartition) -> bool:
        """Whether it has begun with these."""
        return self.consumer.places.keys() >= set(partitions)

    async def __aenter__(self) -> Member:
        await self.consumer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.consumer.stop()


@pytest.mark.parametrize("mode", ["clustering", "broadcasting"])
async def test_a_partition_that_is_added_is_read_from_its_first_record(
    mode: str, kafka: KafkaServers, buffer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = await new_topic(kafka.bootstrap), new_group()
    await send(kafka.bootstrap, topic, [b"before the group"], partition=0)
    noticed = asyncio.Event()
    look = KafkaMessageSource.check_partitions

    async def held(source: KafkaMessageSource) -> frozenset[str]:
        if mode == "broadcasting":
            await noticed.wait()
        return await look(source)

    monkeypatch.setattr(KafkaMessageSource, "check_partitions", held)
    monkeypatch.setattr("duemq.client.consumer.kafka.source._LOOK_SOON_S", (0.2,) * 100)
    async with Member(kafka.bootstrap, buffer, group, topic, mode=mode, offsets_folder=tmp_path) as member:
        await until(lambda: member.has(TopicPartition(topic, 0)), "it has begun")
        await send(kafka.bootstrap, topic, [b"p0-a"], partition=0)
        await until(lambda: member.seen == ["p0-a"], "what comes from now on")
        await add_partitions(kafka.bootstrap, topic, 2)
        await send(kafka.bootstrap, topic, [b"p1-a", b"p1-b"], partition=1)
        noticed.set()
        await until(lambda: member.has(TopicPartition(topic, 1)), "the new partition")
        await send(kafka.bootstrap, topic, [b"p1-c"], partition=1)
        await until(lambda: "p1-c" in member.seen, "the last")
    assert member.seen == ["p0-a", "p1-a", "p1-b", "p1-c"]


@pytest.mark.parametrize("mode", ["clustering", "broadcasting"])
async def test_a_topic_that_is_not_there_keeps_nobody_down(
    mode: str, kafka: KafkaServers, buffer: str, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("duemq.client.consumer.kafka.source._LOOK_SOON_S", (0.2,) * 1_000)
    there, group = await new_topic(kafka.bootstrap), new_group()
    absent = f"{there}-later"
    member = Member(kafka.bootstrap, buffer, group, there, absent, mode=mode, offsets_folder=tmp_path)
    async with member:
        assert f"starts without missing topics, and keeps looking for them: {absent}" in caplog.text
        await until(lambda: member.has(TopicPartition(there, 0)), "it has begun with the other one")
        await send(kafka.bootstrap, there, [b"there"])
        await until(lambda: member.seen == ["there"], "the other one is read")
        await make_topic(kafka.bootstrap, absent, 2)
        for partition in range(2):
            await send(kafka.bootstrap, absent, [b"%d-a" % partition, b"%d-b" % partition], partition=partition)
        await until(lambda: len(member.seen) == 5, "all that the new one ever had")
    assert sorted(member.seen) == ["0-a", "0-b", "1-a", "1-b", "there"]


@pytest.mark.parametrize("mode", ["clustering", "broadcasting"])
async def test_a_topic_that_is_made_while_nobody_runs_is_read_from_its_first_record(
    mode: str, kafka: KafkaServers, buffer: str, tmp_path: Path
) -> None:
    there, group = await new_topic(kafka.bootstrap), new_group()
    absent, old = f"{there}-later", await new_topic(kafka.bootstrap)
    await send(kafka.bootstrap, old, [b"old"])

    def member(*topics: str) -> Member:
        return Member(kafka.bootstrap, buffer, group, *topics, mode=mode, offsets_folder=tmp_path)

    async with member(there, absent) as first:
        await until(lambda: first.has(TopicPartition(there, 0)), "it has begun")
        if mode == "clustering":
            await until(lambda: known_to(kafka.bootstrap, group, there, absent), "what the group knows is stored")
    await make_topic(kafka.bootstrap, absent)
    await send(kafka.bootstrap, absent, [b"while nobody ran"])
    async with member(there, absent, old) as second:  # `old` is new to the group, and begins as the options say
        await until(lambda: second.seen == ["while nobody ran"], "what was sent meanwhile")
        await until(lambda: second.has(TopicPartition(old, 0)), "it has begun with the other one")
        await send(kafka.bootstrap, old, [b"new"])
        await until(lambda: len(second.seen) == 2, "what came then")
    assert second.seen == ["while nobody ran", "new"]


async def test_a_group_that_begins_skips_nothing_when_its_members_die_at_once(
    kafka: KafkaServers, buffer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition was there when the group began, and its member died before it stored anything."""
    topic, group = await new_topic(kafka.bootstrap, 4), new_group()
    for partition in range(4):
        await send(kafka.bootstrap, topic, [b"old"] * (partition + 1), partition=partition)
    async with Member(kafka.bootstrap, buffer, group, topic, commit_interval_s=3600.0) as first:

        async def nothing(*_: object) -> bool:
            return False

        monkeypatch.setattr(first.consumer.source, "save", nothing)
        await until(lambda: committed(kafka.bootstrap, group, topic, 0), "the group has begun")
    places = [await committed(kafka.bootstrap, group, topic, partition) for partition in range(4)]
    assert [place and place[0] for place in places] == [1, 2, 3, 4]
    for partition in range(4):
        await send(kafka.bootstrap, topic, [b"%d" % partition], partition=partition)
    async with Member(kafka.bootstrap, buffer, group, topic) as second:
        await until(lambda: len(second.seen) >= 4, "what came meanwhile")
    assert sorted(second.seen) == ["0", "1", "2", "3"]


async def test_members_that_begin_together_begin_once(kafka: KafkaServers, buffer: str) -> None:
    topic, group = await new_topic(kafka.bootstrap, 4), new_group()
    for partition in range(4):
        await send(kafka.bootstrap, topic, [b"old"], partition=partition)
    members = [Member(kafka.bootstrap, buffer, group, topic, member=name) for name in "abc"]
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(each) for each in members))
        every = {TopicPartition(topic, partition) for partition in range(4)}
        await until(lambda: every <= {place for each in members for place in each.consumer.places}, "all have begun")
        for partition in range(4):
            await send(kafka.bootstrap, topic, [b"%d" % partition], partition=partition)
        await until(lambda: sum(len(each.seen) for each in members) >= 4, "all of them")
    assert sorted(text for each in members for text in each.seen) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("running", [True, False], ids=["while it runs", "while nobody runs"])
async def test_a_topic_made_anew_is_read_from_its_first_record(running: bool, kafka: KafkaServers, buffer: str) -> None:
    topic, other, group = await new_topic(kafka.bootstrap), await new_topic(kafka.bootstrap), new_group()
    logs: list[tuple[str, str]] = []

    async def anew() -> None:
        await delete_topic(kafka.bootstrap, topic)
        await make_topic(kafka.bootstrap, topic)
        await send(kafka.bootstrap, topic, [b"new-0", b"new-1"])

    async with Member(kafka.bootstrap, buffer, group, topic, other) as member:
        await until(lambda: member.has(TopicPartition(topic, 0), TopicPartition(other, 0)), "it has begun")
        await send(kafka.bootstrap, topic, [b"old-%d" % number for number in range(5)])
        await until(lambda: len(member.seen) == 5, "the old ones")
        await until(lambda: known_to(kafka.bootstrap, group, topic, other), "what the group knows is stored")
        if running:
            await anew()
            await until(lambda: len(member.seen) == 7, "the new ones")
            await send(kafka.bootstrap, other, [b"other"])
            await until(lambda: len(member.seen) == 8, "another topic, which goes on")
        logs += member.logs
    if not running:
        await anew()
        async with Member(kafka.bootstrap, buffer, group, topic, other) as member:
            await until(lambda: len(member.seen) == 2, "the new ones")
        logs += member.logs
    assert [of for of, _ in logs] == [topic, topic] + [other] * running
    assert all(id_ for _, id_ in logs) and logs[0] != logs[1], "what numbers messages can tell the two logs apart"
    expected = [f"old-{number}" for number in range(5)] * running + ["new-0", "new-1"] + ["other"] * running
    assert member.seen == expected


@pytest.mark.parametrize(
    ("place", "metadata", "told"),
    [(50, "", "ends at 4, before offset 50"), (3, metadata_of(3, "f" * 32), "is another one now")],
    ids=["shorter", "longer"],
)
async def test_offsets_of_a_log_that_is_gone_skip_nothing(
    place: int, metadata: str, told: str, kafka: KafkaServers, buffer: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic was made anew, and a member that had not noticed stored how far it was in the old one."""
    topic, group = await new_topic(kafka.bootstrap), new_group()
    await send(kafka.bootstrap, topic, [b"0", b"1", b"2", b"3"])
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    consumer.assign([TopicPartition(topic, 0)])
    await consumer.commit({TopicPartition(topic, 0): (place, metadata)})
    await consumer.stop()
    async with Member(kafka.bootstrap, buffer, group, topic) as member:
        await until(lambda: set(member.seen) == {"0", "1", "2", "3"}, "all of it")

        async def stored() -> bool:
            found = await committed(kafka.bootstrap, group, topic)
            return found is not None and found[0] == 4

        await until(stored, "its place")
    assert f"topic {topic} was recreated or truncated: the log of {topic}-0 {told}" in caplog.text
    async with Member(kafka.bootstrap, buffer, group, topic) as again:
        await send(kafka.bootstrap, topic, [b"4"])
        await until(lambda: again.seen, "the next")
    assert again.seen == ["4"], "it goes on from there"


async def test_a_topic_that_goes_takes_no_other_with_it(kafka: KafkaServers, buffer: str) -> None:
    """What was done of it cannot be stored any more: aiokafka's commit would wait for a topic of that name."""
    going, staying, group = await new_topic(kafka.bootstrap), await new_topic(kafka.bootstrap), new_group()
    held = asyncio.Event()
    member = Member(kafka.bootstrap, buffer, group, staying, commit_interval_s=3600.0, start="first")

    async def handle(message: Message) -> None:
        await held.wait()

    member.consumer.add(going, handle)
    await send(kafka.bootstrap, going, [b"gone"])
    async with member:
        await until(lambda: member.consumer.in_hand == 1, "it is in hand")
        await until(lambda: committed(kafka.bootstrap, group, going), "as such it is stored")
        await delete_topic(kafka.bootstrap, going)
        held.set()
        await until(lambda: not member.has(TopicPartition(going, 0)), "the partition is gone")
        await send(kafka.bootstrap, staying, [b"here"])
        await until(lambda: member.seen == ["here"], "the other topic")


async def test_a_record_of_a_stranger_stops_nobody(kafka: KafkaServers, buffer: str) -> None:
    topic, group = await new_topic(kafka.bootstrap), new_group()
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
        batch = batch_with_a_bad_name(producer)
        await (await producer.send_batch(batch, topic, partition=0))
    await send(kafka.bootstrap, topic, [b"four"])
    async with Member(kafka.bootstrap, buffer, group, topic, start="first") as member:
        await until(lambda: len(member.seen) == 4, "all")
    assert member.seen == ["one", "two", "three", "four"]
    assert member.messages[1].headers == [("a\ufffd\ufffdz", b"1")]


async def test_a_second_process_cannot_be_the_same_broadcasting_member(
    kafka: KafkaServers, buffer: str, tmp_path: Path
) -> None:
    topic, group = await new_topic(kafka.bootstrap), new_group()

    def member() -> Member:
        return Member(kafka.bootstrap, buffer, group, topic, mode="broadcasting", offsets_folder=tmp_path, member="a")

    async with member():
        with pytest.raises(Rejected, match=r"a\.json") as refused:
            await member().consumer.start()
        assert refused.value.code == "member_taken"
    async with member() as again:
        await send(kafka.bootstrap, topic, [b"1"])
        await until(lambda: again.seen == ["1"], "it is free again")


async def test_retries_and_dead_letters_take_what_the_buffer_takes(
    kafka: KafkaServers, buffer: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = await new_topic(kafka.bootstrap), new_group()
    await make_topic(kafka.bootstrap, dead_letter_topic(group), 1, {"retention.ms": "777000"})  # as one made before
    caplog.set_level(logging.INFO, "duemq.client.consumer")
    assert await prepare(group, kafka.bootstrap, ConsumerOptions(buffer_topic=buffer), [topic]) == 1
    own = [retry_topic(group), dead_letter_topic(group)]
    assert f"topic {own[1]} now accepts messages of" in caplog.text
    asked = [
        ConfigResource(ConfigResourceType.TOPIC, each, {"max.message.bytes": "", "retention.ms": ""}) for each in own
    ]
    async with admin_of(kafka.bootstrap) as admin:
        (answer,) = await admin.describe_configs(asked)
        counts = {each["topic"]: len(each["partitions"]) for each in await admin.describe_topics(own)}
    found = {resource[3]: {entry[0]: entry[1] for entry in resource[4]} for resource in answer.resources}
    assert counts == {own[0]: 4, own[1]: 1}
    assert all(int(found[each]["max.message.bytes"]) > BUFFER_BYTES for each in own)
    assert found[own[1]]["retention.ms"] == "777000", "its other settings are as they were"


async def test_a_source_takes_options_that_only_consumers_have(kafka: KafkaServers) -> None:
    async def nothing(_: Collection[TopicPartition]) -> None: ...

    topic, group = await new_topic(kafka.bootstrap), new_group()
    options = ConsumerOptions(kafka={"group_instance_id": "one", "max_partition_fetch_bytes": 1 << 20, **SOON})
    source = KafkaMessageSource(group, kafka.bootstrap, options, [topic], (), Rebalance(nothing, nothing))
    async with asyncio.timeout(SERVERS_S):
        await source.start()
        assert source.partitions() == {TopicPartition(topic, 0)}
        await source.stop()
