"""The port to what remembers work by its key: that it was begun, by whom and until when, and how it ended.

Plugs: `rocks` (one process, on its disk), `redis` (many processes) and `memory` (one process, gone with it). All
follow the table in `states`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from duemq.client.consumer.retry.policy import Reject, RetryLater


@dataclass(frozen=True, slots=True)
class Fresh:
    """The work is the caller's to do: nobody has done it, and nobody else may begin it before the lease is over."""


@dataclass(frozen=True, slots=True)
class Done:
    """The work was done, with this result."""

    result: bytes


@dataclass(frozen=True, slots=True)
class Running:
    """`owner` began the work at `since_ms` and may be at it until `until_ms` (epoch ms)."""

    owner: str
    since_ms: int
    until_ms: int


Begun = Fresh | Done | Running


class NothingHappened(Exception):
    """Raised by a handler: it failed, and surely without effect. The message is retried as after any other error, also
    where the work must not be begun again otherwise (at most once)."""


class InDoubt(Reject):
    """The work was begun once and nobody knows whether it took effect. Where it must not take effect twice only a
    human can go on: the message goes to the dead letters. A handler may raise it too."""

    reason = "in_doubt"


class Busy(RetryLater):
    """Another process is at the work: the message comes back when its lease is over. It has not failed: no retry is
    used up."""

    counts = False

    def __init__(self, key: bytes, running: Running, now_ms: int) -> None:
        """`now_ms`: on the clock that the lease is compared with, which may be behind the one that deliveries go by."""
        wait = timedelta(milliseconds=max(running.until_ms - now_ms, 1))
        super().__init__(f"{key!r} is in the hands of {running.owner}", delay=wait)
        self.running = running


class Store(Protocol):
    """`now_ms` is epoch ms on the caller's clock; callers' clocks may differ by much less than a lease.

    `owner` names one attempt, not a process: a second `begin` of the same owner is a repeat of its request, whose
    answer was lost. Everything is durable, as far as the plug can, before its call returns. All raise Unavailable, or
    StoreFailed, which is one; the outcome is unknown then, as it is after a call that was cancelled. What is wrong
    with one key alone is CorruptStore.
    """

    @property
    def shared(self) -> bool:
        """Whether other programs may use the same store. Their handlers are not told apart by module and name."""
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
        """May the work be done? A lease that is over counts no more: who had it is taken for dead, and the work is
        begun again; with `at_most_once` never again, and InDoubt is raised.

        `keep_ms`: for how long after its lease it is remembered that the work was begun, if nobody finishes it.
        `over`: the owner of an earlier attempt that the caller made itself and knows to be over. Where the work is
        still in its hands, it passes to `owner`.
        """
        ...

    async def finish(self, key: bytes, owner: str, result: bytes, now_ms: int, keep_ms: int) -> bool:
        """The work is done; remembered for `keep_ms`. Idempotent.

        False, and nothing is changed: it is not the owner's any more, somebody else began it after the lease.
        """
        ...

    async def release(self, key: bytes, owner: str) -> bool:
        """The work failed and may be begun again. False, and nothing is changed, where it is not the owner's."""
        ...

    async def expire(self, now_ms: int) -> int:
        """Remove what is kept no longer; how many keys. Stores do so by themselves too, bit by bit."""
        ...

    async def close(self) -> None:
        """Idempotent."""
        ...
