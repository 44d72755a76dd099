"""How large a cluster is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """How many of what; servers of Kafka and ZooKeeper come as 1 or 3."""

    brokers: int = 1
    zookeepers: int = 1
    nodes: int = 3
    proxies: int = 2
    shards: int = 4
