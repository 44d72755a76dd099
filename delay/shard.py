"""A shard that this node is master of: from taking it over to giving it back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from duemq.bus.base import Bus
from duemq.delay.master import Context, Master, Pace
from duemq.delay.observe import ShardGauges
from duemq.delay.progress import Progress
from duemq.delay.replica import Replica
from duemq.delay.topics import BUFFER, LEDGER, committer_name
from duemq.model.ids import IdCodec
from duemq.storage.rocks import Memory
from duemq.storage.store import ShardStore

log = logging.getLogger(__name__)


class Shard:
    """Opens the store, fences the predecessor, follows the ledger to its end, then runs cycles until cancelled."""

    def __init__(self, number: int, path: Path, memory: Memory, bus: Bus, ids: IdCodec) -> None:
        self.number, self._bus = number, bus
        self.store = ShardStore(path, memory)
        self.replica = Replica(number, self.store, ids)
        self.progress = Progress()
        self._flushing = asyncio.Lock()

    async def run(self, context: Context, pace: Pace, gather_s: float, ready: Callable[[int], None]) -> None:
        """Be the master until cancelled; `ready` is called once it is. Raises what `Master.tick` raises."""
        loop = asyncio.get_running_loop()
        # Fence first, then read the ledger to its end: nothing can be appended to it in between.
        committer = await self._bus.committer(committer_name(self.number))
        subscription = self._bus.subscribe(BUFFER, self.number)
        try:
            followed = await self.replica.follow(self._bus)
            self.progress.publish(self.replica.entry)
            master = Master(self.replica, self._bus, committer, context, pace, self.progress)
            log.info(
                "shard %d is master at entry %d after following %d entries, %d messages pending",
                self.number, self.replica.entry.number, followed, self.replica.entry.pending,
                extra={"action": "master", "shard": self.number},
            )  # fmt: skip
            ready(self.number)
            while True:
                started = loop.time()
                pause = await master.tick()
                if pause > 0:
                    await subscription.wait(pause)
                # Many small cycles cost more than few larger ones: let commands and due messages gather.
                gap = started + gather_s - loop.time()
                await asyncio.sleep(max(gap, 0))
        finally:
            subscription.close()
            await committer.close()

    async def flush(self) -> None:
        """Make the store durable, and let the logs go up to where it is now."""
        async with self._flushing:
            position = self.store.position
            await asyncio.to_thread(self.store.flush)
            await self._bus.trim(BUFFER, self.number, position.entry.applied)
            # The last entry stays, so that `duemq verify` can compare the store with the ledger.
            await self._bus.trim(LEDGER, self.number, max(position.ledger_offset - 1, 0))

    def gauges(self) -> ShardGauges:
        entry, wheel = self.replica.entry, self.replica.wheel
        return ShardGauges(self.number, entry.pending, wheel.next_due(), entry.applied, wheel.all_totals())

    async def close(self) -> None:
        async with self._flushing:
            self.store.close()
