"""One node, no ZooKeeper: it is master of every shard from joining to leaving."""

from __future__ import annotations

import asyncio


class SingleElection:
    def __init__(self, shards: int) -> None:
        self._all = frozenset(range(shards))
        self._owned: frozenset[int] = frozenset()
        self._changed = asyncio.Event()

    async def join(self) -> None:
        self._set(self._all)

    def owned(self) -> frozenset[int]:
        return self._owned

    async def changed(self, timeout_s: float | None = None) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    async def leave(self) -> None:
        self._set(frozenset())

    def _set(self, owned: frozenset[int]) -> None:
        if owned != self._owned:
            self._owned = owned
            self._changed.set()
