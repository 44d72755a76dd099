"""A node's health: the report to other nodes, and the reasons why it is not ready."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from duemq.bus.base import Bus
from duemq.cluster.clocks.clock_watch import ClockWatch
from duemq.cluster.topics.internal_topics import BUFFER, LEDGER
from duemq.delay.node_states import EFFECTS, Condition
from duemq.delay.shard.shard import Shard
from duemq.election.base import NodeHealth, NodeState

log = logging.getLogger(__name__)

_LAG_BOUND = 1_000  # entries, from ten seconds of cycles or more: a node that lags more cannot lead the shard
_REASON_CHARS = 300
_LAG_STEP = 100  # entries: the lag is reported again once it has changed by more than this


def why_unfit(unfit: Mapping[int, str]) -> str:
    """Why shards cannot be led, as a sentence; empty if all can."""
    sentences = ((f"shard {number}", why) for number, why in sorted(unfit.items()))
    return "; ".join(why if shard in why else f"{shard}: {why}" for shard, why in sentences)


class HealthTracker:
    """Judges a node by its shards, its log and its clock."""

    def __init__(self, shards: Mapping[int, Shard], clock: ClockWatch) -> None:
        self.caught_up: set[int] = set()
        self.lag: dict[int, int] = {}
        self.unfit: dict[int, str] = {}  # shards that this node cannot be master of, and why
        self.shards, self._clock = shards, clock
        self._unreadable: dict[int, str] = {}  # shards whose part of the log this node cannot read, and why
        self._last_report = NodeHealth(NodeState.JOINING)

    def is_fit(self, shard: int) -> bool:
        """Whether the replica has caught up with its ledger and may lead."""
        return shard in self.caught_up and shard not in self.why_unfit()

    def is_known(self, shard: int) -> bool:
        """Whether the replica has caught up with its ledger, or is known to be unable to. Waiting for a file does not
        count as unable: the replica may catch up soon."""
        return shard in self.caught_up or shard in self.unfit or shard in self._unreadable

    def why_unfit(self) -> dict[int, str]:
        """The shards that this node cannot be master of now, and why. Includes shards that wait, lag, or cannot read
        their part of the log."""
        unfit = self._unreadable | self.unfit
        for number, shard in self.shards.items():
            if number in unfit or shard.leading:
                continue
            behind, before = self.lag.get(number, 0), self._last_report.unfit
            if waits := shard.waits():
                unfit[number] = waits
            elif behind > (_LAG_BOUND // 2 if number in before else _LAG_BOUND):
                unfit[number] = f"shard {number} is more than {_LAG_BOUND // 2:,} ledger entries behind"
        return {number: why[:_REASON_CHARS] for number, why in unfit.items()}

    def see_log(self, bus: Bus) -> None:
        """Record the shards whose own partitions of the log cannot be read. Other partitions do not affect a shard."""
        troubles = bus.troubles()
        self._unreadable = {
            number: f"shard {number}: {why}"
            for number in self.shards
            if (why := troubles.get((LEDGER, number)) or troubles.get((BUFFER, number)))
        }

    def is_unreadable(self, shard: int) -> bool:
        """Whether the shard's own part of the log was unreadable at the last check."""
        return shard in self._unreadable

    def judge(
        self, trouble: str | None, draining: bool, watermark: int = 0, full: str = "",
        topic_states: Mapping[str, str] | None = None, *, alone: bool = False,
    ) -> tuple[Condition, NodeHealth]:  # fmt: skip
        """The node's condition, and its report to the other nodes.

        `trouble`: the trouble with the log as a whole. `watermark`, `full`, `topic_states`: see `NodeHealth`. `alone`:
        no other node can lead the shards that this node cannot lead.
        """
        unfit = self.why_unfit()
        # A shard that waits for a file which no replica has is unfit; a shard whose file may still arrive is catching
        # up.
        missing = [
            number
            for number, shard in self.shards.items()
            if number not in self.caught_up
            and (number not in unfit or (shard.seeks_file() and number not in self.unfit))
        ]
        if trouble is not None:
            condition, reason = Condition.LOG_LOST, trouble
        elif (wrong := self._clock.why_out()) is not None:
            condition, reason = Condition.CLOCK_WRONG, wrong
        elif missing:
            condition, reason = (
                Condition.CATCHING_UP,
                f"catching up: {len(missing)} of {len(self.shards)} shards are behind",
            )
        elif unfit and len(unfit) == len(self.shards):
            condition, reason = Condition.UNFIT, why_unfit(unfit)
        elif draining:
            condition, reason = Condition.DRAINED, "drained by an operator"
        elif unfit and alone:
            condition, reason = Condition.UNFIT, why_unfit(unfit)
        else:
            troubles = (shard.trouble() for shard in self.shards.values())
            condition, reason = Condition.FIT, next(filter(None, troubles), self._clock.why_old() or "")
        state = EFFECTS[condition].state
        return condition, NodeHealth(state, reason, self.lag, watermark, full, unfit, topic_states or {})

    def worth_telling(self, health: NodeHealth) -> bool:
        """Whether to report this health to the other nodes now."""
        before = self._last_report
        # Whether the disk is full is compared as a bool: its text contains a figure that changes every second.
        changed = (
            before.state,
            before.reason,
            before.watermark,
            bool(before.full),
            before.unfit,
            before.topic_states,
        ) != (
            health.state,
            health.reason,
            health.watermark,
            bool(health.full),
            health.unfit,
            health.topic_states,
        ) or any(
            abs(behind - before.lag.get(shard, 0)) > _LAG_STEP or (behind == 0) != (before.lag.get(shard, 0) == 0)
            for shard, behind in health.lag.items()
        )
        if changed:
            self._last_report = replace(health, lag=dict(health.lag))
        return changed

    async def measure_lag(self, bus: Bus) -> None:
        """Measure how many ledger entries each shard is behind. An entry takes two offsets, one for its transaction's
        marker."""
        for number, shard in list(self.shards.items()):
            if self.is_unreadable(number):
                continue  # waiting for it would leave no time for the others
            behind = 0 if shard.leading else await bus.end_offset(LEDGER, number) - shard.replica.read_to
            self.lag[number] = max(behind, 0) // 2
