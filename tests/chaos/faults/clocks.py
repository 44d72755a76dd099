"""Clock steps: of a master, a standby, a proxy."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aiohttp

from duemq.dev.cluster.duemq_process import DuemqProcess
from tests.chaos.cluster import clock_of
from tests.chaos.pace import SLOW
from tests.chaos.world import World
from tests.e2e.load import now_ms
from tests.e2e.outcomes import ABSENT, Kind, Message, State

HOUR_MS = 3_600_000
_FAILING_MS = 4_000
_BOUND_MS = 500  # node.max_clock_offset_ms
_DELAY_MS = 1_500


async def step_master(world: World, step_ms: int) -> None:
    node, shards = await world.some_master()
    clock_of(node).write_text(str(step_ms))
    try:
        await world.deliver_again(now_ms() + _FAILING_MS, shards)
        await _restart_in_the_wrong_time(world, node)
    finally:
        clock_of(node).write_text("0")
    await world.until(world.all_ready, f"{node.name} to be ready again")


async def step_standby(world: World, step_ms: int) -> None:
    """The node is master of nothing while its clock is wrong; then its clock is right, and it may be again."""
    node, shards = await world.some_master()
    await world.duemq("node", "drain", node.name)
    try:
        clock_of(node).write_text(str(step_ms))
        await world.deliver_again(now_ms() + _FAILING_MS, shards)
    finally:
        clock_of(node).write_text("0")
        await world.duemq("node", "resume", node.name)
    await world.until(world.all_ready, f"{node.name} to be ready again")
    await world.deliver_again(now_ms() + _FAILING_MS, shards)


async def step_proxy(world: World, step_ms: int) -> None:
    """Relative times are resolved by it. They are right or refused, and right again once the clock is."""
    proxy = world.chance.choice(world.cluster.proxies)
    clock = clock_of(proxy)
    clock.write_text(str(step_ms))
    try:
        await _relative_times(world, proxy, 20)
        # Started with the wrong clock, it has nothing of its own to compare it with.
        await asyncio.to_thread(proxy.process.stop)
        await asyncio.to_thread(proxy.spawn)
        await world.until_answers(proxy)
        await _relative_times(world, proxy, 20)
    finally:
        clock.write_text("0")

    async def right() -> bool:
        return await _relative_times(world, proxy, 1) == 1

    await world.until(right, f"{proxy.name} to take relative times again")


async def _restart_in_the_wrong_time(world: World, node: DuemqProcess) -> None:
    """It must not take mastership on its word."""
    await asyncio.to_thread(node.process.stop)
    await asyncio.to_thread(node.spawn)
    await world.deliver_again(now_ms() + _FAILING_MS)
    assert node.name not in (await world.masters()).values(), "a node with a wrong clock is master"


async def _relative_times(world: World, proxy: DuemqProcess, count: int) -> int:
    """How many messages with a relative time this proxy takes; fails for one that it takes for another time."""
    taken = 0
    async with aiohttp.ClientSession(proxy.url, timeout=aiohttp.ClientTimeout(total=10 * SLOW)) as session:
        for _ in range(count):
            payload = f"{world.load.topic}.relative.{world.chance.getrandbits(60)}"
            body = {"topic": world.load.topic, "payload": payload, "deliver_after": f"{_DELAY_MS}ms"}
            message = Message(payload, {ABSENT, State(Kind.HELD, 0, loose=True)})
            world.load.messages[payload] = message
            before = now_ms()
            with suppress(aiohttp.ClientConnectionError, TimeoutError):
                async with session.post("/v1/messages", json=body) as answer:
                    receipt = await answer.json()
                if answer.status in (503, 504):
                    continue
                assert answer.status == 201, (answer.status, receipt)
                message.accepted(receipt)
                due = receipt["deliver_at_ms"]
                assert before - _BOUND_MS <= due - _DELAY_MS <= now_ms() + _BOUND_MS, (
                    f"{proxy.name} takes {_DELAY_MS} ms from now for {due - before} ms from now"
                )
                taken += 1
    return taken
