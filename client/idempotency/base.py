"""The port to a store of work by key: that it was begun, by which owner and until when, and how it ended.

Plugs: `rocks` (one process, on its disk), `redis` (many processes) and `memory` (one process, not durable). All follow
the table in `states`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from duemq.client.consumer.retry.policy import Reject, RetryLater


@dataclass(frozen=True, slots=True)
class Fresh:
    """The caller may do the work: it is not done, and no other caller may begin it before the lease ends."""


@dataclass(frozen=True, slots=True)
class Done:
    """The work was done, with this result."""

    result: bytes


@dataclass(frozen=True, slots=True)
class Running:
    """`owner` began the work at `since_ms` and may be working on it until `until_ms` (epoch ms)."""

    owner: str
    since_ms: int
    until_ms: int


Begun = Fresh | Done | Running


class NothingHappened(Exception):
    """Raised by a handler: it failed, and certainly without effect. The message is retried as after any other error,
    even if the work must otherwise not be begun again (at most once)."""


class InDoubt(Reject):
    """The work was begun once and it is unknown whether it took effect. If it must not take effect twice, only a human
    can decide: the message becomes a dead letter. A handler may raise it, too."""

    reason = "in_doubt"


class Busy(RetryLater):
    """Another process is doing the work: the message comes back when its lease ends. It has not failed: no retry is
    used up."""

    counts = False

    def __init__(self, key: bytes, running: Running, now_ms: int) -> None:
        """`now_ms`: on the clock that the lease is compared with, which may be behind the one of deliveries."""
        wait = timedelta(milliseconds=max(running.until_ms - now_ms, 1))
        super().__init__(f"{key!r} is in the hands of {running.owner}", delay=wait)
        self.running = running


class Store(Protocol):
    """`now_ms` is epoch ms on the caller's clock; callers' clocks may differ by much less than a lease.

    `owner` names one attempt, not a process: a second `begin` of the same owner repeats a request whose answer was
    lost. A call returns when its effect is as durable as the plug can make it. All raise Unavailable, or its subclass
    StoreFailed; then, and after a cancelled call, the outcome is unknown. CorruptStore means that only this key is
    damaged.
    """

    @property
    def shared(self) -> bool:
        """Whether other programs may use the same store. Module and name do not identify a handler then."""
        ...

    async def begin(
        self,
        key: bytes,
        owner: str,
        now_ms: int,
        lease_ms: int,
        keep_ms: int,
        at_most_once: bool = False,
        over: str = "",
    ) -> Begun:
        """May the work be done? A lease that has ended no longer counts: its owner is considered dead, and the work
        begins again; with `at_most_once` it never does, and InDoubt is raised.

        `keep_ms`: how long after its lease unfinished work stays known as begun. `over`: owner of an earlier attempt of
        this caller that has certainly ended. If that owner still has the work, it passes to `owner`.
        """
        ...

    async def finish(self, key: bytes, owner: str, result: bytes, now_ms: int, keep_ms: int) -> bool:
        """The work is done; remembered for `keep_ms`. Idempotent.

        False without a change: another owner has begun the work after the lease.
        """
        ...

    async def release(self, key: bytes, owner: str) -> bool:
        """The work failed and may be begun again. False without a change if it belongs to another owner."""
        ...

    async def expire(self, now_ms: int) -> int:
        """Remove expired keys, and return their number. Stores also do so on their own, bit by bit."""
        ...

    async def close(self) -> None:
        """Idempotent."""
        ...
