"""The known end offsets of partitions, from this process's writes and from brokers' answers."""

from __future__ import annotations

from duemq.model.messages.record import Partition


class LogEnds:
    """The ends are grouped by topic, so that all ends of a deleted topic are dropped at once."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, int]] = {}

    def find(self, where: Partition) -> int | None:
        """The end of a partition; None if unknown."""
        return self._topics.get(where[0], {}).get(where[1])

    def end_of(self, where: Partition) -> int:
        """The end of a partition; 0 if unknown."""
        return self.find(where) or 0

    def set(self, where: Partition, end: int) -> None:
        self._topics.setdefault(where[0], {})[where[1]] = end

    def forget(self, topic: str) -> None:
        self._topics.pop(topic, None)
