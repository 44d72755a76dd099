"""The server on the embedded bus: a running server, or our own, which can be killed and measured."""

import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal

from duemq.bench.base.frame_session import PREFIX
from duemq.bench.clients.reader import HttpReader
from duemq.bench.system.system import SiteError, free_port, get
from duemq.dev.servers.usage import Bill, Meter
from duemq.storage.data_folder import disk_bytes

_READY_WITHIN_S = 120.0
_STOP_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.005
_START = "import sys; from duemq.cli.main import main; sys.exit(main())"


class EmbeddedServer:
    """A `Site` with one process.

    `url`: measure the server at this URL instead, without starting or stopping it. `data`: the data folder, which is
    never removed. `keep`: also keep the temporary folder with the server's log. `by`: how its topics are read.
    `settings`: by `section.key`; with `http.cert_file`, clients use TLS and trust DUEMQ_CA_FILE.
    """

    accepts_while_stopped = False
    bootstrap: str | None = None

    def __init__(
        self,
        url: str | None = None,
        data: Path | None = None,
        keep: bool = False,
        shards: int | None = None,
        by: Literal["poll", "events", "frames"] = "poll",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.own = url is None
        scheme = "https" if "http.cert_file" in (settings or {}) else "http"
        self.url = (url or f"{scheme}://127.0.0.1:{free_port()}").rstrip("/")
        self.source = HttpReader(PREFIX + self.url if by == "frames" else self.url, by != "poll")
        self.data, self._keeps_folder, self._shards = data, keep, shards
        self._settings = dict(settings or {})
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._meter = Meter("server")

    def __str__(self) -> str:
        return "one process on the embedded bus" if self.own else f"the server at {self.url}"

    def __enter__(self) -> "EmbeddedServer":
        if self.own:
            self._folder = Path(tempfile.mkdtemp(prefix="duemq-bench-"))
            self.data = self.data or self._folder / "data"
            self.data.mkdir(parents=True, exist_ok=True)
        try:
            if self.own:
                self.start()
            else:
                self._until_ready()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._process is not None:
                self.stop()
        finally:
            self._clean_up()

    def _clean_up(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self.own and not self._keeps_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def start(self, settings: Mapping[str, str] | None = None) -> float:
        """Start our own server with its folder; return the seconds until `/readyz` answered 200."""
        self._settings |= settings or {}
        listen = urllib.parse.urlsplit(self.url).netloc
        command = [sys.executable, "-P", "-c", _START, "serve", "--data", str(self.data), "--listen", listen]
        if self._shards is not None:
            command += ["--shards", str(self._shards)]
        for key, value in self._settings.items():
            command += ["--set", f"{key}={value}"]
        began = time.monotonic()
        with (self._folder / "server.log").open("ab") as log:
            # In a separate session, so that Ctrl-C reaches only the bench, which then ends the server.
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._until_ready()
        return time.monotonic() - began

    def start_empty(self) -> dict[str, float]:
        self.stop()
        assert self.data is not None
        shutil.rmtree(self.data)
        self.data.mkdir()
        return {"serve": self.start()}

    def _until_ready(self) -> None:
        deadline = time.monotonic() + (_READY_WITHIN_S if self.own else 5)
        while get(self.url, "/readyz")[0] != 200:
            if self._process is not None and self._process.poll() is not None:
                code, self._process = self._process.returncode, None
                raise SiteError(f"the server ended with exit code {code}:\n{self._last_words()}")
            if time.monotonic() > deadline:
                raise SiteError(f"no server is ready at {self.url}")
            time.sleep(_LOOK_EVERY_S)

    def _last_words(self) -> str:
        return "\n".join((self._folder / "server.log").read_text(errors="replace").splitlines()[-20:])

    def stop(self) -> None:
        """Send SIGTERM, and wait. Raises SiteError if the server has to be killed or has already ended, because such a
        run is not valid."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, which has the effect of a crash or an out-of-memory kill."""
        self._end(signal.SIGKILL)

    @property
    def shards(self) -> int:
        return self._shards or 1

    def kill_broker(self, number: int) -> None:
        raise SiteError("the embedded bus has no brokers: use --on kafka3")

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            raise SiteError(f"the server at {self.url} is not ours to stop: leave out --url for this scenario")
        process = self._process
        if process.poll() is not None:
            self._process = None
            raise SiteError(f"the server ended unexpectedly with exit code {process.returncode}:\n{self._last_words()}")
        self._meter.read(process.pid)
        process.send_signal(how)
        try:
            process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise SiteError(f"the server did not stop within {_STOP_WITHIN_S:.0f} s of SIGTERM") from None
        finally:
            self._process = None

    def create_topic(self, topic: str) -> None:
        """Does nothing: the embedded bus creates a topic with its first message."""

    def bill(self) -> Bill | None:
        """The cost of our own server; None for a foreign server."""
        return (self._meter.read(self._process.pid if self._process else None),) if self.own else None

    @property
    def folder(self) -> Path | None:
        """The data folder; None for a foreign server."""
        return self.data if self.own else None

    def disk_bytes(self) -> int | None:
        """The disk space, in bytes, of the data folder; None for a foreign server."""
        return disk_bytes(self.folder) if self.folder else None
