"""The backend of a proxy's gateway: the log, its ledger, and remote nodes that answer reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter

from duemq.bus.base import Bus
from duemq.cluster.backend import DISK_FULL_RETRY_S
from duemq.cluster.clocks.clock_watch import ClockCollector, ClockWatch
from duemq.cluster.figures import Figures, SealedWindow
from duemq.cluster.shards.progress import Progress
from duemq.cluster.shards.shard_reader import ShardReader
from duemq.cluster.shards.view import ClusterView, Operator, cluster_json
from duemq.cluster.topics.blocked import BlockedCollector, blocked_shards
from duemq.cluster.topics.topic_states import TopicStates
from duemq.election.base import NodeState
from duemq.model.errors import DiskFull, Unavailable
from duemq.model.messages.ids import IdCodec
from duemq.model.readiness import SENTENCES, Readiness, Reason, ShardTrouble
from duemq.proxy.gateway.buffer_age import BufferAge
from duemq.proxy.gateway.ledger_follower import LedgerCollector, LedgerFollower

_MAX_TROUBLES = 16
_SERVING = (NodeState.READY, NodeState.DRAINING)


class NodeFiguresReader(Protocol):
    """Reads the figures of the nodes; nodes that do not answer are left out."""

    async def figures(self) -> list[Figures]: ...
    async def sealed_windows(self, first: int, most: int) -> list[SealedWindow]: ...


@dataclass
class ProxyBackend:
    """The `Backend` of a process without a store. The whole cluster shares `cluster_id` and `ids`.

    Messages are accepted as long as the log is available, even without nodes.
    """

    cluster_id: str
    bus: Bus
    ids: IdCodec
    topic_states: TopicStates
    follower: LedgerFollower
    reader: ShardReader
    view: ClusterView
    operator: Operator
    watch: ClockWatch
    registry: CollectorRegistry
    age: BufferAge | None = None
    figures_reader: NodeFiguresReader | None = None
    _direct: Counter = field(init=False)
    _direct_messages: int = 0

    def __post_init__(self) -> None:
        self.clock, self.delivering = self.watch.accepting, self.watch.delivering
        self.why_clock_out = self.watch.why_out
        self._direct = Counter("duemq_direct_total", "Messages without delay, sent at once", registry=self.registry)
        self.registry.register(LedgerCollector(self.follower.entries, self.clock))
        self.registry.register(ClockCollector(self.watch))
        self.registry.register(BlockedCollector(lambda: self.bus, self.clock))

    @property
    def shards(self) -> int:
        return len(self.follower.progress)

    def progress(self, shard: int) -> Progress:
        if (reason := self.follower.why_unseen(shard)) is not None:
            raise Unavailable(reason)
        return self.follower.progress[shard]

    def why_closed(self) -> str | None:
        return self.follower.why_not_ready()

    def why_not_ready(self) -> str | None:
        if reason := self.follower.why_not_ready() or self.why_clock_out():
            return reason
        if not self._has_node():
            return SENTENCES[Reason.NO_NODE]
        return None

    def _has_node(self) -> bool:
        return any(member.health.state in _SERVING for member in self.view.members())

    def readiness(self) -> Readiness:
        unreadable = {shard: ShardTrouble(Reason.LEDGER_UNREADABLE) for shard in self.follower.unreadable()}
        unread = {shard: ShardTrouble(Reason.CATCHING_UP) for shard in self.follower.unread()}
        shards, topics = unread | unreadable, tuple(sorted(self.bus.misfits()))
        if self.bus.trouble() is not None:
            return Readiness(Reason.LOG_LOST, topics=topics)
        if len(unreadable) == self.shards:
            return Readiness(Reason.LEDGER_UNREADABLE, shards, topics)
        if unread.keys() - unreadable.keys():
            return Readiness(Reason.CATCHING_UP, shards, topics)
        if self.why_clock_out() is not None:
            return Readiness(Reason.CLOCK_WRONG, shards, topics)
        if not self._has_node():
            return Readiness(Reason.NO_NODE, shards, topics)
        masters = self.view.masters()
        missing = {shard: ShardTrouble(Reason.NO_MASTER) for shard in range(self.shards) if shard not in masters}
        return Readiness(None, blocked_shards(self.bus) | missing | shards, topics)

    def stuck(self) -> Mapping[int, float]:
        return {}

    def why_shard_refuses(self, shard: int) -> str | None:
        return None if self.age is None else self.age.why_refused(shard)

    def refuse(self) -> None:
        full = {member.name: member.health.full for member in self.view.members() if member.health.full}
        # A full disk on a standby costs redundancy, on a master it costs deliveries: see ADR 17.
        if full and (masters := sorted(full.keys() & set(self.view.masters().values()))):
            raise DiskFull(f"node {masters[0]}: {full[masters[0]]}", DISK_FULL_RETRY_S)

    def count_direct(self, messages: int) -> None:
        self._direct.inc(messages)
        self._direct_messages += messages

    def lateness(self, topic: str) -> dict[str, Any]:
        return {}

    def trouble(self, topic: str) -> str | None:
        troubles = (member.health.topic_states.get(topic) for member in self.view.members())
        return self.topic_states.trouble(topic, self.clock()) or next(filter(None, troubles), None)

    def troubles(self) -> dict[str, str]:
        troubles = self.topic_states.troubles(self.clock())
        for member in self.view.members():
            troubles |= member.health.topic_states
        return dict(sorted(troubles.items())[:_MAX_TROUBLES])

    def cluster(self) -> dict[str, Any]:
        document = cluster_json(self.cluster_id, self.shards, self.follower.entries, self.view, self.clock())
        return document | {"topics": self.troubles()}

    async def figures(self) -> list[Figures]:
        """The figures of the nodes, and those of the direct messages sent through this process."""
        own = Figures("", direct=self._direct_messages)
        return [own] if self.figures_reader is None else [own, *await self.figures_reader.figures()]

    async def sealed_windows(self, first: int, most: int) -> list[SealedWindow]:
        return [] if self.figures_reader is None else await self.figures_reader.sealed_windows(first, most)
