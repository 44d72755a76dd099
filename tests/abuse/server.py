"""What is abused: `duemq serve` on the embedded bus, or the proxy of a cluster on Kafka."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from duemq.bench.system.system import free_port, ready
from duemq.dev.cluster.cluster import LocalCluster
from duemq.dev.servers.usage import Usage, usage

_START_S, _STOP_S = 300.0, 120.0
_LAST_LINES = 20
_MARKS = {f"DUEMQ_STORAGE__{mark}_PERCENT": "100" for mark in ("PURGE", "SHORTEN", "REFUSE")}


class AbusedServer:
    """With default settings, but for the marks of the disk, and what `settings` says as environment variables. `files`:
    soft and hard limit of its file descriptors."""

    def __init__(self, folder: Path, files: int, settings: Mapping[str, str] | None = None) -> None:
        self._files, self._data, self.log = files, folder / "data", folder / "server.log"
        self._settings = dict(settings or {})
        self.url = f"http://127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._files, self._files))

        environment = {name: value for name, value in os.environ.items() if not name.startswith("DUEMQ_")}
        environment |= _MARKS | self._settings | {"PYTHONSAFEPATH": "1"}
        listen = self.url.removeprefix("http://")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [Path(sys.executable).with_name("duemq"), "serve", "--data", self._data, "--listen", listen],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                start_new_session=True, preexec_fn=limit,
            )  # fmt: skip
        if not ready(self.url, _START_S):
            self._kill()
            raise RuntimeError(f"the server did not start:\n{self.last_words()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def usage(self) -> Usage:
        """Of the server and its helper processes."""
        return usage(self.process.pid)

    def stop(self) -> int | None:
        """SIGTERM; returns the exit code, None if it did not stop within two minutes."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            return None

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:])

    def _kill(self) -> None:
        if self.lives:
            self.process.kill()
        self.process.wait()


class AbusedCluster:
    """Kafka, ZooKeeper, two nodes and a proxy. `files`, `settings`: as of `AbusedServer`."""

    def __init__(self, folder: Path, files: int, settings: Mapping[str, str]) -> None:
        environment = _MARKS | dict(settings)
        self._files, self._cluster = files, LocalCluster(folder, nodes=2, proxies=1, environment=environment)
        self.url = self._cluster.proxies[0].url

    def __enter__(self) -> Self:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._files, hard))  # inherited
        self._cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.__exit__(kind, error, trace)

    def usage(self) -> Usage:
        """Of whichever of proxy and nodes has used most memory."""
        processes = (*self._cluster.proxies, *self._cluster.nodes)
        return max((one.process.usage() for one in processes), key=lambda used: used.peak_rss_bytes)
