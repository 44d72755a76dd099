"""A real Kafka on this machine: one broker, or three brokers that each have every partition.

Each server is both broker and controller (KRaft). As is Kafka's default, acknowledged data need not be synced to disk:
nothing is lost if a process is killed, but data may be lost if the machine fails.
"""

from __future__ import annotations

import base64
import secrets
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from duemq.dev.kafka import kafka_security
from duemq.dev.kafka.kafka_ping import live_brokers
from duemq.dev.kafka.kafka_security import KafkaUser
from duemq.dev.servers.ensemble import Ensemble
from duemq.dev.servers.errors import LocalError
from duemq.dev.servers.jars import jars
from duemq.dev.servers.java import command
from duemq.dev.servers.ports import HOST, addresses
from duemq.dev.servers.process import Process, wait_for

_LEAVE_S = 30.0
_READY_WITHIN_S = 300.0  # for very busy machines; if the process ends, this is noticed at once
_LOG_LEVEL = "-Dorg.apache.logging.log4j.level=WARN"


class KafkaServers(Ensemble):
    """Servers are numbered from 1; the number is the node id.

    `folder`: settings, logs and data; a stopped cluster can be restarted on it with the same ports. `ports`: the ports
    for clients, one per server. `extra`: more lines for server.properties. `secure`: adds a SASL_SSL listener to the
    plain one, for the users `plain` and `scram`, with a certificate signed by `ca_file`. `reached_at` (server, port):
    the port through which clients, brokers and controllers reach that port, if there is a network proxy in between.
    Raises LocalError, and NotAvailable if there is neither Java nor a way to fetch the jars.
    """

    plain: KafkaUser = kafka_security.PLAIN
    scram: KafkaUser = kafka_security.SCRAM

    def __init__(
        self,
        folder: Path,
        nodes: int = 1,
        *,
        heap_mib: int = 256,
        ports: Sequence[int] = (),
        controller_ports: Sequence[int] = (),
        extra: Mapping[str, str] | None = None,
        secure: bool = False,
        reached_at: Callable[[str, int], int] | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.numbers = range(1, nodes + 1)
        self.secure = secure
        self._extra = dict(extra or {})
        self._ports = self._by_server(ports)
        self._controller_ports = self._by_server(controller_ports)
        self._secure_ports = self._by_server(()) if secure else {}
        self._peer_ports = self._by_server(()) if reached_at else {}
        self._reached_at = {
            port: port if reached_at is None else reached_at(f"kafka-{number}", port)
            for ports in (self._ports, self._controller_ports, self._secure_ports, self._peer_ports)
            for number, port in ports.items()
        }
        self._jars = jars()
        self.processes = {
            number: Process(
                f"kafka-{number}",
                command(
                    self._jars, "kafka.Kafka", str(self._settings_file(number)),
                    heap_mib=heap_mib, options=(_LOG_LEVEL,),
                ),
                self.folder / str(number) / "server.log",
            )
            for number in self.numbers
        }  # fmt: skip

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of every server, separated by commas."""
        return addresses(self._reached_at[port] for port in self._ports.values())

    @property
    def secure_bootstrap(self) -> str:
        return addresses(self._reached_at[port] for port in self._secure_ports.values())

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"

    def start(self, number: int | None = None) -> None:
        """Start the servers, and return when each of them sees all started ones as live brokers.

        Three servers that are down must be started together, because a single one has no quorum.
        """
        numbers = self.these(number)
        self._prepare(numbers)
        for each in numbers:
            self.processes[each].start()
        for each in numbers:
            self.processes[each].until(partial(self._sees_all, each, set(numbers)), _READY_WITHIN_S)

    def stop(self, number: int | None = None) -> None:
        """Send SIGTERM, and wait. Raises LocalError.

        If all servers are stopped at once, one may be left without a controller and would wait five minutes. Such a
        server is killed.
        """
        if number is not None or len(self.numbers) == 1:
            super().stop(number)
            return
        for process in self.processes.values():
            process.resume()
            process.terminate()
        for process in self.processes.values():
            with suppress(LocalError):
                process.stop(_LEAVE_S)

    def sees(self, number: int) -> frozenset[int]:
        """The servers that this one considers alive; empty while it does not answer."""
        return live_brokers(self._ports[number])

    def _sees_all(self, number: int, others: set[int]) -> bool:
        return self.sees(number) >= others

    def wait_until_whole(self, within_s: float = _READY_WITHIN_S) -> None:
        """Wait until every server sees every other one."""
        wait_for(
            lambda: all(self.sees(number) == set(self.numbers) for number in self.numbers),
            "all Kafka brokers to see one another",
            within_s,
        )

    # --- settings ---------------------------------------------------------------------------------------------------

    def _settings_file(self, number: int) -> Path:
        return self.folder / str(number) / "server.properties"

    def _data(self, number: int) -> Path:
        return self.folder / str(number) / "data"

    def _prepare(self, numbers: Iterable[int]) -> None:
        """Write the settings, and format new data folders."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.secure and not self.ca_file.exists():
            kafka_security.make_certificate(self.folder)
        for number in numbers:
            self._settings_file(number).parent.mkdir(exist_ok=True)
            lines = (f"{key}={value}\n" for key, value in self._settings(number).items())
            self._settings_file(number).write_text("".join(lines))
        new = [number for number in numbers if not (self._data(number) / "meta.properties").exists()]
        if not new:
            return
        named = self.folder / "cluster"
        if not named.exists():
            named.write_text(base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=").replace("-", "a"))
        with ThreadPoolExecutor(len(new)) as threads:
            list(threads.map(lambda number: self._format_one(number, named.read_text()), new))

    def _format_one(self, number: int, cluster: str) -> None:
        users = kafka_security.format_options() if self.secure else []
        formatting = command(
            self._jars, "kafka.tools.StorageTool", "format", "-t", cluster,
            "-c", str(self._settings_file(number)), *users,
            heap_mib=128, options=("-XX:TieredStopAtLevel=1",),
        )  # fmt: skip
        done = subprocess.run(formatting, capture_output=True, text=True)
        if done.returncode:
            raise LocalError(f"kafka-{number} could not be formatted:\n{done.stdout}{done.stderr}")

    def _settings(self, number: int) -> dict[str, str]:
        several = len(self.numbers) > 1
        copies, needed = ("3", "2") if several else ("1", "1")
        listeners = {"PLAINTEXT": self._ports[number]}
        if self.secure:
            listeners["SASL_SSL"] = self._secure_ports[number]
        if self._peer_ports:
            listeners["PEERS"] = self._peer_ports[number]
        listeners["CONTROLLER"] = self._controller_ports[number]
        voters = [f"{each}@{HOST}:{self._reached_at[port]}" for each, port in self._controller_ports.items()]
        return {
            "process.roles": "broker,controller",
            "node.id": str(number),
            "controller.quorum.voters": ",".join(voters),
            "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
            "advertised.listeners": ",".join(
                f"{name}://{HOST}:{self._reached_at[port]}" for name, port in listeners.items()
            ),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PEERS" if self._peer_ports else "PLAINTEXT",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,PEERS:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL"
            ),
            "log.dirs": str(self._data(number)),
            "default.replication.factor": copies,
            "min.insync.replicas": needed,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": needed,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": needed,
            "offsets.topic.num.partitions": "4",  # the default, 50, makes the first transaction slow
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            # Several brokers: short, for a quick fail-over. No other broker can take over from a single one, which
            # needs patience on a busy machine.
            "broker.session.timeout.ms": "3000" if several else "6000",
            "broker.heartbeat.interval.ms": "500",
            "transaction.max.timeout.ms": "60000",  # see docs/guides/kafka.md
            "log.cleaner.dedupe.buffer.size": str(4 << 20),  # the default is 128 MiB of heap
            "log.segment.bytes": str(256 << 20),
            "num.network.threads": "2",
            "num.io.threads": "4",
            "background.threads": "2",
            **(kafka_security.settings(self.folder / "broker.pem") if self.secure else {}),
            **self._extra,
        }
