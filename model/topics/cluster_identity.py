"""What all nodes and proxies of a cluster have in common, wherever it is kept: a data folder, or ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from duemq.model.topics.topic_names import OWN


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """`cluster`: its id, random. `shards`: how many. `secret`: the key of the ids' checksums (32 bytes).

    `prefix`: how the names of its topics begin on brokers.

    `topic_ids`: of the logs that it works on, by topic. Empty before the first start: then its logs must be empty, too.
    None for a cluster that an older duemq made, whose logs may have anything.
    """

    cluster: str
    shards: int
    secret: bytes = field(repr=False)
    prefix: str = OWN
    topic_ids: Mapping[str, str] | None = None
