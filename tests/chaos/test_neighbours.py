"""A Kafka that others use, too, whose brokers have Kafka's own defaults."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import aiohttp
import pytest

from tests.chaos.faults.neighbours import hold_a_transaction_open
from tests.chaos.faults.nodes import kill_master
from tests.chaos.faults.servers import restart_all_brokers
from tests.chaos.shape import Shape
from tests.chaos.topics import administration, delete_topic, make_topic
from tests.chaos.world import World
from tests.e2e.load import now_ms

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

_OTHERS = 200  # partitions


def test_brokers_with_default_settings(world: Callable[..., World]) -> None:
    async def faults(world: World) -> None:
        await make_topic(world.bootstrap, f"others.{secrets.token_hex(4)}", _OTHERS, world.shape.brokers)
        gone = f"gone.{secrets.token_hex(4)}"
        await make_topic(world.bootstrap, gone, 3, world.shape.brokers)

        async def is_known() -> bool:
            async with aiohttp.ClientSession(world.cluster.proxies[0].url) as session:
                async with session.get(f"/v1/topics/{gone}") as answer:
                    return bool(answer.status == 200)

        await world.until(is_known, f"topic {gone} to be known")
        await world.send([{"topic": gone, "payload": "delivered", "deliver_at": now_ms()} for _ in range(3)])
        await kill_master(world)
        await delete_topic(world.bootstrap, gone)
        await hold_a_transaction_open(world)
        await restart_all_brokers(world)
        await kill_master(world)
        async with administration(world.bootstrap) as admin:
            assert gone not in await admin.list_topics()

    world(Shape(broker_defaults=True)).run(faults)
