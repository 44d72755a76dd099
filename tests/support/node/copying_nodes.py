"""Memory nodes that copy one another: the real choice of a peer and the real copy, without HTTP between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from duemq.bus.memory import MemoryLog
from duemq.delay.api.peers import HttpPeers
from duemq.delay.api.snapshots import HttpSnapshotSource
from duemq.delay.recovery.replica_snapshot import SnapshotServer
from duemq.election.base import Member, NodeHealth, NodeState
from tests.support.node.memory_nodes import MemoryNode

SHARDS = 2  # so that a node stays ready while one of its shards is unfit


class Nodes:
    """The nodes of a cluster on one log, by name; those that run are its members. A `ClusterView`."""

    def __init__(self, folder: Path, log: MemoryLog) -> None:
        self.folder, self.log = folder, log
        self.nodes: dict[str, MemoryNode] = {}
        self.copies: list[tuple[str, str, int]] = []  # requests for a snapshot: by a node, of a node, and the shard

    def node(self, name: str, **options: Any) -> MemoryNode:
        """A node on the folder of this name, to be run by `async with`."""
        peers = LocalPeers(self, name)
        self.nodes[name] = MemoryNode(self.log, self.folder / name, peers=peers, shards=SHARDS, **options)
        return self.nodes[name]

    def members(self) -> Sequence[Member]:
        return [
            Member(name, f"http://{name}", health=node.election.health or NodeHealth(NodeState.JOINING))
            for name, node in sorted(self.nodes.items())
            if hasattr(node, "running") and not node.running.done()
        ]

    def masters(self) -> Mapping[int, str]:
        return {
            number: name
            for name, node in self.nodes.items()
            for number, shard in (node.node.shards if hasattr(node, "node") else {}).items()
            if shard.leading
        }

    def entries(self, shard: int) -> dict[str, int]:
        """The last entry of each node's replica."""
        return {name: node.node.shards[shard].replica.entry.number for name, node in self.nodes.items()}


class LocalPeers(HttpPeers):
    def __init__(self, nodes: Nodes, name: str) -> None:
        super().__init__(nodes, name)
        self._nodes = nodes

    def _source(self, peer: Member) -> HttpSnapshotSource:
        return cast(HttpSnapshotSource, LocalSource(self._nodes, self._name, peer.name))


class LocalSource(SnapshotServer):
    """Of one node for another one."""

    def __init__(self, nodes: Nodes, copier: str, peer: str) -> None:
        async def checkpoint(shard: int, into: Path) -> None:
            nodes.copies.append((copier, peer, shard))
            await nodes.nodes[peer].node.checkpoint(shard, into)

        super().__init__(nodes.folder / f"snapshots-{copier}-{peer}", checkpoint)
