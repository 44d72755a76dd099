"""The places of named consumers on a real Kafka: of any length, for years, and what a missing right says."""

from __future__ import annotations

import asyncio
import base64
import secrets
import struct
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.protocol.commit import OffsetCommitRequest

from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.topics.consumer_offsets import MAX_CURSOR_BYTES
from duemq.bus.topic_cursor import encode_cursor
from duemq.client.lag import LagReader
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import Rejected, Unavailable
from duemq.model.messages.names import PURGES, CursorName, consumer_cursor
from duemq.pipeline.logs.ranges import Logs
from tests.functional.kafka.kafka_bus import frames, new_topic, options, secure
from tests.support.patience import SERVERS_S
from tests.support.servers.kafka_rights import deny_group
from tests.support.servers.real_servers import need_servers

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("connections_are_closed")]

YEAR_MS = 365 * 24 * 3_600_000


def consumer() -> CursorName:
    return consumer_cursor(f"consumer-{secrets.token_hex(4)}")


def cursor(partitions: int) -> bytes:
    """That of a topic with so many partitions."""
    return encode_cursor("t", [secrets.randbits(48) for _ in range(partitions)]).encode()


async def commit_as_before(bus: KafkaBus, topic: str, who: str, place: bytes) -> None:
    """As a duemq before this one stored it: one note, kept for as long as the brokers think fit."""
    note = base64.b64encode(place).decode()
    request = OffsetCommitRequest(f"duemq-place-{who}", -1, "", -1, [(topic, [(0, 0, note)])])

    async def ask() -> None:
        ((_, ((_, code),)),) = (await bus.consumer_offsets.ask_coordinator(f"duemq-place-{who}", request)).topics
        assert code == 0

    await bus.wire.retry(ask)


async def test_an_audit_reads_the_marks_of_purges(bus: KafkaBus, kafka: KafkaServers) -> None:
    purged, other = await new_topic(bus, 2), await new_topic(bus, 1)
    logs = Logs(kafka.bootstrap)
    assert await asyncio.to_thread(logs.purges, [purged, other]) == {}
    await bus.set_consumer_cursor(purged, PURGES, b"1800000000000")
    assert await asyncio.to_thread(logs.purges, [purged, other]) == {purged: 1_800_000_000_000}


async def test_a_group_begins_where_it_is_told_and_not_while_it_is_at_work(bus: KafkaBus, kafka: KafkaServers) -> None:
    topic, group = await new_topic(bus, 2), f"topic.{consumer()}"
    await bus.append({(topic, 0): frames(*"abcde"), (topic, 1): frames(*"fgh")})
    await bus.begin_group(topic, group, (5, 3))
    await bus.begin_group(topic, group, (4, 3))
    await bus.begin_group("not-there", group, ())

    def new_consumer() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic, bootstrap_servers=kafka.bootstrap, group_id=group, auto_offset_reset="earliest",
            enable_auto_commit=False,
        )  # fmt: skip

    async with asyncio.timeout(SERVERS_S):
        member = new_consumer()
        await member.start()
        try:
            await bus.append({(topic, 1): frames("i")})
            records = [await member.getone() for _ in range(2)]
            assert sorted((one.partition, one.offset) for one in records) == [(0, 4), (1, 3)]
            with pytest.raises(Rejected, match=f"consumers of group {group} are at work") as refused:
                await bus.begin_group(topic, group, (0, 0))
            assert refused.value.code == "group_at_work"
        finally:
            await member.stop()
        await bus.begin_group(topic, group, (0, 4))
        member = new_consumer()
        await member.start()
        try:
            assert [(await member.getone()).offset for _ in range(5)] == [0, 1, 2, 3, 4]
        finally:
            await member.stop()


async def test_a_place_of_a_topic_with_two_thousand_partitions(bus: KafkaBus) -> None:
    topic, who = await new_topic(bus, 8), consumer()
    for partitions in (1, 374, 375, 2047, 1, 500, 3):
        place = cursor(partitions)
        await bus.set_consumer_cursor(topic, who, place)
        assert await bus.get_consumer_cursor(topic, who) == place
    largest = b"x" * MAX_CURSOR_BYTES
    await bus.set_consumer_cursor(topic, who, largest)
    assert await bus.get_consumer_cursor(topic, who) == largest
    with pytest.raises(Rejected, match=str(MAX_CURSOR_BYTES)) as refused:
        await bus.set_consumer_cursor(topic, who, largest + b"x")
    assert refused.value.code == "bad_cursor" and await bus.get_consumer_cursor(topic, who) == largest


async def test_a_place_that_an_older_duemq_stored_is_read(bus: KafkaBus) -> None:
    topic, who, place = await new_topic(bus), consumer(), cursor(3)
    await commit_as_before(bus, topic, who, place)
    assert await bus.get_consumer_cursor(topic, who) == place


async def test_a_place_is_kept_for_years_though_it_is_not_stored_again(bus: KafkaBus, kafka: KafkaServers) -> None:
    topic, who = await new_topic(bus), consumer()
    await bus.set_consumer_cursor(topic, who, b"17")
    version, committed, expires = await stored(kafka.bootstrap, f"duemq-place-{who}")
    assert version == 1  # the form that has a time at which it expires
    assert expires - committed > 9 * YEAR_MS


async def stored(bootstrap: str, group: str) -> tuple[int, int, int]:
    """Version, time and end of the record that the brokers keep of a group's commit."""
    reader = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", exclude_internal_topics=False)
    await reader.start()
    try:
        reader.assign([TopicPartition("__consumer_offsets", partition) for partition in range(4)])
        async with asyncio.timeout(SERVERS_S):
            async for record in reader:
                if record.key is None or record.value is None or group.encode() not in record.key:
                    continue
                version, _, length = struct.unpack_from(">hqh", record.value)
                if version == 1:
                    return (version, *struct.unpack_from(">qq", record.value, 12 + length))
                return version, 0, 0
    finally:
        await reader.stop()
    raise AssertionError("the topic ended")


async def test_places_are_no_groups_whose_lag_is_shown(bus: KafkaBus, kafka: KafkaServers) -> None:
    topic, who = await new_topic(bus), consumer()
    await bus.append({(topic, 0): frames("a", "b")})
    await bus.set_consumer_cursor(topic, who, cursor(1))
    async with LagReader(kafka.bootstrap) as reader:
        assert not [group.group for group in await reader.read() if who in group.group]


async def test_who_may_not_read_the_group_is_told_which_right_is_missing(kafka_secure: KafkaServers) -> None:
    who = consumer()
    deny_group(kafka_secure.bootstrap, kafka_secure.plain.name, f"duemq-place-{who}")
    bus = await KafkaBus.open(secure(kafka_secure, "PLAIN"))
    try:
        topic = await new_topic(bus)
        async with asyncio.timeout(SERVERS_S):
            while True:  # until the broker's authorizer knows
                try:
                    await bus.set_consumer_cursor(topic, who, b"17")
                except Unavailable as error:
                    assert f"duemq-place-{who}" in str(error) and "allow READ on groups duemq-place-*" in str(error)
                    break
        with pytest.raises(Unavailable, match=r"allow READ on groups duemq-place-\*"):
            await bus.get_consumer_cursor(topic, who)
        await bus.set_consumer_cursor(topic, consumer(), b"17")
    finally:
        await bus.close()


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.xdist_group("servers")
async def test_brokers_that_forget_offsets_do_not_forget_places(tmp_path: Path) -> None:
    need_servers()
    quick = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "500"}
    with KafkaServers(tmp_path / "kafka", extra=quick) as servers:
        bus = await KafkaBus.open(options(servers.bootstrap))
        try:
            topic, kept, forgotten = await new_topic(bus), consumer(), consumer()
            await bus.set_consumer_cursor(topic, kept, b"17")
            await commit_as_before(bus, topic, forgotten, b"17")
            async with asyncio.timeout(SERVERS_S):
                while await bus.get_consumer_cursor(topic, forgotten) is not None:  # noqa: ASYNC110  # nobody tells
                    await asyncio.sleep(0.2)
            assert await bus.get_consumer_cursor(topic, kept) == b"17"
        finally:
            await bus.close()
