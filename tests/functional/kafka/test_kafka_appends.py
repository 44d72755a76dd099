"""Appends outside of transactions: none is a failure or a delay of another, and what waits is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from duemq.bus.base import AppendResult
from duemq.bus.kafka.bus import KafkaBus
from duemq.model.errors import LogFailed, Rejected, Unavailable
from duemq.model.messages.record import pack_record
from tests.functional.kafka.kafka_bus import frames, new_topic, own_log, values
from tests.support.patience import SERVERS_S

pytestmark = pytest.mark.anyio


def frame_of(size: int) -> bytes:
    return pack_record(None, (), b"x" * size)


async def outdated(bus: KafkaBus, topic: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Make the bus believe that the topic takes 64 MiB, as if its limit was lowered a moment ago; what it takes."""
    await bus.topic(topic)
    known = bus.catalog.topics[topic]
    monkeypatch.setitem(bus.catalog.topics, topic, known._replace(max_bytes=64 << 20))
    return known.max_frame_bytes


def kind(outcome: AppendResult | BaseException) -> type:
    return type(outcome)


async def test_an_append_that_is_too_large_fails_no_other(bus: KafkaBus, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, other = await new_topic(bus), await new_topic(bus)
    where = (topic, 0)
    large = frame_of(await outdated(bus, topic, monkeypatch) + 1024)
    first = bus.to_topics.put(where, frames("first"))  # while it is on its way the others gather
    others = [bus.to_topics.put(where, frames(f"small {number}")) for number in range(3)]
    refused = bus.to_topics.put(where, [large])
    others += [bus.to_topics.put(where, frames(f"small {number}")) for number in range(3, 6)]
    neighbour = bus.to_topics.put((other, 0), frames("beside"))
    outcomes: Sequence[AppendResult | BaseException] = await asyncio.gather(
        first, refused, neighbour, *others, return_exceptions=True
    )
    assert [kind(each) for each in outcomes] == [AppendResult, Rejected] + [AppendResult] * 7
    offsets = [each.first_offset for each in outcomes if isinstance(each, AppendResult)]
    assert offsets[0] == 0 and offsets[2:] == sorted(offsets[2:])
    assert await values(bus, topic) == ["first", *(f"small {number}" for number in range(6))]
    assert await values(bus, other) == ["beside"]
    assert await bus.append({where: frames("after")})


async def test_what_is_in_the_log_in_part_is_not_called_refused(bus: KafkaBus, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, other = await new_topic(bus), await new_topic(bus)
    large = frame_of(await outdated(bus, topic, monkeypatch) + 1024)
    batch = [frame_of(900_000), large]  # two batches of the broker, of which it takes the first
    with pytest.raises(LogFailed, match="another part of it is in the log"):
        await bus.append({(topic, 0): batch})
    await outdated(bus, topic, monkeypatch)
    with pytest.raises(LogFailed, match="another is not"):
        await bus.append({(other, 0): frames("landed"), (topic, 0): [large]})
    assert await values(bus, other) == ["landed"]


async def test_appends_beyond_the_bound_are_refused_and_nothing_of_them_is_sent(bus: KafkaBus) -> None:
    topic = await new_topic(bus)
    appender = bus.to_topics
    appender.max_bytes = 1 << 20
    frame = frame_of(300_000)
    taken = [asyncio.create_task(bus.append({(topic, 0): [frame]})) for _ in range(3)]
    while appender.waiting_bytes < 3 * len(frame):  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="wait for Kafka") as refused:
        await bus.append({(topic, 0): [frame]})
    assert not isinstance(refused.value, LogFailed)
    await asyncio.gather(*taken)
    assert appender.waiting_bytes == 0
    await bus.append({(topic, 0): [frame] * 5})  # alone, it may be larger
    assert await bus.end_offset(topic, 0) == 8


async def test_a_target_whose_records_take_long_delays_no_command(bus: KafkaBus) -> None:
    """A broker answers one request of a producer at a time, and the first record of a new topic can take a second."""
    commands, topic = await own_log(bus), await new_topic(bus)
    await bus.append({(topic, 0): frames("first"), (commands, 0): frames("first")})
    send, go_on = bus.to_topics.producer.client.send, asyncio.Event()

    async def late(*arguments: Any, **options: Any) -> Any:
        await go_on.wait()
        return await send(*arguments, **options)

    bus.to_topics.producer.client.send = late
    direct = asyncio.create_task(bus.append({(topic, 0): frames("second")}))
    async with asyncio.timeout(SERVERS_S):
        await bus.append({(commands, 0): frames("second")})
    assert not direct.done()
    go_on.set()
    await direct
    for each in (topic, commands):
        assert await values(bus, each) == ["first", "second"]
