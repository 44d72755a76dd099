"""A real NATS server with JetStream, of its Go module, that can be stopped, killed and started on its data again."""

from __future__ import annotations

import json
import os
import subprocess
from base64 import b64decode
from pathlib import Path

from duemq.dev.servers.ports import HOST, free_port, is_open
from duemq.dev.servers.process import Process
from tests.support.destinations.arrived import Arrived
from tests.support.destinations.golang import built
from tests.support.destinations.server_node import ServerNode
from tests.support.tls.certificates import Authority

_SERVER = ("github.com/nats-io/nats-server/v2", "v2.15.2")
_CLI = ("github.com/nats-io/natscli/nats", "v0.5.0")
_READY_WITHIN_S = 300.0
_DUMP_WITHIN_S = 300.0


class NatsNode(ServerNode):
    """One server on the loopback; its streams survive it.

    `url`; `tls`: for clients that trust `ca`, which then reach it only by TLS; `verify`: and that present a certificate
    of `ca`, such as the files `client`. `settings`: lines of its configuration, such as users. `process`: to be paused
    and measured. `authority`: of all certificates, one for all nodes of a cluster. `host`: the name in its own. Raises
    NotAvailable if there is no Go, or no way to its modules.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tls: bool = False,
        verify: bool = False,
        settings: str = "",
        authority: Authority | None = None,
        host: str = HOST,
    ) -> None:
        self.folder, self._tls = folder.absolute(), tls
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"{'tls' if tls else 'nats'}://{host}:{self.port}"
        authority = authority or Authority.make(self.folder)
        files, self.client = authority.issue(f"node-{self.port}", host), authority.issue("client")
        self.ca = Path(files.ca)
        configuration = self.folder / "server.conf"
        configuration.write_text(settings)
        command = [
            str(built(*_SERVER)), "-a", HOST, "-p", str(self.port), "-js", "-sd", str(self.folder / "data"),
            "-c", str(configuration),
            *(["--tls", "--tlscert", files.cert, "--tlskey", files.key] if tls else []),
            *(["--tlsverify", "--tlscacert", files.ca] if verify else []),
        ]  # fmt: skip
        self.process = Process("nats", command, self.folder / "server.log")

    def start(self) -> None:
        self.process.start()
        self.process.until(lambda: is_open(self.port), _READY_WITHIN_S)  # opened when JetStream has recovered

    def dump(self, stream: str) -> list[Arrived]:
        """All messages of a stream in order, left in place, as read by NATS's command line.

        A header has a list of values. Raises subprocess.CalledProcessError if there is no such stream.
        """
        if not json.loads(self._ask("stream", "info", stream, "--json"))["state"]["messages"]:
            return []  # the command below would wait for the first
        # A NUL ends each message.
        told = self._ask("sub", "--stream", stream, "--all", "--terminate-at-end", "--dump=-")
        read = (json.loads(message) for message in told.split(b"\0") if message)
        return [
            Arrived(
                b64decode(one["Data"]), one["Header"] or {}, {"subject": one["Subject"], "sequence": _sequence(one)}
            )
            for one in read
        ]

    def _ask(self, *words: str) -> bytes:
        command = [str(built(*_CLI)), "--no-context", "--server", self.url, *words]
        if self._tls:
            command += ["--tlsca", str(self.ca)]
        environment = {**os.environ, "HOME": str(self.folder)}  # not the settings of whoever runs the tests
        done = subprocess.run(command, check=True, capture_output=True, timeout=_DUMP_WITHIN_S, env=environment)
        return done.stdout


def _sequence(message: dict[str, str]) -> int:
    """In the stream: `$JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.…`."""
    return int(message["Reply"].split(".")[5])
