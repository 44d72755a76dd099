"""Look-ups of names: one at a time for each shard, and those that come meanwhile go together in the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from duemq.cluster.backend import Backend
from duemq.cluster.shards.shard_reader import NamedMessage

_NAMES_TOGETHER = 1_000


@dataclass
class _Group:
    """Names to look up together, once the command at `offset` is applied."""

    names: dict[bytes, None] = field(default_factory=dict)
    offset: int = -1


class NameLookups:
    """In a cluster a look-up is a request to a node, which costs more than many names in it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._groups: dict[int, tuple[_Group, asyncio.Task[dict[bytes, NamedMessage]]]] = {}  # not yet sent, by shard
        self._turns: dict[int, asyncio.Lock] = {}

    async def messages(self, shard: int, names: Sequence[bytes], offset: int) -> dict[bytes, NamedMessage]:
        """The messages of a shard that have these names once the command at `offset` is applied, and maybe others.

        Raises Unavailable or OutcomeUnknown where nobody says.
        """
        if shard not in self._groups:
            group = _Group()
            self._groups[shard] = group, asyncio.create_task(self._look_up(shard, group), name=f"names {shard}")
        group, task = self._groups[shard]
        group.names.update(dict.fromkeys(names))
        group.offset = max(group.offset, offset)
        return await asyncio.shield(task)  # others wait for it, too

    async def _look_up(self, shard: int, group: _Group) -> dict[bytes, NamedMessage]:
        async with self._turns.setdefault(shard, asyncio.Lock()):
            del self._groups[shard]  # whoever comes from here on is in the next one
            names = list(group.names)
            messages: dict[bytes, NamedMessage] = {}
            for start in range(0, len(names), _NAMES_TOGETHER):
                some = names[start : start + _NAMES_TOGETHER]
                answers = await self._backend.reader.messages_by_name(shard, some, group.offset)
                messages |= {name: one for name, one in zip(some, answers, strict=True) if one is not None}
            return messages
