"""Between which processes bytes pass, and how slowly: the state of the network that the tests make."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

Path = tuple[str, str]
"""One direction: bytes from the first process to the second, by their names."""


class Paths:
    """Every path is open and quick until `change` says otherwise."""

    def __init__(self) -> None:
        self._cut: frozenset[Path] = frozenset()
        self._delay_s: dict[Path, float] = {}
        self._changed = asyncio.Event()

    def change(self, cut: Iterable[Path], delay_s: dict[Path, float]) -> None:
        """The whole state at once: paths that are not named are open and fast."""
        self._cut, self._delay_s = frozenset(cut), dict(delay_s)
        self._changed.set()
        self._changed = asyncio.Event()

    async def pass_through(self, path: Path) -> None:
        """Come back when a chunk of bytes may go on. On a path that is cut it waits, as TCP sends again and again."""
        if delay := self._delay_s.get(path):
            await asyncio.sleep(delay)
        while path in self._cut:
            await self._changed.wait()
