"""How far partitions go, as far as this process knows: by what it wrote, and by what brokers said."""

from __future__ import annotations

from duemq.model.messages.record import Partition


class LogEnds:
    """Grouped by topic, so that all ends of a deleted topic are dropped at once."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, int]] = {}

    def find(self, where: Partition) -> int | None:
        """The end of a partition; None where nothing is known of it."""
        return self._topics.get(where[0], {}).get(where[1])

    def end_of(self, where: Partition) -> int:
        """The end of a partition; 0 where nothing is known of it."""
        return self.find(where) or 0

    def set(self, where: Partition, end: int) -> None:
        self._topics.setdefault(where[0], {})[where[1]] = end

    def forget(self, topic: str) -> None:
        self._topics.pop(topic, None)
