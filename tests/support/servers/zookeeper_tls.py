"""A real ZooKeeper that accepts only TLS, and only clients with a trusted certificate."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from duemq.dev.servers.jars import jars
from duemq.dev.servers.java import command
from duemq.dev.servers.ports import HOST, free_port
from duemq.dev.servers.process import Process
from duemq.tls.files import TlsFiles
from tests.support.servers.real_servers import need_servers
from tests.support.tls.certificates import Authority

JARS = Path(__file__).with_name("zookeeper_tls_jars.txt")
_READY_WITHIN_S = 300.0
_NETTY = "org.apache.zookeeper.server.NettyServerCnxnFactory"


class SecureZooKeeper:
    """`client`: the files of a client that it lets in."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        authority = Authority.make(folder)
        self.port, self.hosts = free_port(), ""
        self.hosts, self.client = f"{HOST}:{self.port}", authority.issue("client")
        settings = {
            "tickTime": 500,
            "dataDir": folder / "data",
            "secureClientPort": self.port,
            "secureClientPortAddress": HOST,
            "serverCnxnFactory": _NETTY,
            "ssl.keyStore.location": authority.keystore("zookeeper"),
            "ssl.trustStore.location": authority.ca,
            "ssl.clientAuth": "need",
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
        }
        (folder / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        own = command(
            jars(), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(folder / "zoo.cfg"), heap_mib=96,
            options=("-Dorg.apache.logging.log4j.level=WARN", "-Dzookeeper.preAllocSize=1024"),
        )  # fmt: skip
        classes = own.index("-cp") + 1
        own[classes] += f":{jars(None, JARS)}/*"
        self.process = Process("zookeeper-tls", own, folder / "server.log")

    def serves(self) -> bool:
        context = ssl.create_default_context(cafile=self.client.ca)
        context.load_cert_chain(self.client.cert, self.client.key)
        with suppress(OSError), socket.create_connection((HOST, self.port), timeout=5) as plain:
            with context.wrap_socket(plain, server_hostname=HOST) as connection:
                connection.sendall(b"srvr")
                return b"Mode: standalone" in connection.recv(10_000)
        return False


@pytest.fixture(scope="session")
def zookeeper_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureZooKeeper]:
    """One server. Tests that share it use a chroot each."""
    need_servers()
    server = SecureZooKeeper(tmp_path_factory.mktemp("zookeeper-tls"))
    server.process.start()
    try:
        server.process.until(server.serves, _READY_WITHIN_S)
        yield server
    finally:
        server.process.kill()


def options(server: SecureZooKeeper) -> dict[str, str]:
    """Settings of duemq that lead here."""
    files: TlsFiles = server.client
    return {
        "zookeeper.hosts": server.hosts, "zookeeper.tls": "on", "zookeeper.ca_file": files.ca,
        "zookeeper.cert_file": files.cert, "zookeeper.key_file": files.key,
    }  # fmt: skip
