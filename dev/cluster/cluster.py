"""A whole duemq on this machine: Kafka, ZooKeeper, delay nodes and proxies, each in a separate process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from duemq.dev.cluster.duemq_process import DuemqProcess
from duemq.dev.kafka.kafka import KafkaServers
from duemq.dev.servers.errors import LocalError
from duemq.dev.servers.ports import free_port, is_open
from duemq.dev.servers.process import Process
from duemq.dev.servers.running import RunningServer
from duemq.dev.servers.zookeeper import ZooKeeperServers

_BLOCK = 10  # ports reserved for each kind of process, if the first port is given


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of all processes, in order."""

    proxies: tuple[int, ...]
    nodes: tuple[int, ...]
    kafka: tuple[int, ...]
    kafka_controllers: tuple[int, ...]
    zookeeper: tuple[int, ...]
    zookeeper_peers: tuple[int, ...]

    @classmethod
    def choose(cls, brokers: int, zookeepers: int, nodes: int, proxies: int, first: int = 0) -> Ports:
        """Choose ports. `first`: the port of the first proxy; the others follow in blocks of ten. 0: any free ports."""
        counts = (proxies, nodes, brokers, brokers, zookeepers, 2 * zookeepers)
        if max(counts) > _BLOCK:
            raise LocalError(f"at most {_BLOCK} processes of a kind, and {_BLOCK // 2} ZooKeeper servers")
        return cls(
            *(
                tuple(first + block * _BLOCK + place if first else free_port() for place in range(count))
                for block, count in enumerate(counts)
            )
        )

    def all(self) -> tuple[int, ...]:
        return (
            *self.proxies, *self.nodes, *self.kafka, *self.kafka_controllers, *self.zookeeper, *self.zookeeper_peers,
        )  # fmt: skip


class LocalCluster(RunningServer):
    """A context manager: on entry it waits until the cluster is ready; on exit it ends all processes. Creating it
    starts nothing.

    `settings` (by `section.key`) are for all nodes and proxies; the settings of one node are in `nodes[i].settings`,
    and take effect at its next start. `kafka_extra`: further lines for server.properties. `kafka_secure`: adds a
    SASL_SSL listener to the plain one. `reached_at` (server, port): the port through which others reach that port of a
    Kafka or ZooKeeper server, if there is a network proxy in between. `report` is called before each wait. Kafka and
    ZooKeeper servers are numbered from 1; `nodes` and `proxies` are lists. Raises LocalError, and NotAvailable if there
    is neither Java nor a way to fetch the servers.
    """

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 1,
        zookeepers: int = 1,
        nodes: int = 3,
        proxies: int = 2,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        kafka_extra: Mapping[str, str] | None = None,
        kafka_secure: bool = False,
        ports: Ports | None = None,
        reached_at: Callable[[str, int], int] | None = None,
        report: Callable[[str], None] = lambda what: None,
    ) -> None:
        folder = folder.absolute()
        self.ports = ports or Ports.choose(brokers, zookeepers, nodes, proxies)
        self._report = report
        self.kafka = KafkaServers(
            folder / "kafka", brokers, ports=self.ports.kafka, controller_ports=self.ports.kafka_controllers,
            extra=kafka_extra, secure=kafka_secure, reached_at=reached_at,
        )  # fmt: skip
        self.zookeeper = ZooKeeperServers(
            folder / "zookeeper", zookeepers, ports=self.ports.zookeeper, peer_ports=self.ports.zookeeper_peers,
            reached_at=reached_at or (lambda server, port: port),
        )  # fmt: skip
        common = {
            "kafka.bootstrap": self.kafka.bootstrap,
            "zookeeper.hosts": self.zookeeper.hosts,
            "kafka.replication_factor": "3" if brokers > 1 else "1",
            "kafka.min_insync_replicas": "2" if brokers > 1 else "1",
            **(settings or {}),
        }
        self.nodes, self.proxies = (
            [
                DuemqProcess(kind, f"{kind}-{number}", port, folder, common, environment)
                for number, port in enumerate(ports_of_kind, 1)
            ]
            for kind, ports_of_kind in (("node", self.ports.nodes), ("proxy", self.ports.proxies))
        )

    @property
    def processes(self) -> dict[str, Process]:
        """All processes by name, in the order in which they are stopped."""
        own = [process.process for process in (*self.proxies, *self.nodes)]
        servers = (*self.kafka.processes.values(), *self.zookeeper.processes.values())
        return {process.name: process for process in (*own, *servers)}

    def start(self) -> None:
        """Start the processes that are not running, and return when all are ready."""
        self._refuse_taken_ports()
        self._report("Kafka and ZooKeeper")
        with ThreadPoolExecutor(2) as threads:
            starting = [threads.submit(servers.start) for servers in (self.kafka, self.zookeeper)]
        for each in starting:
            each.result()
        for kind, processes in (("the delay nodes", self.nodes), ("the proxies", self.proxies)):
            self._report(kind)
            for process in processes:
                process.spawn()
            for process in processes:
                process.wait_until_ready()

    def stop(self) -> None:
        """Stop all processes in order: the proxies, so that they accept no more messages; the nodes; then Kafka and
        ZooKeeper."""
        for processes in (self.proxies, self.nodes):
            for process in processes:
                process.process.resume()
                process.process.terminate()
            for process in processes:
                process.process.stop()
        with ThreadPoolExecutor(2) as threads:
            stopping = [threads.submit(servers.stop) for servers in (self.kafka, self.zookeeper)]
        for each in stopping:
            each.result()

    def close(self) -> None:
        """Kill all processes at once. Idempotent; the folder is left as it is."""
        for process in self.processes.values():
            process.kill()

    def _refuse_taken_ports(self) -> None:
        """Raise LocalError if a port is in use: a server that does not get its port would only report it in its log,
        after a while."""
        if not any(process.running for process in self.processes.values()):
            busy_ports = [port for port in self.ports.all() if is_open(port)]
            if busy_ports:
                raise LocalError(f"port {', '.join(map(str, busy_ports))} is in use: choose others")
