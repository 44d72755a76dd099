"""A message in the hands of a consumer, and the handler it goes to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

from duemq.client.consumer.message import Message
from duemq.client.consumer.work.offset_tracker import Book


@dataclass(slots=True, eq=False)
class Route:
    """A handler, how long it may take for one message (s), and how many it has done.

    `queued`: whether it has not begun with a message yet, where handlers wait for a thread: that time is not theirs.
    """

    handler: Callable[[Message], Awaitable[object]]
    timeout_s: float
    queued: Callable[[Message], bool] | None = None
    done: int = 0


@dataclass(slots=True, eq=False)
class Work:
    """A message in hand, of so many bytes. `key`: what it shares its turn with; None where it shares none."""

    message: Message
    route: Route
    book: Book
    offset: int
    size: int = 0
    key: Hashable = None
    holds_key: bool = False
