"""What every plug of the bus promises; see `bus/base.py`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from duemq.bus.base import AppendResult, Bus, UnknownTopic
from duemq.bus.embedded.bus import EmbeddedBus
from duemq.model.errors import Fenced, StoreFailed, Unavailable
from duemq.model.messages.names import PURGES, consumer_cursor
from duemq.model.messages.record import pack_record
from tests.support.patience import SERVERS_S

if TYPE_CHECKING:
    from tests.contract.conftest import ClockedPlug, Plug

pytestmark = pytest.mark.anyio
clocked = pytest.mark.parametrize("plug", ["memory", "embedded", "embedded-without-tail"], indirect=True)

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


EMPTY = pack_record(None, (), b"")


def frames(start: int, stop: int) -> list[bytes]:
    return [pack_record(None, (), b"frame %04d" % number) for number in range(start, stop)]


FRAME_BYTES = len(frames(0, 1)[0])


async def everything(bus: Bus, topic: str, partition: int = 0) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while records := await bus.read(topic, partition, offset, 100):
        found += [record.frame for record in records]
        offset = records[-1].offset + 1
    return found


async def test_appended_frames_are_read_in_order_with_offset_and_time(bus: Bus, plug: Plug) -> None:
    early = (await bus.append({A0: frames(0, 2)}))[A0]
    await plug.pass_time(early)
    landed = await bus.append({A0: frames(2, 3), A1: [EMPTY]})
    late = landed[A0].timestamp
    assert late > early.timestamp
    assert (early.first_offset, landed[A0].first_offset, landed[A1].first_offset) == (0, 2, 0)
    assert [tuple(record) for record in await bus.read("a", 0, 0, 10)] == [
        (0, early.timestamp, frames(0, 1)[0]),
        (1, early.timestamp, frames(1, 2)[0]),
        (2, late, frames(2, 3)[0]),
    ]
    assert await everything(bus, "a", 1) == [EMPTY]
    for end in (bus.end_offset, bus.sure_end):
        assert (await end("a", 0), await end("a", 1), await end("b", 0), await end("nowhere", 0)) == (3, 1, 0, 0)


@clocked
async def test_timestamps_are_the_clocks_and_never_go_back(bus: Bus, plug: ClockedPlug) -> None:
    assert await bus.append({A0: frames(0, 1)}) == {A0: AppendResult(0, 1_000)}
    plug.clock.now = 400
    assert (await bus.append({A0: frames(1, 2)}))[A0].timestamp == 1_000
    again = await plug.open()
    assert (await again.append({A0: frames(2, 3)}))[A0].timestamp == 1_000


async def test_concurrent_appends_land_in_order_of_arrival(bus: Bus) -> None:
    landed = await asyncio.gather(*(bus.append({A0: frames(at, at + 2)}) for at in range(0, 60, 2)))
    assert [each[A0].first_offset for each in landed] == list(range(0, 60, 2))
    assert await everything(bus, "a") == frames(0, 60)


async def test_reads_begin_anywhere_and_stop_at_either_bound(bus: Bus) -> None:
    for start in range(0, 40, 10):
        await bus.append({A0: frames(start, start + 10)})
    for offset in range(40):
        for wanted in (1, 9, 10, 11, 40):
            read = await bus.read("a", 0, offset, wanted)
            assert [record.frame for record in read] == frames(offset, min(offset + wanted, 40))
            assert [record.offset for record in read] == list(range(offset, offset + len(read)))
        for whole in (0, 1, 2, 10, 21):
            for room in (whole * FRAME_BYTES, (whole + 1) * FRAME_BYTES - 1):
                read = await bus.read("a", 0, offset, 100, max_bytes=room)
                assert [record.frame for record in read] == frames(offset, min(offset + max(whole, 1), 40))
    assert await bus.read("a", 0, 40, 10) == await bus.read("a", 0, 0, 0) == []
    assert await bus.read("a", 7, 0, 10) == await bus.read("nowhere", 0, 0, 10) == []


async def test_a_large_batch_comes_back_whole(bus: Bus, plug: Plug) -> None:
    payloads = [bytes([number % 251]) * (number * 37 % 1_500) for number in range(5_000)]
    batch = [pack_record(None, (), payload) for payload in (*payloads, b"x" * plug.largest, b"end")]
    landed = await bus.append({A0: batch, B0: batch[:1]})
    assert await everything(bus, "a") == batch
    assert [landed[A0].offset(position) for position in (0, 4_999, 5_001)] == [0, 4_999, 5_001]


async def test_topics_are_made_once_and_unknown_ones_refused(bus: Bus, plug: Plug) -> None:
    assert (await bus.create_topic("a", 9)).partitions == 2
    made = await asyncio.gather(bus.create_topic("c", 3), bus.create_topic("c", 5))
    assert {info.partitions for info in made} == {3}
    with pytest.raises(UnknownTopic, match="no topic 'x"):
        await bus.append({A0: frames(0, 1), ("x", 0): frames(0, 1)})
    with pytest.raises(UnknownTopic, match="no partition 2"):
        await bus.append({("a", 2): frames(0, 1)})
    with pytest.raises(ValueError, match="65535"):
        await bus.create_topic("d", 0)
    assert await everything(bus, "a") == []
    assert await bus.topic("x") is None
    assert [info.name for info in await (await plug.open()).topics()] == ["a", "b", "c"]


async def test_a_commit_is_seen_whole_or_not_at_all(bus: Bus, plug: Plug) -> None:
    committer = await bus.committer("shard-0")
    watching, torn = True, 0

    async def watch() -> None:
        nonlocal torn
        while watching:
            ends = [await bus.end_offset(*where) for where in (A0, A1, B0)]
            torn += len(set(ends)) > 1
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    for at in range(50):
        await committer.commit({A0: frames(at, at + 1), A1: frames(at, at + 1), B0: frames(at, at + 1)})
    watching = False
    await watcher
    assert torn == 0 or not plug.at_once
    assert await everything(bus, "a") == await everything(bus, "a", 1) == await everything(bus, "b") == frames(0, 50)


async def test_a_newer_committer_fences_the_older_one(bus: Bus, plug: Plug) -> None:
    older = await bus.committer("shard-0")
    other = await bus.committer("shard-1")
    await older.commit({A0: frames(0, 1)})
    newer = await bus.committer("shard-0")
    results = await asyncio.gather(
        newer.commit({A0: frames(1, 2)}),
        older.commit({A0: frames(8, 9), B0: frames(8, 9)}),
        other.commit({A1: frames(0, 1)}),
        newer.commit({A0: frames(2, 3)}),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [dict, Fenced, dict, dict]
    with pytest.raises(Fenced):
        await older.commit({})
    assert await everything(bus, "a") == frames(0, 3)
    assert await everything(bus, "b") == []
    again = await plug.open()
    newest = await again.committer("shard-0")
    await newest.commit({A0: frames(3, 4)})
    assert await everything(again, "a") == frames(0, 4)


async def test_becoming_the_committer_fences_a_commit_that_comes_behind(bus: Bus) -> None:
    older = await bus.committer("shard-0")
    before, newer, behind = await asyncio.gather(
        older.commit({A0: frames(0, 1)}),
        bus.committer("shard-0"),
        older.commit({A0: frames(8, 9)}),
        return_exceptions=True,
    )
    assert isinstance(behind, Fenced)
    assert not isinstance(before, BaseException)
    assert not isinstance(newer, BaseException)
    assert await everything(bus, "a") == frames(0, 1)


async def test_a_log_opened_again_has_everything(bus: Bus, plug: Plug) -> None:
    await bus.append({A0: frames(0, 30), B0: frames(0, 5)})
    await bus.append({A0: frames(30, 31)})
    await bus.trim("b", 0, 2)
    await bus.set_consumer_cursor("a", consumer_cursor("reader"), b"17")
    again = await plug.open()
    assert await everything(again, "a") == frames(0, 31)
    assert await everything(again, "b") == frames(2, 5)
    assert await again.get_consumer_cursor("a", consumer_cursor("reader")) == b"17"
    assert (await again.append({A0: frames(31, 32)}))[A0].first_offset == 31


async def test_subscriptions_wake_for_what_they_follow(bus: Bus) -> None:
    await bus.append({A0: frames(0, 1)})
    whole, second, later = bus.subscribe("a"), bus.subscribe("a", 1), bus.subscribe("not-yet-there")
    assert not await whole.wait(0)
    waiting = asyncio.create_task(whole.wait())
    await bus.append({A0: frames(1, 2)})
    assert await asyncio.wait_for(waiting, SERVERS_S)
    assert not await second.wait(0)
    await bus.append({A1: frames(0, 1)})
    assert await second.wait(0)
    assert await whole.wait(0)
    assert not await whole.wait(0)
    await bus.create_topic("not-yet-there", 1)
    await bus.append({("not-yet-there", 0): frames(0, 1)})
    assert await later.wait(60)
    second.close()
    await bus.append({A1: frames(1, 2)})
    assert not await second.wait(0)


async def test_trimmed_frames_are_gone_and_offsets_go_on(bus: Bus, plug: Plug) -> None:
    for start in range(0, 40, 10):
        await bus.append({A0: frames(start, start + 10)})
    assert await bus.start_offset("a", 0) == 0
    await bus.trim("a", 0, 25)
    await bus.trim("a", 0, 5)
    assert (await bus.start_offset("a", 0), await bus.start_offset("a", 1), await bus.start_offset("x", 0)) == (
        25,
        0,
        0,
    )
    assert await everything(bus, "a") == frames(25, 40)
    assert (await bus.read("a", 0, 0, 1))[0].offset == 25
    await bus.trim("a", 0, 99)
    await bus.trim("nowhere", 0, 5)
    again = await plug.open()
    info = await again.topic("a")
    assert info is not None
    assert (info.start_offsets, info.end_offsets, info.records) == ((40, 0), (40, 0), 0)
    await again.append({A0: frames(40, 41)})
    assert (await again.read("a", 0, 0, 1))[0].offset == 40


async def test_trim_by_age(bus: Bus, plug: Plug) -> None:
    landed: list[AppendResult] = []
    for at in range(10):
        landed.append((await bus.append({A0: frames(at * 3, at * 3 + 3)}))[A0])
        await plug.pass_time(landed[-1])
    await bus.append({A1: frames(0, 1)})
    since = [await bus.first_since("a", 0, at) for at in (0, landed[3].timestamp, landed[3].timestamp + 1)]
    assert since == [0, landed[3].first_offset, landed[4].first_offset]
    assert await bus.first_since("a", 0, landed[-1].timestamp + 60_000) == await bus.end_offset("a", 0)
    assert await bus.first_since("x", 0, 0) == 0
    await bus.trim_older_than("a", landed[0].timestamp)
    assert await everything(bus, "a") == frames(0, 30)
    await bus.trim_older_than("a", landed[3].timestamp + 1)
    assert await everything(bus, "a") == frames(12, 30)
    assert await everything(bus, "a", 1) == frames(0, 1)
    await bus.trim_older_than("a", landed[-1].timestamp + 60_000)
    assert await everything(bus, "a") == await everything(bus, "a", 1) == []


async def test_a_place_that_is_forgotten_is_none_until_it_is_stored_again(bus: Bus) -> None:
    reader = consumer_cursor("reader")
    await bus.set_consumer_cursor("a", reader, b"")
    assert await bus.get_consumer_cursor("a", reader) is None
    for place in (b"1", b"2"):
        await bus.set_consumer_cursor("a", reader, place)
        assert await bus.get_consumer_cursor("a", reader) == place
        await bus.set_consumer_cursor("a", reader, b"")
        assert await bus.get_consumer_cursor("a", reader) is None


async def test_places_are_kept_per_topic_and_consumer(bus: Bus) -> None:
    await bus.set_consumer_cursor("a", consumer_cursor("one"), b"1")
    await bus.set_consumer_cursor("a", consumer_cursor("one"), b"2")
    await bus.set_consumer_cursor("b", consumer_cursor("one"), b"3")
    assert [
        await bus.get_consumer_cursor(topic, consumer_cursor(who))
        for topic, who in (("a", "one"), ("b", "one"), ("a", "two"))
    ] == [
        b"2",
        b"3",
        None,
    ]
    await bus.set_consumer_cursor("b", PURGES, b"4")
    assert await bus.get_consumer_cursor("b", PURGES) == b"4"
    assert await bus.readers("b") == ["consumer one"] and await bus.readers("c") == []


async def test_a_group_begins_with_a_topic_again_and_again(bus: Bus) -> None:
    await bus.append({A0: frames(0, 3), A1: frames(3, 4)})
    for offsets in ((3, 1), (0, 0)):
        await bus.begin_group("a", "group", offsets)
    assert await bus.readers("a") == ["group group"]
    await bus.begin_group("not-yet-there", "group", ())


async def test_the_position_of_a_group_is_that_at_which_it_was_put(bus: Bus) -> None:
    await bus.append({A0: frames(0, 3), A1: frames(3, 4)})
    assert await bus.group_position("a", "reader", 1) is None
    await bus.begin_group("a", "reader", (3, 1))
    assert [await bus.group_position("a", "reader", number) for number in (0, 1)] == [("a", 3, ""), ("a", 1, "")]


@clocked
@pytest.mark.parametrize("step", ["before_write", "after_write", "after_sync"])
async def test_a_failed_bus_refuses_and_hides_what_failed(plug: Plug, step: str) -> None:
    armed = False

    def fault(name: str) -> None:
        if armed and name == step:
            raise OSError("input/output error")

    bus = await plug.open(fault)
    await bus.create_topic("a", 2)
    await bus.append({A0: frames(0, 2)})
    committer = await bus.committer("shard-0")
    waiting = asyncio.create_task(bus.subscribe("a", 1).wait())
    await asyncio.sleep(0)
    armed = True
    with pytest.raises(StoreFailed):
        await committer.commit({A0: frames(2, 4), A1: frames(2, 4)})
    with pytest.raises(StoreFailed):
        await waiting
    for call in (bus.read("a", 1, 0, 9), bus.append({A0: frames(9, 10)}), bus.end_offset("a", 0), bus.topics()):
        with pytest.raises(StoreFailed):
            await call
    again = await plug.open()
    found = await everything(again, "a")
    assert found in (frames(0, 2), frames(0, 4))
    assert await everything(again, "a", 1) == found[2:]
    assert (await again.append({A0: frames(4, 5)}))[A0].first_offset == len(found)


async def test_a_closed_bus_is_unavailable(bus: Bus) -> None:
    committer = await bus.committer("shard-0")
    waiting = asyncio.create_task(bus.subscribe("a").wait())
    last = asyncio.create_task(bus.append({A0: frames(0, 1)}))
    await asyncio.sleep(0)
    await asyncio.gather(bus.close(), bus.close())
    for call in (
        waiting,
        bus.append({A0: []}),
        committer.commit({}),
        bus.read("a", 0, 0, 1),
        bus.get_consumer_cursor("a", consumer_cursor("x")),
    ):
        with pytest.raises(Unavailable):
            await call
    await asyncio.wait([last])  # it may have been too late, but it is not left hanging


async def test_a_checkpoint_is_a_log_of_its_own(bus: Bus, tmp_path: Path) -> None:
    into = tmp_path / "copies" / "log"
    await bus.append({A0: frames(0, 3), A1: [EMPTY]})
    await bus.set_consumer_cursor("a", consumer_cursor("consumer"), b"cursor")
    linked = await bus.checkpoint(into)
    await bus.append({A0: frames(3, 5)})
    assert linked == into.exists()
    if linked:
        copy = await EmbeddedBus.open(into)
        assert (await everything(copy, "a", 0), await everything(copy, "a", 1)) == (frames(0, 3), [EMPTY])
        assert await copy.get_consumer_cursor("a", consumer_cursor("consumer")) == b"cursor"
        await copy.append({A0: frames(7, 8)})
        await copy.close()
    assert await everything(bus, "a") == frames(0, 5)
