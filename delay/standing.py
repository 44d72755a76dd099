"""How a node stands: what it tells the others about itself, and why it is not ready."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from duemq.bus.base import Bus
from duemq.delay.clock import GuardedClock
from duemq.delay.shard import Shard
from duemq.delay.topics import LEDGER
from duemq.election.base import NodeState, Standing

log = logging.getLogger(__name__)

_LAG_TOLD = 100  # entries: a smaller change of the lag is told with the next larger one


class StandingKeeper:
    """Judges a node from what is seen of its shards, its log and its clock."""

    def __init__(self, shards: Mapping[int, Shard], clock: Callable[[], int], max_clock_offset_ms: int) -> None:
        self.caught_up: set[int] = set()
        self.clock_offset_ms = 0.0
        self.lag: dict[int, int] = {}
        self.stopped: dict[int, str] = {}  # shards of a node that is alone, and why
        self._shards, self._clock, self._bound = shards, clock, max_clock_offset_ms
        self._out = ""
        self._told = Standing(NodeState.JOINING)

    def take_out(self, reason: str) -> None:
        """For good: what this node holds is not to be trusted until somebody has looked at it."""
        self._out = self._out or reason
        log.critical("node takes itself out: %s", reason, extra={"action": "out"})

    def why_stopped(self) -> str:
        """Of the shards that do not go on while the others do."""
        return "; ".join(f"shard {number} is stopped: {why}" for number, why in sorted(self.stopped.items()))

    def judge(
        self, trouble: str | None, draining: bool, watermark: int = 0, full: str = "",
        targets: Mapping[str, str] | None = None,
    ) -> Standing:  # fmt: skip
        """`trouble`: of the log. `watermark`, `full`, `targets`: see `Standing`."""
        missing = [number for number in self._shards if number not in self.caught_up and number not in self.stopped]
        if self._out:
            state, reason = NodeState.OUT, self._out
        elif trouble is not None:
            state, reason = NodeState.OUT, trouble
        elif abs(self.clock_offset_ms) > self._bound:
            state = NodeState.OUT
            reason = (
                f"this machine's clock is {-self.clock_offset_ms:+,.0f} ms from the brokers', more than the "
                f"{self._bound} ms allowed (node.max_clock_offset_ms): set it right"
            )
        elif missing:
            state, reason = NodeState.JOINING, f"catching up: {len(missing)} of {len(self._shards)} shards are behind"
        elif self.stopped:
            state, reason = NodeState.OUT, self.why_stopped()
        elif draining:
            state, reason = NodeState.DRAINING, "drained by an operator"
        else:
            waits = (shard.waits() for shard in self._shards.values())
            state, reason = NodeState.READY, next(filter(None, waits), "")
        return Standing(state, reason, self.lag, watermark, full, targets or {})

    def worth_telling(self, standing: Standing) -> bool:
        """Whether the others should hear of it now."""
        before = self._told
        # What it says of a full disk has a figure in it that changes every second.
        changed = (before.state, before.reason, before.watermark, bool(before.full), before.targets) != (
            standing.state,
            standing.reason,
            standing.watermark,
            bool(standing.full),
            standing.targets,
        ) or any(
            abs(behind - before.lag.get(shard, 0)) > _LAG_TOLD or (behind == 0) != (before.lag.get(shard, 0) == 0)
            for shard, behind in standing.lag.items()
        )
        if changed:
            self._told = replace(standing, lag=dict(standing.lag))
        return changed

    async def measure_lag(self, bus: Bus) -> None:
        """Ledger entries that each shard is behind: each takes two offsets, itself and the mark of its transaction."""
        for number, shard in list(self._shards.items()):
            behind = 0 if shard.leading else await bus.end_offset(LEDGER, number) - shard.store.position.ledger_offset
            self.lag[number] = max(behind, 0) // 2

    async def measure_clock(self, bus: Bus) -> None:
        offset = await bus.clock_offset_ms()
        clock = self._clock
        if isinstance(clock, GuardedClock) and clock.stepped_ms:
            step = clock.stepped_ms
            if abs(offset - step) <= self._bound < abs(offset):
                clock.adopt()
                log.warning("clock: followed a step of %+d ms, as the brokers did", step, extra={"action": "clock"})
                offset -= step
            else:
                log.error(
                    "clock: this machine's clock was stepped by %+d ms, which the brokers' was not; "
                    "duemq goes on without the step", step, extra={"action": "clock"},
                )  # fmt: skip
        self.clock_offset_ms = offset
