"""Lag as it is read from a real Kafka, against counts made in another way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from aiokafka.structs import TopicPartition

from duemq.client.consumer.kafka.positions import metadata_of
from duemq.client.lag import GroupState, LagReader, PartitionLag
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import Rejected, Unavailable
from duemq.model.topics.group_topics import retry_topic
from tests.functional.consumer.new_member import join
from tests.functional.lag.lag_site import LagSite
from tests.support.patience import SERVERS_S

pytestmark = pytest.mark.anyio
NOW = time.time_ns() // 1_000_000 - 300_000  # brokers refuse what is an hour ahead of them


@pytest.fixture
async def site(kafka: KafkaServers) -> AsyncIterator[LagSite]:
    site = LagSite(kafka.bootstrap)
    await site.start()
    yield site
    await site.stop()


@pytest.fixture
async def reader(kafka: KafkaServers) -> AsyncIterator[LagReader]:
    async with LagReader(kafka.bootstrap) as reader:
        yield reader


async def only(reader: LagReader, group: str, tags: str | None = None) -> PartitionLag:
    """The one partition that a group has to do with."""
    (found,) = await reader.read([group], tags=tags)
    (topic,) = found.topics
    (partition,) = topic.partitions
    return partition


async def test_a_plain_group_at_rest_and_behind(site: LagSite, reader: LagReader) -> None:
    topic, group = await site.topic(2), site.group()
    await site.send(topic, 10)
    await site.send(topic, 3, partition=1)
    async with site.consumer(topic, group_id=group) as consumer:
        read = 0
        async with asyncio.timeout(SERVERS_S):
            while read < 13:
                read += sum(map(len, (await consumer.getmany(timeout_ms=100)).values()))
        await consumer.commit()
        await site.send(topic, 4, partition=1)
        (found,) = await reader.read([group])
        assert (found.state, found.members, found.offline) == ("Stable", 1, False)
    (of_topic,) = found.topics
    assert [(one.partition, one.state, one.commit, one.max, one.lag) for one in of_topic.partitions] == [
        (0, GroupState.OK, 10, 10, 0), (1, GroupState.OK, 3, 7, 4),
    ]  # fmt: skip
    assert all(one.inflight is one.available is one.inflight_ms is None for one in of_topic.partitions)
    assert (found.total.lag, found.total.inflight, found.total.available) == (4, None, None)
    (offline,) = await reader.read([group])
    assert (offline.state, offline.offline, offline.total.lag) == ("Empty", True, 4)


async def test_a_group_of_this_sdk_says_what_is_in_hand(site: LagSite) -> None:
    topic, group = await site.topic(), site.group()
    for number in range(10):
        await site.send(topic, timestamp_ms=NOW + number * 1000)
    await site.commit(group, {(topic, 0): (2, metadata_of(5))})
    async with LagReader(site.bootstrap, clock=lambda: NOW + 60_000) as reader:
        one = await only(reader, group)
        assert (one.lag, one.inflight, one.available, one.pull) == (8, 3, 5, 5)
        assert (one.lag_ms, one.inflight_ms, one.available_ms) == (58_000, 58_000, 55_000)
        await site.commit(group, {(topic, 0): (10, metadata_of(10))})
        one = await only(reader, group)
        assert (one.lag, one.inflight, one.available, one.lag_ms, one.inflight_ms, one.available_ms) == (0,) * 6


async def test_a_message_of_tomorrow_is_no_age_below_zero(site: LagSite) -> None:
    topic, group = await site.topic(), site.group()
    await site.send(topic, timestamp_ms=NOW)
    await site.commit(group, {(topic, 0): (0, metadata_of(0))})
    async with LagReader(site.bootstrap, clock=lambda: NOW - 5) as reader:
        one = await only(reader, group)
    assert (one.lag, one.lag_ms, one.available_ms, one.inflight, one.inflight_ms) == (1, 0, 0, 0, 0)


@pytest.mark.parametrize("abort", [False, True])
async def test_markers_at_the_end_are_no_lag(site: LagSite, reader: LagReader, abort: bool) -> None:
    """A consumer that commits the offset after its last message has nothing to do, whatever transactions leave."""
    topic, group = await site.topic(), site.group()
    await site.send(topic, 2)  # 0, 1
    await site.in_transaction(topic, 3)  # 2, 3, 4, and the marker at 5
    await site.in_transaction(topic, 2, abort=abort)  # 6, 7, and the marker at 8
    after_last = 5 if abort else 8
    await site.commit(group, {(topic, 0): (after_last, metadata_of(after_last))})
    one = await only(reader, group)
    assert (one.max, one.commit) == (9, after_last)
    assert (one.lag, one.inflight, one.available, one.lag_ms, one.available_ms) == (0,) * 5
    await site.commit(group, {(topic, 0): after_last})
    one = await only(reader, group)
    assert (one.lag, one.lag_ms, one.inflight) == (0, 0, None)


async def test_markers_before_the_pull_offset_are_not_in_hand(site: LagSite, reader: LagReader) -> None:
    topic, group = await site.topic(), site.group()
    await site.in_transaction(topic, 3)  # 0, 1, 2, and the marker at 3
    await site.commit(group, {(topic, 0): (3, metadata_of(4))})
    assert (await only(reader, group)).inflight == 0
    await site.commit(group, {(topic, 0): (1, metadata_of(3))})
    one = await only(reader, group)
    assert (one.lag, one.inflight, one.available) == (2, 2, 0)
    await site.send(topic)  # 4
    one = await only(reader, group)
    assert (one.lag, one.inflight, one.available) == (4, 2, 2)  # the marker in between takes an offset
    await site.commit(group, {(topic, 0): (3, metadata_of(4))})
    one = await only(reader, group)
    assert (one.lag, one.inflight, one.available) == (1, 0, 1)


async def test_an_open_transaction_is_not_there_yet(site: LagSite, reader: LagReader) -> None:
    topic, group = await site.topic(), site.group()
    await site.send(topic, 4)
    await site.commit(group, {(topic, 0): 1})
    async with site.transactions() as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"open", partition=0)
        await site.send(topic, 5)  # behind it: nobody can read these either
        one = await only(reader, group)
        assert (one.max, one.lag) == (4, 3)
        await producer.abort_transaction()
    await site.commit(group, {(topic, 0): 99})
    one = await only(reader, group)
    assert (one.state, one.lag, one.lag_ms) == (GroupState.AHEAD, 0, 0)


async def test_what_retention_removed_is_lost_and_no_lag(site: LagSite, reader: LagReader) -> None:
    topic, group = await site.topic(), site.group()
    await site.send(topic, 20)
    await site.commit(group, {(topic, 0): (5, metadata_of(9))})
    await site.cut(topic, 12)
    one = await only(reader, group)
    assert (one.state, one.start, one.lag, one.inflight, one.available, one.lost) == (
        GroupState.REMOVED,
        12,
        8,
        0,
        8,
        7,
    )
    await site.cut(topic, 20)
    one = await only(reader, group)
    assert (one.lag, one.lag_ms, one.lost) == (0, 0, 15)


async def test_a_partition_without_a_commit_says_so(site: LagSite, reader: LagReader) -> None:
    topic, other, group = await site.topic(3), await site.topic(), site.group()
    await site.send(topic, 5)
    await site.commit(group, {(topic, 0): (1, metadata_of(2))})
    (found,) = await reader.read([group])
    states = [one.state for one in found.topics[0].partitions]
    assert states == [GroupState.OK, GroupState.NO_COMMIT, GroupState.NO_COMMIT]
    assert found.topics[0].partitions[1].lag is found.topics[0].partitions[1].lag_ms is None
    total = found.total
    assert (total.partitions, total.unknown, total.lag, total.inflight, total.available) == (3, 2, 4, 1, 3)
    # Asked for by name a topic is shown that the group never read; else it is left out.
    (found,) = await reader.read([group], topics=[other])
    assert [(one.topic, one.state) for one in found.topics[0].partitions] == [(other, GroupState.NO_COMMIT)]
    assert (found.total.lag, found.total.unknown) == (None, 1)
    assert group not in [one.group for one in await reader.read(topics=[other])]


async def test_partitions_of_a_member_that_has_committed_nothing_are_there(site: LagSite, reader: LagReader) -> None:
    topic, group = await site.topic(), site.group()
    async with site.consumer(topic, group_id=group) as consumer:
        async with asyncio.timeout(SERVERS_S):
            while not consumer.assignment():
                await consumer.getmany(timeout_ms=50)
        one = await only(reader, group)
    assert (one.topic, one.state, one.commit) == (topic, GroupState.NO_COMMIT, None)


async def test_a_group_of_the_newer_protocol(site: LagSite, reader: LagReader) -> None:
    """To the older request it looks dead, which is not offline."""
    topic, group = await site.topic(), site.group()
    await site.send(topic, 3)
    await join(site.admin._client, group, topic)
    async with asyncio.timeout(SERVERS_S):
        while True:
            (found,) = await reader.read([group])
            if found.state == "Stable":
                break
    assert (found.members, found.offline) == (1, False)
    assert [(one.topic, one.total.unknown) for one in found.topics] == [(topic, 1)]


async def test_retry_topics_are_apart(site: LagSite, reader: LagReader) -> None:
    topic, group = await site.topic(), site.group()
    own, foreign = await site.topic(name=retry_topic(group)), await site.topic(name=retry_topic(site.group()))
    for where, count in ((topic, 3), (own, 5), (foreign, 7)):
        await site.send(where, count)
        await site.commit(group, {(where, 0): 0})
    (found,) = await reader.read([group])
    assert [(one.topic, one.retry, one.total.lag) for one in found.topics] == [
        (topic, False, 3), (foreign, False, 7), (own, True, 5),
    ]  # fmt: skip
    assert (found.total.lag, found.retry_total.lag) == (10, 5)


async def test_a_topic_that_was_deleted(site: LagSite, reader: LagReader) -> None:
    """Kafka forgets the offsets of a group without members; a member's commit may come after that."""
    topic, kept, group = await site.topic(), await site.topic(), site.group()
    await site.send(kept, 2)
    await site.commit(group, {(topic, 0): 3, (kept, 0): 1})
    await site.delete(topic)
    (found,) = await reader.read([group])
    rest = {one.topic: one.partitions[0] for one in found.topics}
    assert rest.pop(kept).lag == 1
    assert [(one.state, one.lag) for one in rest.values()] in ([], [(GroupState.GONE, None)])
    assert found.total.lag == 1


async def test_what_does_not_exist_is_named(site: LagSite, reader: LagReader) -> None:
    topic, group = await site.topic(), site.group()
    with pytest.raises(Rejected, match=group) as refused:
        await reader.read([group])
    assert (refused.value.code, refused.value.field) == ("unknown_group", "groups")
    await site.commit(group, {(topic, 0): 0})
    with pytest.raises(Rejected, match="nowhere") as refused:
        await reader.read([group], topics=["nowhere"])
    assert (refused.value.code, refused.value.field) == ("unknown_topic", "topics")
    with pytest.raises(Rejected, match="not a tag"):
        await reader.read([group], tags="a || *")


async def test_all_groups_at_once(site: LagSite, reader: LagReader) -> None:
    topic = await site.topic()
    await site.send(topic, 9)
    groups = sorted(site.group() for _ in range(20))
    for number, group in enumerate(groups):
        await site.commit(group, {(topic, 0): (number % 9, metadata_of(9))})
    found = await reader.read(topics=[topic])
    assert [(one.group, one.total.lag, one.total.inflight) for one in found] == [
        (group, 9 - number % 9, 9 - number % 9) for number, group in enumerate(groups)
    ]
    assert {one.group for one in await reader.read()} >= set(groups)


async def test_a_small_backlog_is_counted_by_tag(site: LagSite, reader: LagReader) -> None:
    topic, group = await site.topic(2), site.group()
    await site.send(topic, 3)
    await site.send(topic, 5, headers=[("duemq-labels", b"new, paid")])
    await site.in_transaction(topic, 4)
    await site.send(topic, 2, headers=[("tags", b"refunded"), ("tags", b"x")])
    await site.send(topic, 7, partition=1, headers=[("tags", b"paid")])
    await site.commit(group, {(topic, 0): 4, (topic, 1): 0})
    for tags, messages in (("paid", 11), ("paid || refunded", 13), ("nothing", 0), ("*", 17)):
        (found,) = await reader.read([group], tags=tags)
        told = found.total.matching
        assert told is not None and told == (messages, True), tags
    assert found.total.lag == 11 + 7  # with the marker
    (found,) = await reader.read([group])
    assert found.total.matching is None


async def test_of_a_large_backlog_the_oldest_messages_are_counted(
    site: LagSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duemq.client.lag.scan._READ_BYTES", 16 << 10)
    topic, group = await site.topic(2), site.group()
    for _ in range(10):
        await site.send(topic, 120, headers=[("tags", b"paid")])
        await site.send(topic, 80)
        await site.in_transaction(topic, 40, abort=True)
        await site.send(topic, 200, partition=1)
    await site.commit(group, {(topic, 0): 0, (topic, 1): 0})
    async with LagReader(site.bootstrap, max_offsets=100) as reader:
        (found,) = await reader.read([group], tags="paid")
        some = found.topics[0].total.matching
        assert some is not None and not some.exact and 0 < some.messages < 1200
    async with LagReader(site.bootstrap) as reader:
        (found,) = await reader.read([group], tags="paid")
        assert found.total.matching == (1200, True)
        (found,) = await reader.read([group], tags="*")
        assert found.total.matching == (4000, True)


async def test_batches_that_do_not_fit_beside_each_other(site: LagSite, reader: LagReader) -> None:
    topic, group = await site.topic(4), site.group()
    for partition in range(4):
        for _ in range(3):
            await site.producer.send_and_wait(topic, bytes(100_000), partition=partition, headers=[("tags", b"a")])
    await site.commit(group, {(topic, partition): (1, metadata_of(2)) for partition in range(4)})
    (found,) = await reader.read([group], tags="a")
    assert [(one.lag, one.inflight, one.available) for one in found.topics[0].partitions] == [(2, 1, 1)] * 4
    assert found.total.matching is not None and found.total.matching.messages == 8
    assert all(one.available_ms is not None and one.available_ms < 600_000 for one in found.topics[0].partitions)


async def test_under_load_it_is_within_one_poll(site: LagSite, reader: LagReader) -> None:
    """While others send and consume, a reading lies between what was counted before and after it."""
    topic, group = await site.topic(), site.group()
    where = TopicPartition(topic, 0)
    await site.send(topic, 500)
    stop = asyncio.Event()

    async def send() -> None:
        while not stop.is_set():
            await site.send(topic, 50)

    async with site.consumer(topic, group_id=group) as consumer, site.consumer() as counter:

        async def consume() -> None:
            while not stop.is_set():
                pulled = await consumer.getmany(timeout_ms=20, max_records=100)
                done = sum(map(len, pulled.values())) // 2
                place = await consumer.position(where)
                await consumer.commit({where: (max(place - done, 0), metadata_of(place))})

        async with asyncio.timeout(SERVERS_S):
            while not consumer.assignment():
                await consumer.getmany(timeout_ms=50, max_records=1)
        await consumer.commit({where: 0})
        tasks = [asyncio.create_task(send()), asyncio.create_task(consume())]
        for _ in range(20):
            committed, end = await consumer.committed(where), (await counter.end_offsets([where]))[where]
            one = await only(reader, group)
            committed_then, end_then = await consumer.committed(where), (await counter.end_offsets([where]))[where]
            assert one.lag is not None and end - committed_then <= one.lag <= end_then - committed
            if one.inflight is not None and one.available is not None:
                assert one.lag == one.inflight + one.available
        stop.set()
        await asyncio.gather(*tasks)


async def test_nobody_there(site: LagSite) -> None:
    reader = LagReader("127.0.0.1:1", kafka={"request_timeout_ms": 2_000})
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        await reader.start()
    with pytest.raises(RuntimeError, match="async with"):
        await reader.read()
