"""Connects an outlet only once for all messages that wait for the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SharedConnect(Generic[T]):
    """Calls `connect` once for all waiting callers. Each gets the result: the connection, or the reason for the
    failure."""

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, T]], system: str) -> None:
        self._connect, self._system = connect, system
        self._task: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """Wait for the result. Cancelling one caller does not affect the others."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._connect(), name=f"connect to {self._system}")
        return await asyncio.shield(self._task)

    async def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
