"""A topic of duemq's own that is deleted and made again while it is used takes no record for the old one."""

from __future__ import annotations

import asyncio

import pytest

from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.named_bus import NamedBus
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import LogFailed, Unavailable
from duemq.model.topics.topic_names import TopicNames
from tests.chaos.topics import delete_topic
from tests.functional.kafka.kafka_bus import frames, options, own_log
from tests.support.patience import SERVERS_S

pytestmark = [pytest.mark.anyio, pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("servers")]


async def test_an_append_that_lands_below_an_earlier_one_ends_the_log(kafka: KafkaServers) -> None:
    bus = await KafkaBus.open(options(kafka.bootstrap))
    other = await KafkaBus.open(options(kafka.bootstrap))
    try:
        topic = await own_log(bus)
        for text in ("one", "two", "three"):
            await bus.append({(topic, 0): frames(text)})
        (before,) = (await bus.topic_ids([topic])).values()
        await delete_topic(kafka.bootstrap, topic)
        await other.create_log(topic, 1)
        assert (await bus.topic_ids([topic]))[topic] != before

        async def append_until_refused() -> None:
            while True:
                try:
                    await bus.append({(topic, 0): frames("four")})
                except LogFailed as error:
                    if "was made again" in str(error):
                        return

        async with asyncio.timeout(SERVERS_S):
            await append_until_refused()
        assert "was made again" in (bus.trouble() or "")
        with pytest.raises(Unavailable, match="was made again"):
            await bus.append({(topic, 0): frames("five")})
    finally:
        await bus.close()
        await other.close()


async def test_the_topics_of_a_prefix_are_seen_by_no_other(kafka: KafkaServers) -> None:
    own = options(kafka.bootstrap)
    names = [TopicNames(f"duemq.{own.cluster}{part}.") for part in ("a", "b")]
    inner = [await KafkaBus.open(own) for _ in names]
    buses = [NamedBus(bus, name) for bus, name in zip(inner, names, strict=True)]
    try:
        for bus, text in zip(buses, ("a", "b"), strict=True):
            await bus.create_log("duemq.buffer", 1)
            await bus.create_topic("destination.shop", 1)
            committer = await bus.committer(f"shard-{text}")
            where = ("duemq.buffer", 0), ("destination.shop", 0)
            results = await committer.commit(dict.fromkeys(where, frames(text)))
            assert set(results) == set(where)
            assert [one.frame for one in await bus.read("destination.shop", 0, 0, 10)] == frames(text)
            await bus.begin_group("destination.shop", "destination.shop", [0])
        ids = [(await bus.topic_ids(["duemq.buffer"]))["duemq.buffer"] for bus in buses]
        assert ids[0] != ids[1]
        assert (
            await inner[0].topic("duemq.buffer") is None or own.names.own(names[0].on_brokers("duemq.buffer")) is None
        )
        listed = {info.name for info in await inner[0].topics()}
        assert not listed & {name.on_brokers("duemq.buffer") for name in names}
    finally:
        for bus in buses:
            await bus.close()
