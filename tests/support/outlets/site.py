"""The parts of each system that the contract of outlets needs: an outlet, and the messages that arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import NamedTuple, Protocol

from duemq.client.consumer.message import Message
from duemq.relay.base import Outlet
from duemq.relay.memory import MemoryOutlet
from duemq.relay.outlets import RelayPolicy

LOOPBACK = RelayPolicy(private_networks=[ip_network("127.0.0.0/8"), ip_network("::1/128")])
"""What the operator allows, for servers of the tests."""


class Received(NamedTuple):
    """A message as the other side has it, None for null. `headers`: those of the producer, in their order where it
    keeps one."""

    id: str
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    payload: bytes | None


@dataclass
class OutRecord:
    """A record of a topic as a consumer gets it."""

    topic: str = "orders"
    partition: int = 0
    offset: int = 0
    timestamp: int = 1_795_000_000_000
    key: bytes | None = None
    value: bytes | None = b"payload"
    headers: Sequence[tuple[str, bytes | None]] = field(default_factory=list)


def out_message(
    number: int = 0,
    *,
    payload: bytes | None = b"payload",
    key: bytes | None = None,
    headers: Sequence[tuple[str, bytes | None]] = (),
    due_ms: int = 1_795_000_000_000,
) -> Message:
    """A message that duemq delivered. Its id is made of its number."""
    own = [("duemq-id", b"%032x" % number), ("duemq-due", b"%d" % due_ms)]
    return Message(OutRecord(offset=number, key=key, value=payload, headers=[*own, *headers]))


class OutletSite(Protocol):
    """One system. `keeps_headers`: any name and bytes; else text that `docs/guides/destinations.md` describes.
    `tells_repeats_apart`: a message that is sent twice is received once."""

    name: str
    keeps_headers: bool
    tells_repeats_apart: bool

    async def outlet(self) -> Outlet:
        """A new outlet to one and the same place."""
        ...

    async def received(self, count: int) -> list[Received]:
        """All that arrived, once it is as many; fewer after some seconds."""
        ...

    async def stop(self) -> None:
        """The other side goes away at once, as by kill -9."""
        ...

    async def start(self) -> None:
        """It comes back, at the same address, with its data."""
        ...


class MemorySite:
    name, keeps_headers, tells_repeats_apart = "memory", True, False

    def __init__(self) -> None:
        self._outlet = MemoryOutlet()

    async def outlet(self) -> MemoryOutlet:
        return self._outlet

    async def received(self, count: int) -> list[Received]:
        return [Received(each.id, each.key, each.headers, each.value) for each in self._outlet.messages]

    async def stop(self) -> None: ...

    async def start(self) -> None: ...
