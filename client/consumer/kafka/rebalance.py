"""The partitions that Kafka assigns to a consumer and revokes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from aiokafka import ConsumerRebalanceListener
from aiokafka.structs import TopicPartition


class Rebalance(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notifies the consumer which partitions were assigned and revoked.

    During a rebalance, aiokafka's `assignment()` and `position()` return the old values, and Kafka still accepts
    commits for the old partitions. So code that uses them has to compare `turn` before and after.
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
        """Partitions were revoked, and the next assignment is not known yet."""
        self.doubts = 0
        """How often `doubt` was called."""
        self.in_doubt = asyncio.Event()
        """Set from a call of `doubt` until `confirm` succeeds."""
        self.sure = asyncio.Event()
        """The opposite of `in_doubt`."""
        self.sure.set()

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.turn, self.moving = self.turn + 1, True
        await self._lost(revoked)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self.turn, self.moving = self.turn + 1, False
        self.doubt()
        await self._gained(assigned)

    def doubt(self) -> None:
        """Require a check whether the partitions' logs are the same as before. The topics may have been recreated:
        partitions were just assigned, or an offset is out of range."""
        self.doubts += 1
        self.sure.clear()
        self.in_doubt.set()

    def confirm(self, doubts: int) -> bool:
        """The check is done. `doubts`: the value of the attribute when the check began. Returns False if `doubt` was
        called again since."""
        if doubts == self.doubts:
            self.in_doubt.clear()
            self.sure.set()
        return self.sure.is_set()

    async def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the messages in hand from these partitions: their logs no longer exist. The partitions stay assigned."""
        await self._lost(partitions)
