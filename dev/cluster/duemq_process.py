"""A delay node, a proxy, a relay or `duemq serve` as a process that runs this installation."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from duemq.dev.servers.ports import HOST
from duemq.dev.servers.process import Process
from duemq.tls.contexts import client_context
from duemq.tls.files import TlsFiles

PROGRAM = (sys.executable, "-P", "-c", "import sys; from duemq.cli.main import main; sys.exit(main())")
_KEEP_NOTHING = ("proxy", "relay")
_READY_WITHIN_S = 300.0  # for very busy machines; if the process ends, this is noticed at once


class DuemqProcess:
    """A process of duemq. `settings` (by `section.key`) and `environment` may be changed; both take effect at the next
    `start`.

    `kind`: `node`, `proxy`, `relay` or `serve`. `data`: the process's folder; proxies and relays store nothing.
    `program`: the command to run as `duemq`.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        port: int,
        folder: Path,
        settings: Mapping[str, str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.kind, self.name, self.port = kind, name, port
        self._folder = folder
        self.settings, self.environment = dict(settings), dict(environment or {})
        self.program: Sequence[str] = PROGRAM
        self.process = Process(name, self._command(), folder / "logs" / f"{name}.log", environment=self._variables())

    @property
    def url(self) -> str:
        section = "node" if self.kind == "node" else "http"
        return f"{'https' if f'{section}.cert_file' in self.settings else 'http'}://{HOST}:{self.port}"

    @property
    def data(self) -> Path:
        return self._folder / self.name

    @property
    def log(self) -> Path:
        return self.process.log

    def spawn(self) -> None:
        """Start the process without waiting. Does nothing if it is running."""
        self.process.command, self.process.environment = self._command(), self._variables()
        self.process.start()

    def start(self) -> None:
        """Start the process, and return when it is ready. Raises LocalError."""
        self.spawn()
        self.wait_until_ready()

    def wait_until_ready(self, within_s: float = _READY_WITHIN_S) -> None:
        """Wait until the process is ready. Raises LocalError with the end of its log if it ends or is too slow."""
        self.process.until(self.is_ready, within_s)

    def is_ready(self) -> bool:
        """Whether `/readyz` answers with 200."""
        try:
            verify = client_context(self._files()) if self.url.startswith("https") else False
            return httpx.get(f"{self.url}/readyz", timeout=5, trust_env=False, verify=verify).status_code == 200
        except httpx.TransportError:
            return False

    def _files(self) -> TlsFiles:
        """The TLS files for its clients: the node's own files, or those in the environment of the process."""
        if self.kind == "node":
            return TlsFiles(*(self.settings.get(f"node.{name}_file", "") for name in ("ca", "cert", "key")))
        return TlsFiles(*(self.environment.get(f"DUEMQ_{name}_FILE", "") for name in ("CA", "CERT", "KEY")))

    def _command(self) -> list[str]:
        own = ["--listen", f"{HOST}:{self.port}"]
        if self.kind not in _KEEP_NOTHING:
            own += ["--data", str(self.data)]
        if self.kind == "node":
            own += ["--name", self.name]
        for key, value in self.settings.items():
            own += ["--set", f"{key}={value}"]
        return [*self.program, self.kind, *own]

    def _variables(self) -> dict[str, str]:
        """The environment variables of this interpreter, without any settings for the user's own duemq."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DUEMQ_")}
        return environment | {"NO_COLOR": "1"} | self.environment
