"""Lag of groups whose retries and messages come through a real duemq, against what the group itself did."""

from __future__ import annotations

import asyncio
import time

import pytest

from duemq.client.consumer.consumer import Consumer
from duemq.client.consumer.message import Message
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.retry.policy import Delays
from duemq.client.lag import GroupLag, LagReader
from duemq.model.topics.group_topics import retry_topic
from tests.functional.lag.lag_site import LagSite
from tests.support.consumer.consumer_site import new_group, new_topic, read_all, send, until

pytestmark = pytest.mark.anyio


async def test_at_rest_it_is_what_the_consumer_has_not_done(kafka_with_duemq: str) -> None:
    """Every fifth message fails once and comes back in a transaction; one stays in its handler until it is let go."""
    topic, group, done, held = await new_topic(kafka_with_duemq), new_group(), set[str](), asyncio.Event()
    await send(kafka_with_duemq, topic, [b"%d" % n for n in range(40)])
    consumer = Consumer(
        group, kafka_with_duemq, ConsumerOptions(start="first", retry=Delays(("100ms",)), commit_interval_s=0.1)
    )

    @consumer.on(topic)
    async def handle(message: Message) -> None:
        if message.text == "12":
            await held.wait()
        elif int(message.text) % 5 == 0 and not message.retried:
            raise ValueError("the first time")
        done.add(message.text)

    async with LagReader(kafka_with_duemq) as reader:
        async with consumer:
            await until(lambda: len(done) == 39, "all but one")
            found: list[GroupLag] = []

            async def at_rest() -> bool:
                found[:] = await reader.read([group])
                return (found[0].total.lag, found[0].retry_total.lag) == (28, 0)

            await until(at_rest, "commits of all that is done")
            (one,) = found
            total, retry = one.total, one.retry_total
            assert (total.lag, total.inflight, total.available) == (28, 28, 0)  # 12 is the first that is not done
            assert (retry.lag, retry.inflight, retry.available, retry.lag_ms) == (0, 0, 0, 0)
            assert [(each.topic, each.retry) for each in one.topics] == [(topic, False), (retry_topic(group), True)]
            assert (one.members, one.state) == (1, "Stable")
            held.set()
            await until(lambda: len(done) == 40, "all")
        (one,) = await reader.read([group])
        assert (one.total.lag, one.retry_total.lag, one.offline) == (0, 0, True)


async def test_what_duemq_delivers_is_counted_without_its_markers(kafka_with_duemq: str) -> None:
    topic, group = await new_topic(kafka_with_duemq), new_group()
    now = time.time_ns() // 1_000_000
    for number in range(12):
        due = b"%d" % (now + 400 + 60 * number)
        labels = b"paid" if number % 3 == 0 else b"open"
        headers = [("duemq-topic", topic.encode()), ("duemq-deliver-at", due), ("duemq-labels", labels)]
        await send(kafka_with_duemq, "duemq.buffer", [b"x"], headers=headers)
    records = await read_all(kafka_with_duemq, topic, 12)
    site = LagSite(kafka_with_duemq)
    await site.commit(group, {(topic, 0): 0})
    async with LagReader(kafka_with_duemq) as reader:
        (found,) = await reader.read([group], tags="*")
        assert found.total.lag is not None and found.total.lag > 12  # offsets
        assert found.total.matching is not None and found.total.matching.messages == 12
        (found,) = await reader.read([group], tags="paid")
        assert found.total.matching is not None and found.total.matching.messages == 4
        await site.commit(group, {(topic, 0): records[5].offset + 1})
        (found,) = await reader.read([group], tags="*")
        assert found.total.matching is not None and found.total.matching.messages == 6
        await site.commit(group, {(topic, 0): records[-1].offset + 1})
        (found,) = await reader.read([group], tags="*")
        assert (found.total.lag, found.total.lag_ms) == (0, 0)
        assert found.total.matching is not None and found.total.matching.messages == 0
