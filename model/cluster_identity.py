"""What all nodes and proxies of a cluster have in common, wherever it is kept: a data folder, or ZooKeeper."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """`shards`: how many. `secret`: the key of the ids' checksums (32 bytes)."""

    cluster: str
    shards: int
    secret: bytes = field(repr=False)
