"""What all nodes and proxies of a cluster share. It is stored in a data folder or in ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from duemq.model.topics.topic_names import OWN


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """`cluster`: its random id. `shards`: how many. `secret`: the key of the ids' checksums (32 bytes).

    `prefix`: of its topics on brokers.

    `topic_ids`: of its logs, by topic. Empty before the first start, when its logs must be empty, too. None for a
    cluster that an older duemq created: its logs may hold anything.
    """

    cluster: str
    shards: int
    secret: bytes = field(repr=False)
    prefix: str = OWN
    topic_ids: Mapping[str, str] | None = None
