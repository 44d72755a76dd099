"""Wakes everybody who waits for a change of an election."""

from __future__ import annotations

import asyncio


class ChangeSignal:
    """A change that nobody waited for is told to the next one who asks, once."""

    def __init__(self) -> None:
        self._untold = False
        self._waiting: set[asyncio.Future[bool]] = set()

    def tell(self) -> None:
        self._untold = not self._waiting
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(True)
        self._waiting.clear()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """True once something changed; False after the time-out."""
        if self._untold:
            self._untold = False
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(future)
