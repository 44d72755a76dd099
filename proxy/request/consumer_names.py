"""Limits how many consumer names a caller may use (docs/adr/0076)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from duemq.bus.base import Bus
from duemq.cluster.topics.internal_topics import BUFFER
from duemq.model.errors import Rejected
from duemq.model.messages.names import CursorName, fingerprint, list_cursor

MAX_NAMES: Final = 500
"""The most consumer names of one caller, in all topics together. A full list fits into the metadata of one Kafka
offset."""

_BYTES: Final = 6  # the size of each name's digest in the list


class ConsumerNames:
    """Keeps a list of names per caller. A list is stored like a consumer cursor, so that all processes share it.
    Callers without an id have none.

    `on_refused` is called for each name above the limit.

    A name is added to the list before its cursor is stored. If two processes add to one list at the same time, a name
    may be lost.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self.on_refused: Callable[[], None] = lambda: None

    async def add(self, bus: Bus, caller: str, topic: str, consumer: CursorName) -> None:
        """Add a name that has no cursor yet. Raises Rejected `too_many_consumers`."""
        if not caller:
            return
        async with self._lock:
            names, own = await self._read(bus, caller), _digest(topic, consumer)
            if own in names:
                return
            if len(names) >= MAX_NAMES:
                self.on_refused()
                detail = (
                    f"this caller has stored cursors under {MAX_NAMES:,} names of consumers, the limit: delete "
                    "one that is not needed, by DELETE of the same path"
                )
                raise Rejected("too_many_consumers", detail, "consumer")
            await self._write(bus, caller, [*names, own])

    async def remove(self, bus: Bus, caller: str, topic: str, consumer: CursorName) -> None:
        async with self._lock:
            names, own = await self._read(bus, caller), _digest(topic, consumer)
            if own in names:
                await self._write(bus, caller, [name for name in names if name != own])

    async def _read(self, bus: Bus, caller: str) -> list[bytes]:
        stored = await bus.get_consumer_cursor(BUFFER, list_cursor(caller)) or b""
        return [stored[at : at + _BYTES] for at in range(0, len(stored), _BYTES)]

    async def _write(self, bus: Bus, caller: str, names: list[bytes]) -> None:
        await bus.set_consumer_cursor(BUFFER, list_cursor(caller), b"".join(names))


def _digest(topic: str, consumer: CursorName) -> bytes:
    return fingerprint(topic.encode(), consumer.encode())[:_BYTES]
