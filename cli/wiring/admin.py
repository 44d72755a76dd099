"""The administrative log beside the work of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from duemq.bus.base import Bus
from duemq.cluster.admin.api_keys import ApiKeys
from duemq.cluster.admin.log import AdminLog
from duemq.model.errors import Unavailable

if TYPE_CHECKING:  # a proxy does without
    from duemq.delay.node import Node

Work = Callable[[asyncio.Event], Awaitable[None]]


def api_keys_of(node: Node, clock: Callable[[], int]) -> ApiKeys:
    """The keys, in the administrative log of the bus that the node has open."""

    def bus() -> Bus:
        if not hasattr(node, "bus"):
            raise Unavailable("the log is being opened")
        return node.bus

    return ApiKeys(AdminLog(bus, clock), clock)


def beside(admin: AdminLog, work: Work, jobs: Callable[[], Awaitable[None]] | None = None) -> Work:
    """The work, with the log followed as long as it runs, and `jobs` run until it is to end."""

    async def run(shut: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            following = group.create_task(admin.run(), name="administrative log")
            if jobs is not None:
                group.create_task(_until(shut, jobs), name="jobs")
            try:
                await work(shut)
            finally:
                following.cancel()

    return run


async def _until(shut: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
    """The work, cancelled once it is to end."""

    async def run() -> None:
        await work()

    working = asyncio.create_task(run(), name="running jobs")
    waiting = asyncio.create_task(shut.wait(), name="end of jobs")
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        working.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


def both(first: asyncio.Event, second: asyncio.Event) -> Callable[[], Awaitable[object]]:
    """Waits until both are set."""

    async def wait() -> None:
        await first.wait()
        await second.wait()

    return wait


def key_maker(keys: ApiKeys) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
    """Makes keys for who may open the data folder."""

    async def make(fields: dict[str, Any]) -> dict[str, Any]:
        return await keys.make(fields, "data folder")

    return make
