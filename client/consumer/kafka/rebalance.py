"""Which partitions a consumer has, as Kafka gives and takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from aiokafka import ConsumerRebalanceListener
from aiokafka.structs import TopicPartition


class Rebalance(ConsumerRebalanceListener):  # type: ignore[misc]
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
        self.moving = False
        """They went, and it is not known yet which will come."""
        self.doubts = 0
        """How often there was a reason to ask whether the partitions are the logs that they were."""
        self.in_doubt = asyncio.Event()
        """Set until that is known."""
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
        """They may be other logs of the same names, because they just came, or because offsets do not fit."""
        self.doubts += 1
        self.sure.clear()
        self.in_doubt.set()

    def confirm(self, doubts: int) -> bool:
        """The partitions were compared after the reason with this number. False where a newer reason came meanwhile."""
        if doubts == self.doubts:
            self.in_doubt.clear()
            self.sure.set()
        return self.sure.is_set()

    async def forget(self, partitions: Collection[TopicPartition]) -> None:
        """What is in hand of these is of a log that is gone. They stay this member's."""
        await self._lost(partitions)
