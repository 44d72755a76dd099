"""`duemq serve` as a real process, and other commands of the same installation."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx

from tests.support.patience import PROCESS_S, SERVERS_S

BIN = Path(sys.executable).parent
DUEMQ = BIN / "duemq"
_PORTS = range(20_000, 32_000)  # below the ephemeral ones: no connection may take a port while its server is down


def free_port() -> int:
    for port in random.sample(_PORTS, 50):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("50 ports in a row are taken")


def environment() -> dict[str, str]:
    """That of the tests, without the settings and profiles of the user.

    How full the disk of this machine is does not matter, but to the tests that say so; nor does how busy it is.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DUEMQ_")}
    marks = {f"DUEMQ_STORAGE__{mark}_PERCENT": "100" for mark in ("PURGE", "SHORTEN", "REFUSE")}
    patient = {"DUEMQ_HTTP__ANSWER_TIMEOUT_MS": "60000"}
    return kept | marks | patient | {"PYTHONSAFEPATH": "1", "NO_COLOR": "1", "XDG_CONFIG_HOME": "/nonexistent"}


def run(
    *arguments: object,
    stdin: str = "",
    url: str | None = None,
    key: str = "",
    within_s: float = PROCESS_S,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """A `duemq` command to its end. `key`: the API key that it presents. `variables`: further ones."""
    extra = dict(variables or {}) | ({} if url is None else {"DUEMQ_URL": url})
    extra |= {"DUEMQ_API_KEY": key} if key else {}
    return subprocess.run(
        [DUEMQ, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=within_s,
        env=environment() | extra,
    )


def wait_for(condition: Callable[[], object], what: str, within_s: float = SERVERS_S) -> None:
    """Until `condition` gives something true; it is asked every 20 ms."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {within_s} s for this: {what}"
        time.sleep(0.02)


class Server:
    """A server on one folder and one port, to be started, killed and stopped any number of times."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data, self.options = data, options
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command: list[object] = [DUEMQ]
        self.environment: dict[str, str] = {}
        self.log_path = data.with_name(f"{data.name}.log")
        self._process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(base_url=self.url, timeout=300)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self.http.close()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def spawn(self, *options: str) -> Self:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                list(map(str, (*self.command, "serve", "--data", self.data, "--listen", f"127.0.0.1:{self.port}",
                               *self.options, *options))),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment() | self.environment,
                start_new_session=True,
            )  # fmt: skip
        return self

    def start(self, *options: str) -> Self:
        """Comes back once it is ready."""
        self.spawn(*options)
        wait_for(self.is_ready, f"ready on {self.url}", PROCESS_S)
        return self

    def is_ready(self) -> bool:
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.log}"
        try:
            return self.call("GET", "/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PROCESS_S)

    def kill_all(self) -> None:
        """With the processes that work for it."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PROCESS_S)

    def stop(self, number: int = signal.SIGTERM, within_s: float = PROCESS_S) -> int:
        """The exit code after this signal."""
        self.process.send_signal(number)
        return self.process.wait(within_s)

    # --- the API, for tests that need no client of their own ------------------------------------------------------

    def call(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return self.http.request(method, path, json=body)

    def send(self, topic: str, **message: Any) -> str:
        """The id of an accepted message."""
        answer = self.call("POST", "/v1/messages", {"topic": topic, **message})
        assert answer.status_code == 201, answer.text
        id_: str = answer.json()["id"]
        return id_

    def state(self, id_: str) -> Any:
        answer = self.call("GET", f"/v1/messages/{id_}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def records(self, topic: str) -> list[Any]:
        """All there are now."""
        found: list[Any] = []
        cursor = ""
        while True:
            page = self.call("GET", f"/v1/topics/{topic}/records?max=10000{cursor}").json()
            if not page["records"]:
                return found
            found += page["records"]
            cursor = f"&after={page['cursor']}"

    def delivered_ids(self, topic: str) -> list[str]:
        return [record["headers"]["duemq-id"] for record in self.records(topic)]
