"""Wakes all tasks that wait for a change in an election."""

from __future__ import annotations

import asyncio


class ChangeSignal:
    """If no task is waiting when a change happens, the next call of `wait` returns at once."""

    def __init__(self) -> None:
        self._is_pending = False
        self._waiters: set[asyncio.Future[bool]] = set()

    def tell(self) -> None:
        self._is_pending = not self._waiters
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(True)
        self._waiters.clear()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Return True once something has changed; False after the time-out."""
        if self._is_pending:
            self._is_pending = False
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.add(future)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(future)
