"""A node's pending messages per topic, for the shards that it is master of."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping

from duemq.storage.shard.topic_counts import TopicCounts

MOST = 100
"""How many topics are listed at most: those with the most messages."""
OTHERS = "*"
"""The name for all other topics together. No topic has this name."""

_SHARE = 0.002  # the share of the time that this may take: 10,000 topics take 10 ms


class PendingTopics:
    def __init__(self) -> None:
        self._counts: Mapping[str, int] = {}
        self._again = 0.0  # counts are not read again before this time (monotonic, s)

    def counts(self, shards: Iterable[TopicCounts]) -> Mapping[str, int]:
        """Pending messages by topic, from all shards whose messages are counted."""
        started = time.monotonic()
        if started >= self._again:
            by_topic, total = Counter[str](), 0
            for counts in shards:
                if (listed := counts.listed()) is not None:
                    by_topic.update(listed)
                    total += counts.total
            top = dict(by_topic.most_common(MOST))
            others = total - sum(top.values())
            self._counts = top | {OTHERS: others} if others else top
            ended = time.monotonic()
            self._again = ended + (ended - started) / _SHARE
        return self._counts
