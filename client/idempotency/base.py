"""The port to a store of work by key. It records who began the work, until when the lease lasts, and the result.

Implementations: `rocks` (one process, on its disk), `redis` (many processes) and `memory` (one process, not durable).
All follow the table in `states`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from duemq.client.consumer.retry.policy import Reject, RetryLater


@dataclass(frozen=True, slots=True)
class Fresh:
    """The caller may do the work: it has not been done, and no other caller may begin it before the lease ends."""


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
    """Raised by a handler that failed and certainly had no effect. The message is retried as after any other error,
    even with at-most-once work, which is not begun again after other errors."""


class InDoubt(Reject):
    """The work was begun, and it is unknown whether it took effect. If it must not take effect twice, only a human can
    decide, so the message becomes a dead letter. A handler may raise this error, too."""

    reason = "in_doubt"


class Busy(RetryLater):
    """Another process is doing the work. The message comes back when that process's lease ends. It has not failed, so
    no retry is used up."""

    counts = False

    def __init__(self, key: bytes, running: Running, now_ms: int) -> None:
        """`now_ms`: the time on the clock that leases are compared with, which may be behind the clock that delivers
        messages."""
        wait = timedelta(milliseconds=max(running.until_ms - now_ms, 1))
        super().__init__(f"{key!r} is in the hands of {running.owner}", delay=wait)
        self.running = running


class Store(Protocol):
    """`now_ms` is epoch ms on the caller's clock; callers' clocks may differ by much less than a lease.

    `owner` identifies one attempt, not a process: a second `begin` by the same owner repeats a request whose answer was
    lost. A call returns once its effect is as durable as the implementation can make it. All methods raise Unavailable,
    or its subclass StoreFailed; after these errors, and after a cancelled call, the outcome is unknown. CorruptStore
    means that only this key is damaged.
    """

    @property
    def shared(self) -> bool:
        """Whether other programs may use the same store. If so, its module and name do not suffice to identify a
        handler."""
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
        """Ask whether `owner` may do the work. If another owner's lease has ended, that owner is considered dead, and
        the work may be begun again; with `at_most_once`, InDoubt is raised instead.

        `keep_ms`: how long after the end of the lease the store remembers that unfinished work was begun. `over`: the
        owner of an earlier attempt by this caller that has certainly ended. If the work still belongs to that owner, it
        passes to `owner`.
        """
        ...

    async def finish(self, key: bytes, owner: str, result: bytes, now_ms: int, keep_ms: int) -> bool:
        """Record that the work is done. The result is kept for `keep_ms`. Idempotent.

        Returns False, and changes nothing, if another owner has begun the work after the lease ended.
        """
        ...

    async def release(self, key: bytes, owner: str) -> bool:
        """Record that the work failed and may be begun again. Returns False, and changes nothing, if the work belongs
        to another owner."""
        ...

    async def expire(self, now_ms: int) -> int:
        """Remove expired keys, and return their number. Stores also remove them in the background, a few at a time."""
        ...

    async def close(self) -> None:
        """Close the store. Idempotent."""
        ...
