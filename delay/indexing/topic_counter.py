"""Counts a store's pending messages by topic, if an older version of duemq wrote the store (docs/adr/0065)."""

from __future__ import annotations

import asyncio
import logging
from time import thread_time

from duemq.background.loop import Loop
from duemq.delay.replica.prefetch import prefetch_part
from duemq.delay.replica.replica import Replica
from duemq.delay.tiering.completion import complete_windows
from duemq.model.errors import Unavailable
from duemq.model.messages.key import HIGHEST
from duemq.model.messages.row import count_topics

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_AGAIN_S, _LONGEST_S = 30.0, 3600.0
_PART, _PART_BYTES = 500, 4 << 20  # rows counted before other tasks run


class TopicCounter:
    """The shard must keep this `replica` while this runs."""

    def __init__(self, shard: int, replica: Replica) -> None:
        self._shard, self._replica = shard, replica
        self._loop = Loop(
            "count", self._turn, f"shard {shard}", every_s=_LOOK_S, expected=(Unavailable,), first_s=_AGAIN_S,
            longest_s=_LONGEST_S,
        )  # fmt: skip

    async def run(self) -> None:
        """Work until cancelled. Raises Fatal; other errors are retried."""
        await self._loop.run()

    async def _turn(self) -> None:
        began = thread_time()
        while await self.step():
            # Use at most half of a core, because due messages go first.
            await asyncio.sleep(thread_time() - began)
            began = thread_time()

    async def step(self) -> bool:
        """Count some messages. False if all are counted. Raises Unavailable if the total differs from the ledger's."""
        store = self._replica.store
        if store.topic_counts.built:
            return False
        await prefetch_part(store, self._after(), HIGHEST)
        while True:
            window = store.delay_files.next_after(self._after())
            if window is None or not store.delay_files.rowless(window):
                break
            await complete_windows(store, [window])
        # No await from here on, so that the rows of all messages in this part have been read.
        _, rows, last = store.scan_part(self._after(), HIGHEST, _PART, _PART_BYTES)
        store.count_topics(count_topics(rows), HIGHEST if last is None else last)
        if last is None:
            if not store.topic_counts.built:
                raise Unavailable(f"shard {self._shard}: messages counted by topic are not as many as are pending")
            log.info("shard %d: counted by topic", self._shard, extra={"action": "count", "shard": self._shard})
        return True

    def _after(self) -> bytes:
        return max(self._replica.store.topic_counts.through, self._replica.entry.cursor)
