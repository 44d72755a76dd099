"""The brokers' time on a real Kafka, whatever happens to the topic that it is asked by."""

from __future__ import annotations

import asyncio
import time

import pytest

from duemq.bus.base import wall_clock
from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.clock.clock_topic import CLOCK_TOPIC
from duemq.dev.kafka.kafka import KafkaServers
from tests.functional.kafka.kafka_bus import frames, new_topic, options, own_log
from tests.functional.kafka.test_kafka_refusals import delete

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("wrong", [0, 10_000, -10_000])
async def test_a_wrong_clock_is_measured(kafka: KafkaServers, wrong: int) -> None:
    bus = await KafkaBus.open(options(kafka.bootstrap), lambda: wall_clock() + wrong)
    try:
        started = time.perf_counter()
        offset = await bus.clock_offset_ms()
        assert abs(offset + wrong) <= (time.perf_counter() - started) * 1000
    finally:
        await bus.close()


async def test_the_topic_of_the_clock_is_made_again_and_nobody_else_notices(bus: KafkaBus) -> None:
    topic = await own_log(bus)
    await bus.append({(topic, 0): frames("before")})
    await bus.clock_offset_ms()
    producer, running = bus.commands.producer, True

    async def send() -> int:
        sent = 0
        while running:
            await bus.append({(topic, 0): frames("meanwhile")})
            sent += 1
        return sent

    sending = asyncio.create_task(send())
    await delete(bus, CLOCK_TOPIC)
    bus.clock_probe.samples.clear()  # as after ten seconds without a commit
    assert abs(await bus.clock_offset_ms()) < 1_000
    running = False
    assert await sending > 0 and bus.commands.producer is producer
    assert await bus.topic(CLOCK_TOPIC) is not None


async def test_records_are_stamped_by_the_clock_that_is_guarded(kafka: KafkaServers) -> None:
    """Brokers refuse what is an hour ahead of theirs: a wall clock that was stepped must not stop deliveries."""
    behind = 5_000
    bus = await KafkaBus.open(options(kafka.bootstrap), lambda: wall_clock() - behind)
    try:
        where = (await new_topic(bus), 0)
        committer = await bus.committer("shard-0")
        for landed in (await bus.append({where: frames("direct")}), await committer.commit({where: frames("due")})):
            assert landed[where].timestamp <= wall_clock() - behind
    finally:
        await bus.close()
