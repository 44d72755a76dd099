"""The interface to the election: which shards this node should be master of, and which nodes are alive.

Implementations: `single` (one node owns all) and `zookeeper`. The election names the masters; fencing by the bus makes
a mistake harmless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class NodeState(StrEnum):
    """The state that a node reports. Only ready nodes get shards (or draining ones, if none is ready)."""

    JOINING = "joining"  # catching up
    READY = "ready"
    DRAINING = "draining"  # an operator asked it to hand over its shards
    OUT = "out"  # it took itself out: `reason` says why


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """What a node reports to the others.

    `lag`: ledger entries each shard is behind, by shard number. `reason`: why it is not ready, empty if it is.
    `watermark`: the mark that its data disk has reached, 0 to 3; at 3, `full` says why new messages are refused.
    `unfit`: shards it holds and cannot be master of, by number, with the reasons.
    `topics`: some of the topics that refuse messages, with the reasons.
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
    """A live node. `url`: where its shards are read; `link`: HOST:PORT where other nodes watch that it is alive.

    `holds`: the shards it has a replica of; None = all.
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
        """Whether it can get the shard while it is ready."""
        return self.has(shard) and shard not in self.health.unfit


class Election(Protocol):
    """One node's part in the election. All calls are made in one event loop."""

    async def join(self) -> None:
        """Take part. Idempotent."""
        ...

    def owned_shards(self) -> frozenset[int]:
        """The shards that this node should be master of now: they are allocated to it, and no other node holds them."""
        ...

    def is_paused(self) -> bool:
        """Whether the coordinator is out of reach; a master starts no new cycle until it is back."""
        ...

    async def wait_for_change(self, timeout_s: float | None = None) -> bool:
        """Wait until `owned_shards`, `is_paused`, `members` or `masters` may have changed; False after the time-out.

        For any number of waiters: each change wakes all current ones.
        """
        ...

    async def release(self, shard: int) -> None:
        """This node is no longer master of a shard that it has lost: another may take it. Idempotent."""
        ...

    async def report(self, health: NodeHealth) -> None:
        """Publish this node's health to the others."""
        ...

    def members(self) -> Sequence[Member]:
        """The live nodes, this one included, by name."""
        ...

    def masters(self) -> Mapping[int, str]:
        """The master's name of each shard that has one."""
        ...

    def draining(self) -> bool:
        """Whether an operator asked this node to hand over."""
        ...

    async def leave(self) -> None:
        """Give up every shard. Idempotent."""
        ...
