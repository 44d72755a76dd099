"""The interface to the election: which shards this node should be master of, and which nodes are alive.

Implementations: `single` (one node owns all shards) and `zookeeper`. The election chooses the masters; the bus fences
former masters, so a mistake is harmless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class NodeState(StrEnum):
    """The state that a node reports. Only ready nodes get shards, or draining nodes if none is ready."""

    JOINING = "joining"  # its replicas are catching up
    READY = "ready"
    DRAINING = "draining"  # an operator asked it to hand over its shards
    OUT = "out"  # it excluded itself; `reason` says why


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """What a node reports to the others.

    `lag`: how many ledger entries each replica is behind, by shard number. `reason`: why the node is not ready; empty
    if it is ready. `watermark`: the watermark that the node's data disk has reached, 0 to 3; at 3, `full` says why new
    messages are refused. `unfit`: shards that the node has replicas of but cannot be master of, by number, with the
    reasons. `topics`: some of the topics that refuse messages, with the reasons.
    """

    state: NodeState
    reason: str = ""
    lag: Mapping[int, int] = field(default_factory=dict)
    watermark: int = 0
    full: str = ""
    unfit: Mapping[int, str] = field(default_factory=dict)
    topic_states: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Member:
    """A live node. `url`: where its shards can be read; `link`: HOST:PORT to which other nodes connect to notice its
    death.

    `holds`: the shards that the node has replicas of; None = all.
    """

    name: str
    url: str
    link: str = ""
    rack: str = ""
    holds: frozenset[int] | None = None
    health: NodeHealth = NodeHealth(NodeState.JOINING)

    def has(self, shard: int) -> bool:
        return self.holds is None or shard in self.holds

    def can_lead(self, shard: int) -> bool:
        """Whether the node can be master of the shard when it is ready."""
        return self.has(shard) and shard not in self.health.unfit


class Election(Protocol):
    """One node's part in the election. All calls are made in one event loop."""

    async def join(self) -> None:
        """Take part in the election. Idempotent."""
        ...

    def owned_shards(self) -> frozenset[int]:
        """The shards that this node should be master of now: they are allocated to this node, and no other node holds
        their locks."""
        ...

    def is_paused(self) -> bool:
        """Whether the election's coordinator (ZooKeeper) is out of reach. A master starts no new cycle until it is
        back."""
        ...

    async def wait_for_change(self, timeout_s: float | None = None) -> bool:
        """Wait until `owned_shards`, `is_paused`, `members` or `masters` may have changed. Returns False after the
        time-out.

        Any number of tasks may wait: each change wakes all of them.
        """
        ...

    async def release(self, shard: int) -> None:
        """Report that this node has stopped being master of a shard that it no longer owns: another node may take the
        shard. Idempotent."""
        ...

    async def report(self, health: NodeHealth) -> None:
        """Publish this node's health to the others."""
        ...

    def members(self) -> Sequence[Member]:
        """The live nodes, this one included, by name."""
        ...

    def masters(self) -> Mapping[int, str]:
        """The name of the master of each shard that has one."""
        ...

    def draining(self) -> bool:
        """Whether an operator asked this node to hand over its shards."""
        ...

    async def leave(self) -> None:
        """Leave the election and give up every shard. Idempotent."""
        ...
