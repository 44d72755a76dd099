"""Notifies systemd when the service starts, is ready, works and stops.

A ping means that the event loop runs, and that no shard in any process of the service is stuck. Without pings, systemd
restarts the service. Unreachable brokers make no shard stuck (`delay/probes/liveness.py`).
"""

from __future__ import annotations

import asyncio
import faulthandler
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from time import monotonic

from duemq.background.loop import Loop
from duemq.cli.systemd.notifier import Notifier

_EVERY_S = 5.0  # the status is checked at least this often
_START_S = 60.0  # each check extends a long start by this
_STATUS_CHARS = 200


class Watchdog:
    """`stuck` and `status` are set once they are available: see `Backend.stuck` and `Readiness.sentence`."""

    def __init__(self, notifier: Notifier, stopping: asyncio.Event) -> None:
        self._notifier, self._stopping = notifier, stopping
        self.stuck: Callable[[], Mapping[int, float]] = dict
        self.status: Callable[[], str] = lambda: "it starts"
        self._ready = asyncio.Event()
        every_s = _EVERY_S if notifier.watchdog_s is None else min(_EVERY_S, notifier.watchdog_s / 3)
        self._loop = Loop("watchdog", self._check, every_s=every_s)
        self._told_ready = False
        self._last_status = ""

    def ready_after(self, ready: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[None]]:
        """A function that waits like `ready`, and then notifies systemd."""

        async def wait() -> None:
            await ready()
            self._ready.set()
            self._loop.wake()

        return wait

    async def run(self) -> None:
        """Run until cancelled."""
        await self._loop.run(self._stopping)
        self._notifier.tell("STOPPING=1", "STATUS=it stops")

    async def _check(self) -> None:
        notifier, board = self._notifier, self._notifier.board
        assert board is not None
        if not self.stuck():
            notifier.record(ready=self._ready.is_set())
        assignments = []
        all_well = board.all_well_since(monotonic() - (notifier.watchdog_s or _START_S))
        if not self._told_ready and board.all_ready():
            self._told_ready = True
            assignments.append("READY=1")
        elif not self._told_ready and all_well:
            # Waiting for brokers may take any time, which a restart would not shorten.
            assignments.append(f"EXTEND_TIMEOUT_USEC={int(_START_S * 1_000_000)}")
        if notifier.watchdog_s is not None and all_well:
            assignments.append("WATCHDOG=1")
        status = (self.status() or "ready")[:_STATUS_CHARS]
        if status != self._last_status:
            self._last_status = status
            assignments.append(f"STATUS={status}")
        if assignments:
            notifier.tell(*assignments)


@asynccontextmanager
async def watchdog(notifier: Notifier, stopping: asyncio.Event) -> AsyncIterator[Watchdog]:
    """A watchdog that runs inside the context. Without systemd it does nothing."""
    watching = Watchdog(notifier, stopping)
    if not notifier.address:
        yield watching
        return
    if notifier.watchdog_s is not None:
        faulthandler.enable()  # systemd ends the process by SIGABRT; the traceback then shows the place
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watching.run(), name="watchdog")
        try:
            yield watching
        finally:
            task.cancel()
