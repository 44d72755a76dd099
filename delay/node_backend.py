"""A node in the same process as its gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duemq.bus.base import Bus
from duemq.cluster.backend import DISK_FULL_RETRY_S, NoCluster
from duemq.cluster.figures import Figures, SealedWindow
from duemq.cluster.shards.progress import Progress
from duemq.cluster.shards.shard_reader import ShardReader
from duemq.cluster.shards.view import Operator, cluster_json
from duemq.cluster.topics.topic_states import TopicStates
from duemq.delay.figures import FiguresSource
from duemq.delay.node import Node
from duemq.delay.reads.local_reader import LocalReader
from duemq.model.errors import DiskFull, Unavailable
from duemq.model.readiness import Readiness


class NodeBackend:
    """See `Backend`: the node is in this process. `wait_s`: how long a read waits for its shard to catch up."""

    def __init__(self, node: Node, wait_s: float = 2.0, operator: Operator | None = None) -> None:
        self._node = node
        self.reader: ShardReader = LocalReader(node, wait_s)
        self.operator: Operator = operator or NoCluster()
        self.ids, self.why_clock_out = node.ids, node.watch.why_out
        self.clock, self.delivering = node.watch.accepting, node.watch.delivering
        self.shards = node.folder.info.shards
        self._figures, self._direct = FiguresSource(node), 0

    @property
    def bus(self) -> Bus:
        return self._node.bus

    @property
    def topic_states(self) -> TopicStates:
        return self._node.topic_states

    def progress(self, shard: int) -> Progress:
        local_shard = self._node.shards.get(shard)
        if local_shard is None:
            raise Unavailable(f"shard {shard} is not held here now")
        return local_shard.progress

    def why_closed(self) -> str | None:
        return self._node.why_closed

    def why_not_ready(self) -> str | None:
        return self._node.why_not_ready

    def readiness(self) -> Readiness:
        return self._node.readiness()

    def stuck(self) -> Mapping[int, float]:
        return self._node.liveness.check()

    def why_shard_refuses(self, shard: int) -> str | None:
        return None

    def refuse(self) -> None:
        if (reason := self._node.maintenance.why_full()) is not None:
            raise DiskFull(reason, DISK_FULL_RETRY_S)

    def count_direct(self, messages: int) -> None:
        self._node.observer.direct.inc(messages)
        self._direct += messages

    def lateness(self, topic: str) -> dict[str, Any]:
        lateness = self._node.observer.lateness.get(topic)
        return {"count": 0} if lateness is None else lateness.summary()

    def trouble(self, topic: str) -> str | None:
        return self.topic_states.trouble(topic, self.clock())

    def troubles(self) -> dict[str, str]:
        if self._node.why_closed is not None:  # before the node is opened, it has no topic states
            return {}
        return self.topic_states.troubles(self.clock())

    def cluster(self) -> dict[str, Any]:
        node = self._node
        entries = {number: shard.replica.entry for number, shard in node.shards.items()}
        document = cluster_json(node.folder.info.cluster, self.shards, entries, node.election, self.clock())
        return document | {"topics": self.troubles()}

    async def figures(self) -> list[Figures]:
        """The figures of this node, without the node's name: the caller adds it."""
        closed = self._node.why_closed is not None
        return [] if closed else [self._figures.figures("", self.clock(), self._direct)]

    async def sealed_windows(self, first: int, most: int) -> list[SealedWindow]:
        """See `FiguresSource.sealed_windows`."""
        return [] if self._node.why_closed is not None else self._figures.sealed_windows(first, most)
