"""What the API asks a relay for. The API does not import it: who starts the process brings both together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple

from duemq.model.destinations.destination import Credentials, Destination
from duemq.model.errors import Rejected


class SystemReply(NamedTuple):
    """What the other side said to a test message: as `Reply` of `relay/base.py`, with how long it took (ms)."""

    result: str
    status: str
    detail: str
    took_ms: float


Test = Callable[[Destination, Credentials], Awaitable[SystemReply]]
"""Sends one message, within the destination's time-out. Raises Rejected `not_supported` where a library is missing."""
FiguresOf = Callable[[str], Mapping[str, Any] | None]
"""Of a destination, by name, what relays have counted; None where none is at work for it."""

Ended = Callable[[str, Collection[str]], Awaitable[None]]
"""Returns once no relay in this process reads any of these topics for a destination, by name. Raises Rejected
`conflict` where one goes on."""


async def _no_test(destination: Destination, credentials: Credentials) -> SystemReply:
    raise Rejected("not_supported", "this server sends no test messages")


async def none_at_work(name: str, topics: Collection[str]) -> None:
    """Of a process without a relay."""


class RelayAccess(NamedTuple):
    test: Test = _no_test
    figures: FiguresOf = lambda name: None
    ended: Ended = none_at_work
