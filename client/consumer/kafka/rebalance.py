"""The partitions that Kafka assigns to a consumer and revokes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from aiokafka import ConsumerRebalanceListener
from aiokafka.structs import TopicPartition


class Rebalance(ConsumerRebalanceListener):  # type: ignore[misc]
    """Tells the consumer which partitions it has.

    aiokafka's `assignment()` and `position()` return the old ones until new ones are known, and Kafka still accepts
    commits for them: code that uses those has to compare `turn` before and after.
    """

    def __init__(
        self,
        gained: Callable[[Collection[TopicPartition]], Awaitable[None]],
        lost: Callable[[Collection[TopicPartition]], Awaitable[None]],
    ) -> None:
        self._gained, self._lost = gained, lost
        self.turn = 0
        """How often partitions were assigned or revoked."""
        self.moving = False
        """Revoked, and the next assignment is not known yet."""
        self.doubts = 0
        """How often there was a reason to check whether the partitions' logs are the same as before."""
        self.in_doubt = asyncio.Event()
        """Set until that check is done."""
        self.sure = asyncio.Event()
        """The opposite."""
        self.sure.set()

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.turn, self.moving = self.turn + 1, True
        await self._lost(revoked)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self.turn, self.moving = self.turn + 1, False
        self.doubt()
        await self._gained(assigned)

    def doubt(self) -> None:
        """The logs may be others of the same names: partitions were just assigned, or offsets do not fit."""
        self.doubts += 1
        self.sure.clear()
        self.in_doubt.set()

    def confirm(self, doubts: int) -> bool:
        """The partitions were compared for the doubt with this number. Returns False if a newer doubt arose."""
        if doubts == self.doubts:
            self.in_doubt.clear()
            self.sure.set()
        return self.sure.is_set()

    async def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the messages in hand of these partitions: their log no longer exists. The partitions stay assigned."""
        await self._lost(partitions)
