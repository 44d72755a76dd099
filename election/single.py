"""One node, no ZooKeeper: it is master of every shard from when it joins until it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from duemq.election.base import Member, NodeHealth
from duemq.election.changes import ChangeSignal

_NAME = "local"


class SingleElection:
    """`url`: this node's URL, for lists of members."""

    def __init__(self, shards: int, url: str = "") -> None:
        self._all = frozenset(range(shards))
        self._owned_shards: frozenset[int] = frozenset()
        self._changes = ChangeSignal()
        self._me = Member(_NAME, url)

    async def join(self) -> None:
        self._set(self._all)

    def owned_shards(self) -> frozenset[int]:
        return self._owned_shards

    def is_paused(self) -> bool:
        return False

    async def wait_for_change(self, timeout_s: float | None = None) -> bool:
        return await self._changes.wait(timeout_s)

    async def release(self, shard: int) -> None:
        await asyncio.sleep(0)

    async def report(self, health: NodeHealth) -> None:
        self._me = Member(_NAME, self._me.url, health=health)

    def members(self) -> Sequence[Member]:
        return [self._me]

    def masters(self) -> Mapping[int, str]:
        return dict.fromkeys(sorted(self._owned_shards), _NAME)

    def draining(self) -> bool:
        return False

    async def leave(self) -> None:
        self._set(frozenset())

    def _set(self, shards: frozenset[int]) -> None:
        if shards != self._owned_shards:
            self._owned_shards = shards
            self._changes.tell()
