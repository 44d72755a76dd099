"""Queue selection: chooses the shard of a new message, if it is free to choose.

A message with a name always goes to the shard of its name. The ideas come from RocketMQ's `SelectMessageQueueBy...` and
its latency fault tolerance.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Literal, Protocol

from duemq.bus.partitioner import partition_of

Name = Literal["by_key", "round_robin", "least_latency"]


class ShardRouter(Protocol):
    """Chooses among the shards 0..n-1."""

    @property
    def ordered(self) -> bool:
        """Whether all messages with the same key go to one shard, and so keep their order when they are due
        together."""
        ...

    def pick(self, key: bytes | None = None) -> int:
        """The shard for a message with this key, or for all messages without a key that were sent together."""
        ...

    def measured(self, shard: int, seconds: float) -> None:
        """Record the duration of an append to this shard."""
        ...

    def failed(self, shard: int) -> None:
        """Record a failed append to this shard."""
        ...


def router_of(name: Name, shards: int) -> ShardRouter:
    match name:
        case "by_key":
            return ByKey(shards)
        case "round_robin":
            return RoundRobin(shards)
        case "least_latency":
            return LeastLatency(shards)


class RoundRobin:
    """Chooses the shards in turn, whatever the key."""

    ordered = False

    def __init__(self, shards: int) -> None:
        self._shards, self._turn = shards, count()

    def pick(self, key: bytes | None = None) -> int:
        return next(self._turn) % self._shards

    def measured(self, shard: int, seconds: float) -> None:
        pass

    def failed(self, shard: int) -> None:
        pass


class ByKey(RoundRobin):
    """Chooses the shard that the default partitioner of Kafka's Java client would; round robin without a key.

    Keyed messages that are due in the same millisecond are delivered in the order in which they were accepted.
    """

    ordered = True

    def pick(self, key: bytes | None = None) -> int:
        return super().pick() if key is None else partition_of(key, self._shards)


class LeastLatency:
    """Round robin among the shards whose appends are about as fast as the fastest one's.

    Uses a moving average per shard; a failed shard is not picked for `rest_s` seconds. Every `explore`-th pick tries
    the shard measured longest ago, to find out when a slow or failed shard has recovered. `clock` returns seconds.
    """

    ordered = False
    _WEIGHT = 0.2  # the weight of the latest measurement in the average
    _ABOUT = 1.25

    def __init__(
        self, shards: int, rest_s: float = 5.0, explore: int = 20, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rest_s, self._explore, self._clock = rest_s, explore, clock
        self._average: list[float | None] = [None] * shards
        self._measured_at = [0.0] * shards
        self._resting = [0.0] * shards  # until when each shard is not picked
        self._picked = [0] * shards  # the number of each shard's latest pick
        self._picks = count(1)

    def pick(self, key: bytes | None = None) -> int:
        now, number = self._clock(), next(self._picks)
        every = range(len(self._average))
        awake = [shard for shard in every if self._resting[shard] <= now] or list(every)
        if number % self._explore == 0:
            chosen = min(awake, key=lambda shard: (self._measured_at[shard], self._picked[shard]))
        else:
            # An unmeasured shard counts as fast, so that it is soon measured.
            quickest = min(self._average[shard] or 0.0 for shard in awake)
            quick = [shard for shard in awake if (self._average[shard] or 0.0) <= quickest * self._ABOUT]
            chosen = min(quick, key=lambda shard: self._picked[shard])
        self._picked[chosen] = number
        return chosen

    def measured(self, shard: int, seconds: float) -> None:
        before = self._average[shard]
        self._average[shard] = seconds if before is None else before + self._WEIGHT * (seconds - before)
        self._measured_at[shard] = self._clock()
        self._resting[shard] = 0.0

    def failed(self, shard: int) -> None:
        self._resting[shard] = self._clock() + self._rest_s
        # The average from before the failure predicts little.
        self._average[shard] = None
