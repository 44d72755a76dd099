"""What masters read: frames as soon as they have an offset, before they are durable.

That is safe for a committer alone: nothing sees its cycle before the sync that makes it durable, and that sync, or an
earlier one, makes the commands durable that the cycle read.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from duemq.bus.base import Subscription
from duemq.bus.embedded.chunk import frames_from
from duemq.bus.embedded.chunk_reader import ChunkReader
from duemq.bus.embedded.group_commit import GroupCommit
from duemq.bus.embedded.log_topic import LogPartition
from duemq.bus.subscription import Subscriptions
from duemq.model.messages.record import StoredRecord


class Ahead:
    """See `Bus.ahead`. `find` returns a partition; `history` reads the oldest frames."""

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
        if offset < log_partition.tail.first:
            return self._history.read(log_partition, offset, max_records, max_bytes)
        chunks = [chunk for chunk in self._commits.staged(log_partition) if chunk.end > offset]
        if offset < log_partition.end:
            return frames_from(chain(log_partition.tail.chunks_from(offset), chunks), offset, max_records, max_bytes)
        return frames_from(chunks, offset, max_records, max_bytes)

    def reach(self, topic: str, partition: int) -> int:
        self._commits.check()
        log_partition = self._find(topic, partition)
        return 0 if log_partition is None else log_partition.assigned

    def subscribe(self, topic: str, partition: int | None = None) -> Subscription:
        self._commits.check()
        return self.subscriptions.add(topic, partition)
