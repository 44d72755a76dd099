"""The API's interface to a relay. The API does not import the relay: the code that starts the process connects them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple

from duemq.model.destinations.destination import Credentials, Destination
from duemq.model.errors import Rejected


class SystemReply(NamedTuple):
    """The answer to a test message: like `Reply` of `relay/base.py`, with its duration (ms)."""

    result: str
    status: str
    detail: str
    took_ms: float


Test = Callable[[Destination, Credentials], Awaitable[SystemReply]]
"""Sends one message, within the destination's time-out. Raises Rejected `not_supported` if a library is missing."""
FiguresOf = Callable[[str], Mapping[str, Any] | None]
"""The figures of a destination, by name; None if no relay serves it."""

Ended = Callable[[str, Collection[str]], Awaitable[None]]
"""Returns once no relay in this process reads any of these topics for the destination with this name. Raises Rejected
`conflict` if a relay keeps running."""


async def _no_test(destination: Destination, credentials: Credentials) -> SystemReply:
    raise Rejected("not_supported", "this server sends no test messages")


async def none_at_work(name: str, topics: Collection[str]) -> None:
    """The `Ended` of a process without a relay."""


class RelayAccess(NamedTuple):
    test: Test = _no_test
    figures: FiguresOf = lambda name: None
    ended: Ended = none_at_work
