"""Which partitions a consumer has, as Kafka gives and takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from aiokafka import ConsumerRebalanceListener
from aiokafka.structs import TopicPartition


class Changes(ConsumerRebalanceListener):  # type: ignore[misc]
    """Tells the consumer which partitions it has.

    aiokafka's `assignment()` and `position()` go on giving the old ones until new ones are known, and Kafka takes
    commits for them meanwhile: whoever uses those has to look at `turn` before and after.
    """

    def __init__(
        self,
        gained: Callable[[Collection[TopicPartition]], Awaitable[None]],
        lost: Callable[[Collection[TopicPartition]], Awaitable[None]],
    ) -> None:
        self._gained, self._lost = gained, lost
        self.turn = 0
        """How often partitions came or went."""
        self.gained = asyncio.Event()
        """Set whenever partitions came."""
        self.moving = False
        """They went, and it is not known yet which will come."""

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.turn, self.moving = self.turn + 1, True
        await self._lost(revoked)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self.turn, self.moving = self.turn + 1, False
        self.gained.set()
        await self._gained(assigned)

    async def forget(self, partitions: Collection[TopicPartition]) -> None:
        """What is in hand of these is of a log that is gone. They stay this member's."""
        await self._lost(partitions)
