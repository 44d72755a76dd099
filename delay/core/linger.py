"""How long a shard collects commands and due messages before its next cycle (ADR 39)."""

from __future__ import annotations

from typing import NamedTuple

_SHARE = 1 / 12  # the share of a node's thread for the fixed cost of all its cycles
_FOR_WAITERS = 1.5  # the pause while a request waits for an answer, in fixed costs
_MAX_S = 0.05  # the longest pause
_WEIGHT = 1 / 64  # the least weight of the last cycle in the estimated cost
_PRIOR = 4.0  # the weight, as a variance (messages squared), of the previous estimate of the cost per message
_SPIKE, _SPIKE_S = 4.0, 0.001  # a cycle's CPU is capped at this many times the expected CPU, plus this many seconds


class CycleWork(NamedTuple):
    """The work of a cycle: commands and due messages, and its CPU time (s) on the node's thread (None if it was not
    measured)."""

    messages: int
    cpu_s: float | None


class NextStart(NamedTuple):
    """When the next cycle may start (s): `for_waiters` if a request waits for an answer, otherwise `for_all`."""

    for_waiters: float
    for_all: float


class CyclePrice:
    """A cycle's fixed cost and its cost per message: a line fitted to recent cycles.

    Fitted by least squares, with weights that fall with age. While all cycles have the same number of messages, all of
    their CPU time is taken as fixed cost.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._messages = self._cpu_s = 0.0  # means
        self._variance = self._covariance = 0.0
        self.fixed_s = self._per_message_s = 0.0

    def observe(self, work: CycleWork) -> None:
        if work.cpu_s is None:
            return
        expected_s = self.fixed_s + self._per_message_s * work.messages
        cpu_s = min(work.cpu_s, _SPIKE * expected_s + _SPIKE_S)
        self._seen += 1
        weight = max(_WEIGHT, 1 / self._seen)
        messages, more_s = work.messages - self._messages, cpu_s - self._cpu_s
        self._messages += weight * messages
        self._cpu_s += weight * more_s
        self._variance = (1 - weight) * (self._variance + weight * messages * messages)
        self._covariance = (1 - weight) * (self._covariance + weight * messages * more_s)
        # Keep the previous estimate while the cycles' numbers of messages differ too little.
        learned = self._covariance + _PRIOR * self._per_message_s
        self._per_message_s = max(learned / (self._variance + _PRIOR), 0.0)
        self.fixed_s = max(self._cpu_s - self._per_message_s * self._messages, self._cpu_s / 10)


class ThreadShare:
    """The share of a node's thread that all of its masters together may use for the fixed cost of cycles."""

    def __init__(self) -> None:
        self.masters = 0
        self._used_until = 0.0

    def use(self, started: float, fixed_s: float) -> float:
        """Use the share for a cycle with this fixed cost. Returns when the share is available again.

        That time is never later than if each master had made one such cycle now. The limit is needed because cycles
        that a request waits for start before the share is available.
        """
        used_until = max(self._used_until, started) + fixed_s / _SHARE
        self._used_until = min(used_until, started + self.masters * fixed_s / _SHARE)
        return self._used_until


class Linger:
    """The lingering of one master. Times in s, from any steady clock.

    A cycle has a fixed cost, so there should be no more cycles than necessary. The fixed costs may use their share of
    the thread; waiting longer would only postpone the cost of the messages. The more masters of a node are busy, the
    longer each pauses.
    """

    def __init__(self, share: ThreadShare, least_s: float = 0.0) -> None:
        """`least_s`: the least time between the starts of two cycles, unless a request waits."""
        self._share, self._least_s = share, least_s
        self._price = CyclePrice()
        share.masters += 1

    def close(self) -> None:
        """Stop counting this master: it no longer leads."""
        self._share.masters -= 1

    def next_start(self, started: float, ended: float, work: CycleWork | None, full: bool) -> NextStart:
        """When the next cycle may start after this one. `work`: None if this cycle had nothing to do.

        After a `full` cycle there is a backlog, and the next cycle starts at once.
        """
        if work is not None:
            self._price.observe(work)
        if full:
            return NextStart(ended, ended)
        fixed_s = self._price.fixed_s
        for_waiters = ended + min(_FOR_WAITERS * fixed_s, _MAX_S)
        used_until = started if work is None else self._share.use(started, fixed_s)
        return NextStart(for_waiters, max(for_waiters, min(used_until, ended + _MAX_S), started + self._least_s))
