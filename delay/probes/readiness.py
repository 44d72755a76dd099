"""A node's readiness in the API's words, from its condition and the states of its shards."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from duemq.delay.health import HealthTracker
from duemq.delay.node_states import Condition
from duemq.delay.shard.shard import Shard
from duemq.model.readiness import Readiness, Reason, ShardTrouble

_OF_CONDITIONS: Final[Mapping[Condition, Reason]] = {
    Condition.LOG_LOST: Reason.LOG_LOST,
    Condition.CLOCK_WRONG: Reason.CLOCK_WRONG,
    Condition.CATCHING_UP: Reason.CATCHING_UP,
    Condition.UNFIT: Reason.UNFIT,
}


def readiness(
    condition: Condition | None, closed: Reason, health: HealthTracker, stuck: Collection[int], dead: Collection[int],
    topics: Collection[str] = (),
) -> Readiness:  # fmt: skip
    """`closed`: why a node without a condition is not open. `dead`: shards that were stopped, because their data must
    not be trusted. `topics`: those of duemq's own topics that have a fault."""
    if condition is None:
        return Readiness(closed)
    troubles = {number: _trouble(number, shard, health, stuck, dead) for number, shard in health.shards.items()}
    shards = {number: trouble for number, trouble in troubles.items() if trouble is not None}
    return Readiness(_OF_CONDITIONS.get(condition), shards, tuple(sorted(topics)))


def _trouble(
    number: int, shard: Shard, health: HealthTracker, stuck: Collection[int], dead: Collection[int]
) -> ShardTrouble | None:
    if number in dead:
        reason = Reason.STOPPED
    elif shard.stopped:
        reason = Reason.FAILED
    elif shard.rebuilding:
        reason = Reason.REBUILDING
    elif number in stuck:
        reason = Reason.STUCK
    elif health.is_unreadable(number):
        reason = Reason.LOG_UNREADABLE
    elif number in health.unfit:
        reason = Reason.BEHIND
    elif number not in health.caught_up:
        reason = Reason.CATCHING_UP
    elif shard.waits() is not None:
        reason = Reason.WAITS_FOR_FILE
    elif number in health.why_unfit():
        reason = Reason.LAGS
    elif shard.trouble() is not None:
        reason = Reason.FILE_WORK_FAILS
    else:
        return None
    return ShardTrouble(reason, str(shard.state))
