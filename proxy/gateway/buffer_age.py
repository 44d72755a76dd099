"""Watches the age of commands in a shared log: new commands are refused before the log drops old, unapplied ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from duemq.background.loop import Loop
from duemq.bus.base import Bus
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.model.errors import LogFailed

log = logging.getLogger(__name__)

_SHARE = 0.5  # of the retention: unapplied commands that are older might be dropped
EVERY_S = 5.0  # between checks


class BufferAge:
    """Checks regularly whether a shard has commands that are too old. `retention_ms`: how long the log keeps them."""

    def __init__(self, retention_ms: int, clock: Callable[[], int]) -> None:
        self._most_ms, self._clock = int(retention_ms * _SHARE), clock
        self._old: frozenset[int] = frozenset()

    async def refresh(self, bus: Bus, applied: Mapping[int, int]) -> None:
        """Check all shards once. `applied`: the offset up to which each shard has applied its commands. If the log does
        not answer, the shard's last result stays."""
        before = self._clock() - self._most_ms
        shards = list(applied)
        looks = [self._is_old(bus, shard, applied[shard], before) for shard in shards]
        old = frozenset(shard for shard, is_old in zip(shards, await asyncio.gather(*looks), strict=True) if is_old)
        for shard in old - self._old:
            log.error(
                "shard %d has not applied its commands for %d s: new messages are refused, or the log would drop them "
                "before they are read", shard, self._most_ms // 1000, extra={"action": "old", "shard": shard},
            )  # fmt: skip
        self._old = old

    async def run(self, bus: Bus, applied: Callable[[], Mapping[int, int]]) -> None:
        """Check until cancelled."""
        await Loop("buffer age", lambda: self.refresh(bus, applied()), every_s=EVERY_S, level=logging.DEBUG).run()

    async def _is_old(self, bus: Bus, shard: int, offset: int, before: int) -> bool:
        try:
            return await _is_old(bus, shard, offset, before)
        except LogFailed as error:
            log.debug("the age of the commands of shard %d is not known: %s", shard, error)
            return shard in self._old

    def why_refused(self, shard: int) -> str | None:
        """Why no new message is accepted for a shard, in a sentence."""
        if shard not in self._old:
            return None
        return (
            f"shard {shard} has not applied its commands for {self._most_ms // 1000} s, half of kafka.retention: "
            "messages accepted now could be lost. Start its nodes"
        )


async def _is_old(bus: Bus, shard: int, offset: int, before: int) -> bool:
    """Whether the first unapplied command was appended before this time (epoch ms)."""
    if await bus.first_since(BUFFER, shard, before) <= offset:
        return False
    first = await bus.read(BUFFER, shard, offset, 1)  # it may be a transaction marker instead of a command
    return bool(first) and first[0].timestamp < before
