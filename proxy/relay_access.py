"""The API's interface to a relay. The API does not import the relay: the process start connects both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from duemq.model.destinations.destination import Credentials, Destination
from duemq.model.errors import Rejected

if TYPE_CHECKING:  # a server without groups does not need it
    from duemq.client.consumer.message import Message


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
"""Returns once no relay in this process reads any of these topics for a destination, by name. Raises Rejected
`conflict` if one keeps running."""


class MessageLease(Protocol):
    """A leased message. `until`: the end of the lease, epoch ms."""

    @property
    def receipt(self) -> str: ...
    @property
    def message(self) -> Message: ...
    @property
    def until(self) -> int: ...


class GroupLeases(Protocol):
    """The messages of a group: see `LeasePool` of `relay/groups/lease_pool.py`."""

    async def receive(self, most: int, visibility: int, wait_s: float) -> Sequence[MessageLease]: ...
    def give_back(self, receipts: Iterable[str]) -> None: ...
    async def ack(self, receipts: Sequence[str]) -> list[bool]: ...
    async def nack(self, receipts: Sequence[str], delay_ms: int | None, reason: str, *, dead: bool) -> list[bool]: ...
    def extend(self, receipts: Sequence[str], visibility: int) -> list[bool]: ...


LeasesOf = Callable[[str], Awaitable[GroupLeases]]
"""The leases of a group, by the name of its destination, once a relay in this process is at work for it."""


async def _no_test(destination: Destination, credentials: Credentials) -> SystemReply:
    raise Rejected("not_supported", "this server sends no test messages")


async def none_at_work(name: str, topics: Collection[str]) -> None:
    """For a process without a relay."""


class RelayAccess(NamedTuple):
    test: Test = _no_test
    figures: FiguresOf = lambda name: None
    ended: Ended = none_at_work
    leases: LeasesOf | None = None
    """None: no relay in this process leases messages."""
