"""The cluster that the scenarios break: settings that make faults show soon, and the seams to put them in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.topics.topics import NEVER, settings_of_own
from duemq.dev.cluster.cluster import LocalCluster
from duemq.dev.cluster.duemq_process import DuemqProcess
from tests.chaos.network.network import Network
from tests.chaos.pace import SLOW
from tests.chaos.shape import Shape
from tests.chaos.topics import make_topic
from tests.support.node import hooks
from tests.support.servers.kafka_rights import AUTHORIZER, deny_creating
from tests.support.servers.real_servers import need_servers

SESSION_MS = int(4_000 * SLOW)


_DEFAULTS = {
    "auto.create.topics.enable": "true",
    "transaction.max.timeout.ms": "900000",
    "broker.heartbeat.interval.ms": "2000",
    "group.initial.rebalance.delay.ms": "3000",
    "offsets.topic.num.partitions": "50",
    "transaction.state.log.num.partitions": "50",
}


def _of_brokers(shape: Shape) -> dict[str, str]:
    session_ms = 3_000 if shape.brokers > 1 else 6_000
    return {
        "log.retention.check.interval.ms": "2000",
        "broker.session.timeout.ms": str(int(session_ms * SLOW)),
        "controller.quorum.election.timeout.ms": str(int(1_000 * SLOW)),
        "controller.quorum.fetch.timeout.ms": str(int(2_000 * SLOW)),
        **(AUTHORIZER if shape.rights else {}),
        **(_DEFAULTS if shape.broker_defaults else {}),
    }


class ChaosCluster(LocalCluster):
    """A local cluster with a network that can be cut, a user without all rights, and clocks that can be set."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.folder, self.shape = folder, shape
        self._network = Network(folder / "network") if shape.network else None
        settings = {
            "shards": str(shape.shards),
            "zookeeper.session_timeout_s": str(SESSION_MS / 1000),
            "storage.flush_interval_s": "2",
            "topics.partitions": str(shape.partitions),
            "delivery.max_attempts": "4",
            "delivery.retry_delays": "500ms,1s",
            "kafka.retention": shape.retention,
            "delay_files.import_from": str(folder / "import"),
        }
        super().__init__(
            folder, brokers=shape.brokers, zookeepers=shape.zookeepers, nodes=shape.nodes, proxies=shape.proxies,
            settings=settings, kafka_extra=_of_brokers(shape), kafka_secure=shape.rights,
            reached_at=self._network.reached_at if self._network else None,
        )  # fmt: skip
        self.zookeeper.tick_ms = int(self.zookeeper.tick_ms * SLOW)  # bounds the sessions
        for process in (*self.nodes, *self.proxies):
            process.program = hooks.PROGRAM
            process.environment[hooks.CLOCK] = str(folder / f"{process.name}.clock")
            if shape.rights:
                process.settings |= {
                    "kafka.bootstrap": self.kafka.secure_bootstrap, "kafka.protocol": "SASL_SSL",
                    "kafka.mechanism": "PLAIN", "kafka.user": self.kafka.plain.name,
                    "kafka.password": self.kafka.plain.password, "kafka.ca_file": str(self.kafka.ca_file),
                }  # fmt: skip

    @property
    def network(self) -> Network:
        """Only where the shape has one."""
        assert self._network is not None
        return self._network

    def start(self) -> None:
        if self._network is not None:
            self._network.start(self.processes)
        if self.shape.rights:
            self.kafka.start()
            deny_creating(self.kafka.bootstrap, self.kafka.plain.name)
        if self.shape.network and self.shape.brokers > 1:
            self.kafka.start()
            asyncio.run(self._lead_the_ledger_apart())
        super().start()

    async def _lead_the_ledger_apart(self) -> None:
        """Make topics of duemq's own so that the ledger and the clock are led by different brokers.

        A node asks a broker for the time each second. If it is the one that leads the ledger and is cut off, the node
        learns of its successor in time, by accident.
        """
        options = KafkaOptions(self.kafka.bootstrap, replication_factor=3, min_insync_replicas=2)
        settings, kept = settings_of_own(options), settings_of_own(options, NEVER)
        for topic, count, replicas, given in (
            ("duemq.ledger", self.shape.shards, [1, 2, 3], kept),
            ("duemq.buffer", self.shape.shards, [2, 3, 1], settings),
            ("duemq.clock", 1, [3, 2, 1], settings),
            ("duemq.admin", 1, [2, 3, 1], kept),
        ):
            await make_topic(self.kafka.bootstrap, topic, replicas={n: replicas for n in range(count)}, settings=given)

    def close(self) -> None:
        super().close()
        if self._network is not None:
            self._network.close()


@contextmanager
def start_cluster(folder: Path, shape: Shape) -> Iterator[ChaosCluster]:
    need_servers()
    with ChaosCluster(folder, shape) as cluster:
        yield cluster


def start_what_is_down(cluster: LocalCluster) -> None:
    """After a scenario its nodes are stopped."""
    for process in (*cluster.nodes, *cluster.proxies):
        process.spawn()
    for process in (*cluster.nodes, *cluster.proxies):
        process.wait_until_ready()


def clock_of(process: DuemqProcess) -> Path:
    """The file with the ms by which the clock of a node or proxy is wrong."""
    return Path(process.environment[hooks.CLOCK])
