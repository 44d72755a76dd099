"""The size of a cluster, and its special features."""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.pace import SLOW


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of each kind of process; servers of Kafka and ZooKeeper come as 1 or 3.

    `network`: relays between the processes, so that paths can be cut. `retention`: of commands, as in the setting.
    `rights`: duemq logs in as a user who may not create topics whose names begin with `FORBIDDEN`. `partitions`: for
    missing targets; 0: a deleted one stays deleted. `broker_defaults`: Kafka's own settings instead of those that make
    tests with local brokers quick.
    """

    brokers: int = 1
    zookeepers: int = 1
    nodes: int = 2 if SLOW > 1 else 3
    proxies: int = 1 if SLOW > 1 else 2
    shards: int = 2 if SLOW > 1 else 4
    network: bool = False
    retention: str = "7d"
    rights: bool = False
    partitions: int = 0
    broker_defaults: bool = False
