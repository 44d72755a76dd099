"""What a gateway works with: a node in the same process, or in a proxy the log, its ledger and the nodes elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter

from duemq.bus.base import Bus
from duemq.delay.buffer_age import BufferAge
from duemq.delay.clock_watch import ClockCollector, ClockWatch
from duemq.delay.cluster import ClusterView, Operator, cluster_json
from duemq.delay.follower import LedgerCollector, LedgerFollower
from duemq.delay.node import Node
from duemq.delay.progress import Progress
from duemq.delay.reader import LocalReader, ShardReader
from duemq.delay.targets import Targets
from duemq.election.base import NodeState
from duemq.model.errors import DiskFull, Rejected, Unavailable
from duemq.model.ids import IdCodec

_MOST_TROUBLES = 16
_FULL_S = 10  # when to ask again where a disk is full


class Backend(Protocol):
    """Its parts are asked for anew by every call: a node opens its bus and shards anew after a failure."""

    @property
    def shards(self) -> int:
        """How many there are."""
        ...

    @property
    def bus(self) -> Bus: ...
    @property
    def ids(self) -> IdCodec: ...
    @property
    def targets(self) -> Targets: ...
    @property
    def reader(self) -> ShardReader: ...
    @property
    def clock(self) -> Callable[[], int]:
        """What relative times count from, and absolute ones are judged by: epoch ms."""
        ...

    @property
    def delivering(self) -> Callable[[], int]:
        """What messages without delay are delivered by, epoch ms: never ahead of the clock that stamps their records,
        the producer's or the broker's."""
        ...

    def why_clock_out(self) -> str | None:
        """Why no relative times can be taken just now, in a sentence; see `ClockWatch`."""
        ...

    def progress(self, shard: int) -> Progress:
        """How far a shard has come. Raises Unavailable where that is not known here."""
        ...

    def why_closed(self) -> str | None:
        """Why no request can be served just now, in a sentence."""
        ...

    def why_not_ready(self) -> str | None:
        """Why messages are not accepted or not delivered just now, in a sentence."""
        ...

    def refuse(self) -> None:
        """Raises DiskFull where no new message can be taken."""
        ...

    def count_direct(self, messages: int) -> None:
        """So many messages went straight to their targets."""
        ...

    def lateness(self, topic: str) -> dict[str, Any]:
        """Count and lateness (ms) of a topic's deliveries, as far as this process made them."""
        ...

    def trouble(self, topic: str) -> str | None:
        """What is wrong with a target, in a sentence; None if nothing is known to be."""
        ...

    def troubles(self) -> dict[str, str]:
        """Targets that refuse messages, a few of them, each with a sentence."""
        ...

    def cluster(self) -> dict[str, Any]: ...

    @property
    def operator(self) -> Operator: ...


class NoCluster:
    """The operator of a single node."""

    async def drain(self, name: str) -> None:
        raise self._refused()

    async def resume(self, name: str) -> None:
        raise self._refused()

    def _refused(self) -> Rejected:
        return Rejected("not_supported", "this is a single node: there is no other one to hand over to")


class NodeBackend:
    """See `Backend`: everything in one process. `wait_s`: how long a read waits for its shard to catch up."""

    def __init__(self, node: Node, wait_s: float = 2.0, operator: Operator | None = None) -> None:
        self._node = node
        self.reader: ShardReader = LocalReader(node, wait_s)
        self.operator: Operator = operator or NoCluster()
        self.ids, self.why_clock_out = node.ids, node.watch.why_out
        self.clock, self.delivering = node.watch.accepting, node.watch.delivering
        self.shards = node.folder.info.shards

    @property
    def bus(self) -> Bus:
        return self._node.bus

    @property
    def targets(self) -> Targets:
        return self._node.targets

    def progress(self, shard: int) -> Progress:
        held = self._node.shards.get(shard)
        if held is None:
            raise Unavailable(f"shard {shard} is not held here just now")
        return held.progress

    def why_closed(self) -> str | None:
        return self._node.why_closed

    def why_not_ready(self) -> str | None:
        return self._node.why_not_ready

    def refuse(self) -> None:
        if (reason := self._node.upkeep.why_full()) is not None:
            raise DiskFull(reason, _FULL_S)

    def count_direct(self, messages: int) -> None:
        self._node.observer.direct.inc(messages)

    def lateness(self, topic: str) -> dict[str, Any]:
        lateness = self._node.observer.lateness.get(topic)
        return {"count": 0} if lateness is None else lateness.summary()

    def trouble(self, topic: str) -> str | None:
        return self.targets.trouble(topic, self.clock())

    def troubles(self) -> dict[str, str]:
        return self.targets.troubles(self.clock())

    def cluster(self) -> dict[str, Any]:
        node = self._node
        entries = {number: shard.replica.entry for number, shard in node.shards.items()}
        return cluster_json(node.folder.info.cluster, self.shards, entries, node.election, self.clock())


@dataclass
class ProxyBackend:
    """See `Backend`: a process without a store. `cluster_id` and `ids` are what all of the cluster share.

    Messages are accepted as long as the log is there, whether or not a node is.
    """

    cluster_id: str
    bus: Bus
    ids: IdCodec
    targets: Targets
    follower: LedgerFollower
    reader: ShardReader
    view: ClusterView
    operator: Operator
    watch: ClockWatch
    registry: CollectorRegistry
    age: BufferAge | None = None
    _direct: Counter = field(init=False)

    def __post_init__(self) -> None:
        self.clock, self.delivering = self.watch.accepting, self.watch.delivering
        self.why_clock_out = self.watch.why_out
        self._direct = Counter("duemq_direct_total", "Messages without delay, sent at once", registry=self.registry)
        self.registry.register(LedgerCollector(self.follower.entries, self.clock))
        self.registry.register(ClockCollector(self.watch))

    @property
    def shards(self) -> int:
        return len(self.follower.progress)

    def progress(self, shard: int) -> Progress:
        return self.follower.progress[shard]

    def why_closed(self) -> str | None:
        return self.follower.why_not_ready()

    def why_not_ready(self) -> str | None:
        if reason := self.follower.why_not_ready() or self.why_clock_out():
            return reason
        serving = (NodeState.READY, NodeState.DRAINING)
        if not any(member.standing.state in serving for member in self.view.members()):
            return "no delay node is ready: messages are accepted, but not delivered"
        return None

    def refuse(self) -> None:
        if self.age is not None and (reason := self.age.why_refused()) is not None:
            raise Unavailable(reason, _FULL_S)
        full = {member.name: member.standing.full for member in self.view.members() if member.standing.full}
        # A disk of a standby costs redundancy, one of a master deliveries: see ADR 17.
        if full and (masters := sorted(full.keys() & set(self.view.masters().values()))):
            raise DiskFull(f"node {masters[0]}: {full[masters[0]]}", _FULL_S)

    def count_direct(self, messages: int) -> None:
        self._direct.inc(messages)

    def lateness(self, topic: str) -> dict[str, Any]:
        return {}

    def trouble(self, topic: str) -> str | None:
        said = (member.standing.targets.get(topic) for member in self.view.members())
        return self.targets.trouble(topic, self.clock()) or next(filter(None, said), None)

    def troubles(self) -> dict[str, str]:
        troubles = self.targets.troubles(self.clock())
        for member in self.view.members():
            troubles |= member.standing.targets
        return dict(sorted(troubles.items())[:_MOST_TROUBLES])

    def cluster(self) -> dict[str, Any]:
        return cluster_json(self.cluster_id, self.shards, self.follower.entries, self.view, self.clock())
