"""A message in the hands of a consumer, and the handler it goes to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

from duemq.client.consumer.message import Message
from duemq.client.consumer.work.offset_tracker import OffsetTracker


@dataclass(slots=True, eq=False)
class Route:
    """A handler, its timeout per message (s), and the number of messages it has finished.

    `queued`: whether a message still waits for a thread: that time does not count against the timeout.
    """

    handler: Callable[[Message], Awaitable[object]]
    timeout_s: float
    queued: Callable[[Message], bool] | None = None
    done: int = 0


@dataclass(slots=True, eq=False)
class Work:
    """A message in hand, of `size` bytes. `key`: messages with the same key take turns; None: no turns."""

    message: Message
    route: Route
    tracker: OffsetTracker
    offset: int
    size: int = 0
    key: Hashable = None
    holds_key: bool = False
