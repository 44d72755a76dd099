"""Views of the log: one shows durable frames only; the other is for masters, which may read frames earlier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import chain

from duemq.bus.base import Subscription
from duemq.bus.embedded.chunk import Chunk, frames_from
from duemq.bus.embedded.chunk_reader import ChunkReader
from duemq.bus.embedded.group_commit import GroupCommit
from duemq.bus.embedded.log_topic import LogPartition
from duemq.bus.subscription import Subscriptions
from duemq.model.messages.record import StoredRecord


class DurableView:
    """Shows the durable frames. `find` returns a partition; `history` reads frames that are no longer in memory. `Bus`
    describes the methods."""

    def __init__(
        self, find: Callable[[str, int], LogPartition | None], commits: GroupCommit, history: ChunkReader
    ) -> None:
        self._find, self._commits, self._history = find, commits, history
        self.subscriptions = Subscriptions(commits.check)

    async def read(
        self, topic: str, partition: int, offset: int, max_records: int, max_bytes: int = 8 << 20
    ) -> list[StoredRecord]:
        self._commits.check()
        log_partition = self._find(topic, partition)
        if log_partition is None or max_records < 1:
            return []
        offset = log_partition.skip(max(offset, log_partition.start.offset))
        if offset >= self._end(log_partition):
            return []
        if offset >= log_partition.tail.first:
            return frames_from(self._newest(log_partition, offset), offset, max_records, max_bytes)
        records = self._history.read(log_partition, offset, max_records, max_bytes)
        # A reader that is far behind would otherwise never yield to other tasks.
        await asyncio.sleep(0)
        return records

    def reach(self, topic: str, partition: int) -> int:
        self._commits.check()
        log_partition = self._find(topic, partition)
        return 0 if log_partition is None else self._end(log_partition)

    def subscribe(self, topic: str, partition: int | None = None) -> Subscription:
        self._commits.check()
        return self.subscriptions.add(topic, partition)

    def _end(self, partition: LogPartition) -> int:
        return partition.end

    def _newest(self, partition: LogPartition, offset: int) -> Iterable[Chunk]:
        """The chunks in memory, from the one that contains `offset` on."""
        return partition.tail.chunks_from(offset)


class AheadView(DurableView):
    """Also shows frames that have an offset but are not durable yet. See `Bus.ahead`.

    Only a master may read these. Its cycle stays invisible until a sync makes it durable, and that sync, or an earlier
    one, also makes the commands durable that the cycle read.
    """

    def _end(self, partition: LogPartition) -> int:
        return partition.assigned

    def _newest(self, partition: LogPartition, offset: int) -> Iterable[Chunk]:
        staged = [chunk for chunk in self._commits.staged(partition) if chunk.end > offset]
        return chain(super()._newest(partition, offset), staged) if offset < partition.end else staged
