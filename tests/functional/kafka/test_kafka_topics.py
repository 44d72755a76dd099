"""One bad topic on real brokers: it refuses, says why, and delays no other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka.admin import NewTopic

from duemq.bus.base import wall_clock
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import Rejected
from duemq.model.messages.message import Draft
from tests.functional.kafka.kafka_bus import options, values
from tests.functional.shard.topic_site import DestinationSite, destination_site
from tests.support.servers.real_servers import need_servers

pytestmark = [pytest.mark.anyio, pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("servers")]


async def code_of(site: DestinationSite, draft: Draft) -> str:
    (answer,) = await site.gateway.send([draft])
    assert isinstance(answer, Rejected), answer
    return answer.code


async def test_bad_targets_of_every_kind_refuse_and_the_good_one_goes_on(
    tmp_path: Path, own_kafka: KafkaServers
) -> None:
    async with destination_site(tmp_path / "data", options(own_kafka.bootstrap)) as site:
        await site.good_goes_on()

        # A name that collides with another: at acceptance, and as a plain record of a Kafka client.
        await site.make("a.b")
        assert await code_of(site, Draft("a_b", b"x", wall_clock() + 100)) == "bad_topic"
        await site.plain("a_b", b"collides")
        await site.says("a_b", "collides")
        await site.good_goes_on()

        # A name that brokers keep for themselves is malformed, and ends in the dead letters.
        await site.plain("__mine", b"underscore")
        await site.arrives("duemq.dlq", "underscore")
        await site.good_goes_on()

        # A compacted topic takes what has a key, and nothing else.
        await site.make("state", topic_configs={"cleanup.policy": "compact"})
        assert await code_of(site, Draft("state", b"x", wall_clock() + 100)) == "needs_key"
        await site.plain("state", b"without key")
        await site.schedule("state", b"keyed", key=b"k")
        await site.arrives("state", "keyed")
        await site.says("state", "with a key")
        await site.good_goes_on()
        assert await values(site.bus, "state") == ["keyed"]

        # A topic that is deleted while messages wait for it is made again.
        await site.make("gone", partitions=3)
        await site.schedule("gone", b"before")
        first = [text for number in range(3) for text in await values(site.bus, "gone", number)]
        waits = await site.schedule("gone", b"waits", delay_ms=1_500)
        await site.delete("gone")
        await site.arrives("gone", "waits")
        await site.good_goes_on()
        state = await site.gateway.state(waits)
        assert state is not None and state.status == "delivered" and first in ([], ["before"])


@pytest.fixture
def three(tmp_path: Path) -> KafkaServers:
    need_servers()
    return KafkaServers(tmp_path / "kafka", 3)


@pytest.mark.parametrize(
    ("on", "least", "said"),
    [([3], "1", "no broker leads"), ([2, 3], "2", "fewer replicas are in sync")],
    ids=["leaderless", "under min.insync.replicas"],
)
async def test_a_target_whose_broker_is_dead_waits_for_it_and_holds_up_no_other(
    tmp_path: Path, three: KafkaServers, on: list[int], least: str, said: str
) -> None:
    with three as servers:
        own = replace(options(servers.bootstrap), replication_factor=3, min_insync_replicas=2)
        async with destination_site(tmp_path / "data", own, copies=3) as site:
            bad = NewTopic("bad", -1, -1, replica_assignments={0: on}, topic_configs={"min.insync.replicas": least})
            await site._admin.create_topics([bad])
            await site.schedule("bad", b"works")
            await site.arrives("bad", "works")
            await asyncio.to_thread(servers.kill, 3)
            waiting = await site.schedule("bad", b"poison")
            await site.says("bad", said)
            for _ in range(5):
                await site.good_goes_on()
            (listed,) = [info for info in await site.bus.topics() if info.name == "bad"]
            if on == [3]:
                assert said in listed.trouble and listed.end_offsets == ()
            (state,) = [await site.gateway.state(waiting)]
            assert state is not None and state.status == "scheduled"
            assert state.attempt == 0 and said in state.reason
            await asyncio.to_thread(servers.start, 3)
            await site.arrives("bad", "poison")
            await site.good_goes_on()
