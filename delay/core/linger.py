"""How long a shard lets commands and due messages gather before its next cycle (ADR 39)."""

from __future__ import annotations

from typing import NamedTuple

_SHARE = 1 / 12  # of a node's thread, for the fixed price of all its cycles
_FOR_WAITERS = 1.5  # fixed prices that a rest takes where somebody waits for an answer
_MAX_S = 0.05  # the longest rest
_WEIGHT = 1 / 64  # of the last cycle in the price
_PRIOR = 4.0  # a variance (messages squared) as which the price of a message counts that was learned before
_SPIKE, _SPIKE_S = 4.0, 0.001  # a cycle counts as at most this many times its expected CPU, plus this


class CycleWork(NamedTuple):
    """What a cycle did: commands and due messages, and the CPU (s) that it took of the node's thread."""

    messages: int
    cpu_s: float


class NextStart(NamedTuple):
    """When the next cycle may start (s): for somebody who waits for an answer, and for all others."""

    for_waiters: float
    for_all: float


class CyclePrice:
    """What a cycle costs whatever it does, and what each message adds: a line through the cycles of late.

    Least squares, in which a cycle counts less the older it is. As long as all cycles have done equally much, all of
    their CPU counts as fixed.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._messages = self._cpu_s = 0.0  # means
        self._variance = self._covariance = 0.0
        self.fixed_s = self._per_message_s = 0.0

    def observe(self, work: CycleWork) -> None:
        expected_s = self.fixed_s + self._per_message_s * work.messages
        cpu_s = min(work.cpu_s, _SPIKE * expected_s + _SPIKE_S)
        self._seen += 1
        weight = max(_WEIGHT, 1 / self._seen)
        messages, more_s = work.messages - self._messages, cpu_s - self._cpu_s
        self._messages += weight * messages
        self._cpu_s += weight * more_s
        self._variance = (1 - weight) * (self._variance + weight * messages * messages)
        self._covariance = (1 - weight) * (self._covariance + weight * messages * more_s)
        # What was learned stays while cycles differ too little to tell.
        learned = self._covariance + _PRIOR * self._per_message_s
        self._per_message_s = max(learned / (self._variance + _PRIOR), 0.0)
        self.fixed_s = max(self._cpu_s - self._per_message_s * self._messages, self._cpu_s / 10)


class ThreadShare:
    """The share of a node's thread for the fixed price of its cycles, which all of its masters have together."""

    def __init__(self) -> None:
        self.masters = 0
        self._used_until = 0.0

    def use(self, started: float, fixed_s: float) -> float:
        """Use it for a cycle of this price. Returns until when it is used up: in no case longer than if each master had
        made such a cycle just now, for cycles that somebody waited for begin before their time."""
        used_until = max(self._used_until, started) + fixed_s / _SHARE
        self._used_until = min(used_until, started + self.masters * fixed_s / _SHARE)
        return self._used_until


class Linger:
    """The lingering of one master. Times in s, of any clock that goes on steadily.

    A cycle has a fixed price, whatever it does, so cycles should not be more than they need to be. They may take
    their share of the thread with it: what messages cost beside that would only be paid later if they waited for
    longer. Masters in one node rest for longer the more of them are busy.
    """

    def __init__(self, share: ThreadShare, least_s: float = 0.0) -> None:
        """`least_s`: between the starts of two cycles, unless somebody waits."""
        self._share, self._least_s = share, least_s
        self._price = CyclePrice()
        share.masters += 1

    def close(self) -> None:
        """The master leads no more."""
        self._share.masters -= 1

    def next_start(self, started: float, ended: float, work: CycleWork | None, full: bool) -> NextStart:
        """When the next cycle may start after this one. `work`: None where it found nothing to do.

        A backlog (`full`) does not wait.
        """
        if work is not None:
            self._price.observe(work)
        if full:
            return NextStart(ended, ended)
        fixed_s = self._price.fixed_s
        for_waiters = ended + min(_FOR_WAITERS * fixed_s, _MAX_S)
        used_until = started if work is None else self._share.use(started, fixed_s)
        return NextStart(for_waiters, max(for_waiters, min(used_until, ended + _MAX_S), started + self._least_s))
