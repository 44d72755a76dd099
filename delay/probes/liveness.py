"""Finds shards whose task is stuck: it makes no progress, and no outside cause delays it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Protocol

from duemq.delay.shard.states import ShardState

log = logging.getLogger(__name__)

# Copying a replica may take any length of time, and a stopped shard has no task.
_EXCUSED = frozenset((ShardState.REBUILDING, ShardState.STOPPED, ShardState.CLOSED))


class WatchedShard(Protocol):
    """A shard. `pulse`: when its task began its last cycle or read of the log, on the clock `monotonic` (s)."""

    @property
    def pulse(self) -> float: ...
    @property
    def state(self) -> ShardState: ...


class Liveness:
    """Call `check` about once a second. Time during which an outside cause delayed a shard does not count."""

    def __init__(
        self, shards: Mapping[int, WatchedShard], limit_s: float, excused: Callable[[], bool],
        is_held_up: Callable[[int], bool] = lambda shard: False, now: Callable[[], float] = monotonic,
    ) -> None:  # fmt: skip
        """`limit_s`: a task without progress for longer than this is stuck. `excused`: whether the log, ZooKeeper, or
        the opening or closing of the node delays all shards, so that a restart would not help. `is_held_up`: the same
        for one shard."""
        self._shards, self._limit_s, self._excused, self._now = shards, limit_s, excused, now
        self._is_held_up = is_held_up
        self._excused_at: dict[int, float] = {}
        self._logged: set[int] = set()

    def check(self) -> dict[int, float]:
        """How long (s) each stuck shard has been stuck."""
        now, all_excused = self._now(), self._excused()
        stuck = {}
        for number, shard in self._shards.items():
            if all_excused or shard.state in _EXCUSED or self._is_held_up(number):
                self._excused_at[number] = now
            silent_s = now - max(shard.pulse, self._excused_at.get(number, 0.0))
            if silent_s > self._limit_s:
                stuck[number] = silent_s
                if number not in self._logged:
                    log.critical(
                        "shard %d has been stuck for %.0f s: restart this process", number, silent_s,
                        extra={"action": "stuck", "shard": number},
                    )  # fmt: skip
        self._logged = set(stuck)
        return stuck

    async def watch(self) -> None:
        """Check once, as a background job of the node."""
        self.check()
