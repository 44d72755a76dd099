"""An earlier version and this one in one cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from duemq.dev.cluster.duemq_process import PROGRAM, DuemqProcess
from tests.chaos.world import World
from tests.e2e.load import now_ms
from tests.support.node.earlier_version import COMMIT, unpack

_AFTER_MS = 400
_SENT_MS = 2_000  # a probe is sent at most so long before it is due
_MORE = 50  # messages of the load that a cluster of two versions takes before the next process changes its version


async def roll_back_and_forward(world: World, version: str = COMMIT) -> None:
    """One process after the other becomes the earlier version, and then this one again."""
    world.probe.nulls = version != COMMIT  # which stores and delivers null as empty
    await world.deliver_again(now_ms() + _SENT_MS)
    today = {process.name: (process.program, dict(process.environment)) for process in _processes(world)}
    earlier = await asyncio.to_thread(unpack, world.folder, version)
    for process in _processes(world):
        await _replace(world, process, PROGRAM, process.environment | earlier)
    for process in reversed(_processes(world)):
        await _replace(world, process, *today[process.name])
    world.probe.nulls = True


def _processes(world: World) -> list[DuemqProcess]:
    return [*world.cluster.nodes, *world.cluster.proxies]


async def _replace(world: World, process: DuemqProcess, program: Sequence[str], environment: Mapping[str, str]) -> None:
    assert await asyncio.to_thread(process.process.stop) == 0, process.process.last_words()
    process.program, process.environment = program, dict(environment)
    await world.start(process)
    await world.deliver_again(now_ms() + _AFTER_MS)
    await world.accept_again(_MORE)
