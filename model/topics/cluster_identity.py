"""The identity that all nodes and proxies of a cluster share. It is stored in a data folder or in ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from duemq.model.topics.topic_names import OWN


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """`cluster`: the random id of the cluster. `shards`: the number of shards. `secret`: the key for the ids' checksums
    (32 bytes).

    `prefix`: the prefix of the cluster's topics on brokers.

    `topic_ids`: the topic ids of the cluster's logs, by topic. Empty before the first start, when the logs must be
    empty, too. None for a cluster that an older version of duemq created: its logs may contain anything.
    """

    cluster: str
    shards: int
    secret: bytes = field(repr=False)
    prefix: str = OWN
    topic_ids: Mapping[str, str] | None = None
