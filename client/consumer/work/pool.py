"""The port between a consumer and the pool that handles its messages.

Implementations: `worker_pool.py` runs handlers; `relay/groups/lease_pool.py` leases messages to callers of the HTTP
API.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Protocol

from duemq.client.consumer.retry.policy import Pause
from duemq.client.consumer.work.offset_tracker import OffsetTracker
from duemq.client.consumer.work.work import Work


class Owner(Protocol):
    """Is notified of the result of each message."""

    def done(self, work: Work) -> None:
        """The handler of a message has finished it."""
        ...

    async def failed(self, work: Work, error: BaseException) -> float | None:
        """The handler of a message failed. Returns None once the decision is durable, or the seconds until it is
        retried here."""
        ...

    def released(self, work: Work) -> None:
        """A message was not started, or its handler was cancelled by a stop: another member will get it."""
        ...

    def set_aside(self, work: Work) -> None:
        """A message waits for a suspended key. It has to be read again once the key is free."""
        ...

    def pausing(self, work: Work, error: Pause, wait_s: float) -> None:
        """The handler of a message asked for a pause: no other message starts until it is retried, after `wait_s`."""
        ...

    def resumed(self) -> None:
        """The pause has ended."""
        ...

    def pull_again(self) -> None:
        """Messages may be pulled again."""
        ...


class Pool(Protocol):
    """Handles messages, and reports the result of each to the owner."""

    @property
    def paused(self) -> bool:
        """Whether no messages are pulled for the pool at present."""
        ...

    async def run(self) -> None:
        """Run until cancelled."""
        ...

    def put(self, works: Iterable[Work]) -> None:
        """Let these messages start, in this order."""
        ...

    def saved(self) -> None:
        """Positions were stored; see `OffsetTracker.stored`."""
        ...

    def is_free(self, key: Hashable) -> bool:
        """Whether no message waits for the key."""
        ...

    def withdraw(self, keys: Collection[Hashable]) -> None:
        """Set aside messages with these keys that have not started: earlier messages must be read again and handled
        first."""
        ...

    def release(self, trackers: Iterable[OffsetTracker]) -> None:
        """Drop the messages of these partitions that are not being handled yet."""
        ...

    async def finish(self, trackers: Iterable[OffsetTracker], within_s: float) -> bool:
        """Wait until no message of these partitions is being handled; False after `within_s`."""
        ...


MakePool = Callable[[Owner], Pool]
