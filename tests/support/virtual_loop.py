"""An event loop in virtual time."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time goes on only where every task waits for time, and then at once."""

    def __init__(self) -> None:
        selector = selectors.DefaultSelector()
        select = selector.select
        self._now = 1_000.0

        def pass_time(timeout: float | None = None) -> Any:
            self._now += timeout or 0.0
            return select(0)

        selector.select = pass_time  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        return self._now
