"""A message in hand, and the route to its handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

from duemq.client.consumer.message import Message
from duemq.client.consumer.work.offset_tracker import OffsetTracker


@dataclass(slots=True, eq=False)
class Route:
    """A handler, its timeout per message (s), and the number of messages that it has finished.

    `queued`: returns whether a message still waits for a thread; the timeout does not include that time.
    """

    handler: Callable[[Message], Awaitable[object]]
    timeout_s: float
    queued: Callable[[Message], bool] | None = None
    done: int = 0


@dataclass(slots=True, eq=False)
class Work:
    """A message in hand, of `size` bytes. `key`: the number of messages with the same key that are handled at once may
    be limited; None: it is not."""

    message: Message
    route: Route
    tracker: OffsetTracker
    offset: int
    size: int = 0
    key: Hashable = None
    holds_key: bool = False
