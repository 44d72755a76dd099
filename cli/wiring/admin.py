"""The administration that runs beside the main work of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from duemq.bus.base import Bus
from duemq.cluster.admin.administration import Administration
from duemq.cluster.admin.trail import TrailEntry
from duemq.model.errors import Unavailable

if TYPE_CHECKING:  # a proxy does not need it
    from duemq.delay.node import Node

_FOLDER = "data folder"  # the author of changes by users with access to the folder

Work = Callable[[asyncio.Event], Awaitable[None]]


def administration_of(node: Node, clock: Callable[[], int]) -> Administration:
    """The administration that uses the node's open bus."""

    def bus() -> Bus:
        if not hasattr(node, "bus"):
            raise Unavailable("the log is being opened")
        return node.bus

    return Administration(bus, clock)


def beside(admin: Administration, work: Work, *others: Callable[[], Awaitable[None]]) -> Work:
    """The work, with the administration running beside it.

    Before the work is asked to end, the others and the trail are cancelled and awaited, so that the log is still open
    for their last writes.
    """

    async def run(shut: asyncio.Event) -> None:
        end = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            following = group.create_task(admin.run(), name="administration")
            first = [group.create_task(_run(one), name=one.__qualname__) for one in (*others, admin.trail.run)]
            working = group.create_task(_run(lambda: work(end)), name=work.__qualname__)
            waiting = group.create_task(_run(shut.wait), name="end of work")
            await asyncio.wait((waiting, working), return_when=asyncio.FIRST_COMPLETED)
            for task in (waiting, *first):
                task.cancel()
            await asyncio.wait(first)
            end.set()
            await asyncio.wait((working,))
            following.cancel()

    return run


async def _run(work: Callable[[], Awaitable[object]]) -> None:
    await work()


def both(first: asyncio.Event, second: asyncio.Event) -> Callable[[], Awaitable[object]]:
    """A function that waits until both events are set."""

    async def wait() -> None:
        await first.wait()
        await second.wait()

    return wait


def key_maker(admin: Administration) -> Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]:
    """A function that creates keys for users with access to the data folder."""

    async def make(fields: dict[str, Any]) -> dict[str, Any]:
        made = await admin.keys.make(fields, _FOLDER, checked=True)
        entry = TrailEntry(admin.clock(), _FOLDER, "", "make_key", made["id"], 200, "", "")
        await admin.trail.act(entry)
        return made

    return make
