"""A real ZooKeeper on this machine: one server, or an ensemble."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from duemq.dev.servers.ensemble import Ensemble
from duemq.dev.servers.jars import jars
from duemq.dev.servers.java import command
from duemq.dev.servers.ports import HOST, addresses, free_port
from duemq.dev.servers.process import Process, wait_for

_READY_WITHIN_S = 300.0  # for very busy machines; if the process ends, this is noticed at once
_OPTIONS = (
    "-Dorg.apache.logging.log4j.level=WARN",
    "-Dzookeeper.preAllocSize=1024",  # KiB; the default is 64 MiB per log file
    "-Dzookeeper.forceSync=no",  # safe if only processes are killed, and tests are faster
)


class ZooKeeperServers(Ensemble):
    """Servers are numbered from 1; the number is the `myid`.

    `folder`: settings, logs and data; stopped servers can be restarted on it with the same ports. `tick_ms`: sessions
    may last 2 to 20 ticks. `ports`: the ports for clients, one per server; `peer_ports`: two per server. `reached_at`
    (server, port): the port through which clients reach that port, if there is a network proxy in between. Raises
    LocalError, and NotAvailable if there is neither Java nor a way to fetch the jars.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 1,
        *,
        tick_ms: int = 500,
        heap_mib: int = 64,
        ports: Sequence[int] = (),
        peer_ports: Sequence[int] = (),
        reached_at: Callable[[str, int], int] = lambda server, port: port,
    ) -> None:
        self.folder = folder.absolute()
        self.numbers = range(1, nodes + 1)
        self.tick_ms = tick_ms
        self._reached_at = reached_at
        self.ports = self._by_server(ports)
        self.peer_ports = list(peer_ports or [free_port() for _ in range(2 * nodes)])
        self.processes = {
            number: Process(
                f"zookeeper-{number}",
                command(
                    jars(), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self._settings_file(number)),
                    heap_mib=heap_mib, options=_OPTIONS,
                ),
                self.folder / str(number) / "server.log",
            )
            for number in self.numbers
        }  # fmt: skip

    @property
    def hosts(self) -> str:
        """HOST:PORT of every server, separated by commas."""
        return addresses(self._reached_at(f"zookeeper-{number}", port) for number, port in self.ports.items())

    def start(self, number: int | None = None) -> None:
        """Start the servers, and return when they serve. A single server of an ensemble does not serve: start another
        one with it."""
        numbers = self.these(number)
        for each in numbers:
            self._write_settings(each)
            self.processes[each].start()
        for each in numbers:
            self.processes[each].until(partial(self.mode, each), _READY_WITHIN_S)

    def mode(self, number: int) -> str:
        """`leader`, `follower` or `standalone`; empty while the server does not serve."""
        for line in self.ask(number, "srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return ""

    def leader(self) -> int | None:
        """The number of the leading (or only) server; None while there is none."""
        leading = (number for number in self.numbers if self.mode(number) in ("leader", "standalone"))
        return next(leading, None)

    def wait_for_leader(self, within_s: float = _READY_WITHIN_S) -> int:
        """Wait until there is a leading server, and return its number."""
        leaders: list[int] = []

        def leads() -> bool:
            leaders[:] = [] if (leader := self.leader()) is None else [leader]
            return bool(leaders)

        wait_for(leads, "ZooKeeper to have a leader", within_s)
        return leaders[0]

    def ask(self, number: int, word: str) -> str:
        """A server's answer to a four-letter word (`srvr`, `mntr`, `ruok`, `cons`); empty while it does not answer."""
        with suppress(OSError), socket.create_connection((HOST, self.ports[number]), timeout=2) as connection:
            connection.sendall(word.encode())
            with connection.makefile("rb") as answer:
                return answer.read().decode(errors="replace")
        return ""

    def _settings_file(self, number: int) -> Path:
        return self.folder / str(number) / "zoo.cfg"

    def _write_settings(self, number: int) -> None:
        data = self.folder / str(number) / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{number}\n")
        settings = {
            "tickTime": self.tick_ms,
            "initLimit": 20,  # ticks
            "syncLimit": 10,
            "dataDir": data,
            "clientPort": self.ports[number],
            "clientPortAddress": HOST,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr,mntr,ruok,cons",
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,  # hours
        }
        if len(self.numbers) > 1:
            pairs = zip(self.numbers, self.peer_ports[::2], self.peer_ports[1::2], strict=True)
            settings |= {f"server.{each}": f"{HOST}:{data_port}:{vote_port}" for each, data_port, vote_port in pairs}
        self._settings_file(number).write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
