"""Resolves references to messages: ids, or names from clients."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from duemq.cluster.backend import Backend
from duemq.cluster.shards.shard_reader import MessageState
from duemq.cluster.topics.internal_topics import INTERNAL
from duemq.model.messages.ids import MessageId
from duemq.model.messages.key import offset_of, read_key
from duemq.model.messages.names import Name, of_caller, of_client, shard_of_name

_LOOK_UPS: Final = 64  # lookups at a time


class Address(NamedTuple):
    """A message in a shard: its id, for the answer, and its first key."""

    id: str
    shard: int
    first_key: bytes

    @property
    def offset(self) -> int:
        """The offset of the command that created the message."""
        return offset_of(self.first_key)


class NamedAddress(NamedTuple):
    """The message in a shard that has this name. `ref`: the name as the client gave it."""

    ref: str
    shard: int
    name: Name


Target = Address | NamedAddress | MessageState | None
"""The target of a change. A `MessageState` is the state of a direct message; None: there is no such message."""


class MessageResolver:
    """Resolves ids and names. For a direct message nothing but its id is known: it was delivered when it was sent."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._direct_topics: dict[int, str] = {}  # topics of direct messages, by checksum

    def of(self, ref: str) -> Address | NamedAddress | MessageId:
        """The address for a name, or for the id of a message in a shard; any other id as it is. Needs no lookup."""
        message_id = self._backend.ids.read(ref)
        if message_id is None:
            return self._named(ref, of_client(ref))
        if message_id.shard >= self._backend.shards:
            return message_id
        return Address(ref, message_id.shard, message_id.key)

    def _named(self, ref: str, name: Name) -> NamedAddress:
        return NamedAddress(ref, shard_of_name(name, self._backend.shards), name)

    def of_key(self, shard: int, first_key: bytes) -> Address:
        """The message with this first key."""
        return Address(self._backend.ids.issue(shard, *read_key(first_key)), shard, first_key)

    async def find(self, ref: str, caller: str = "") -> Address | MessageState | None:
        """The address of a message in a shard, the state of a direct message, or None if there is no such message.
        `caller`: see `Gateway.state`. Raises Unavailable."""
        address = self.of(ref)
        if isinstance(address, Address):
            return address
        if isinstance(address, MessageId):
            return await self._direct(ref, address) if address.direct else None
        for _, shard, name in (self._named(ref, of_caller(caller, ref)), address) if caller else (address,):
            first_key = await self._backend.reader.holder(shard, name)
            if first_key is not None:
                return self.of_key(shard, first_key)
        return None

    async def find_each(self, refs: Sequence[str], caller: str = "") -> list[Address | MessageState | None]:
        """See `find`."""
        targets: list[Address | MessageState | None] = []
        for start in range(0, len(refs), _LOOK_UPS):
            targets += await asyncio.gather(*(self.find(ref, caller) for ref in refs[start : start + _LOOK_UPS]))
        return targets

    async def _direct(self, ref: str, message_id: MessageId) -> MessageState | None:
        topic = self._direct_topics.get(message_id.row)
        if topic is None:
            for info in await self._backend.bus.topics():
                if info.name not in INTERNAL:
                    self._direct_topics[direct_checksum(info.name)] = info.name
            topic = self._direct_topics.get(message_id.row)
            if topic is None:
                return None
        return MessageState(ref, "delivered", topic, message_id.due, attempt=1, delivered_at=message_id.due)


def direct_checksum(topic: str) -> int:
    """The topic's checksum in the id of a direct message."""
    return zlib.crc32(topic.encode())
