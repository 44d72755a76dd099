"""The server under test: one that runs already, or one of our own that can be killed, started again and weighed."""

import http.client
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path
from types import TracebackType

from duemq.proxy.bench.usage import Usage, filesystem, usage
from duemq.storage.folder import disk_bytes

_READY_WITHIN_S = 120.0
_STOP_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.005
_START = "import sys; from duemq.proxy.cli.main import main; sys.exit(main())"


class ServerError(RuntimeError):
    """The server did not start, did not stop, or is not one that this scenario may stop."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A context manager: entered, it serves at `url`; left, it is stopped and its temporary folder removed.

    `url`: measure that server instead, and leave it alone. `data`: the data folder to use, never removed. `keep`: do
    not remove the temporary folder either, where the server's log is. Raises ServerError.
    """

    def __init__(self, url: str | None = None, data: Path | None = None, keep: bool = False) -> None:
        self.own = url is None
        self.url = (url or f"http://127.0.0.1:{_free_port()}").rstrip("/")
        self.data, self._kept = data, keep
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._spent_cpu_s, self._peak_rss = 0.0, 0

    def __enter__(self) -> "Server":
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
        if self.own and not self._kept:
            shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> float:
        """Start our own server on its folder; returns the seconds until `/readyz` answered 200."""
        listen = urllib.parse.urlsplit(self.url).netloc
        command = [sys.executable, "-P", "-c", _START, "serve", "--data", str(self.data), "--listen", listen]
        began = time.monotonic()
        with (self._folder / "server.log").open("ab") as log:
            # A session of its own: Ctrl-C ends the bench, and the bench ends the server.
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._until_ready()
        return time.monotonic() - began

    def _until_ready(self) -> None:
        deadline = time.monotonic() + (_READY_WITHIN_S if self.own else 5)
        while self.get("/readyz")[0] != 200:
            if self._process is not None and self._process.poll() is not None:
                code, self._process = self._process.returncode, None
                raise ServerError(f"the server ended with exit code {code}:\n{self._last_words()}")
            if time.monotonic() > deadline:
                raise ServerError(f"no server is ready at {self.url}")
            time.sleep(_LOOK_EVERY_S)

    def _last_words(self) -> str:
        return "\n".join((self._folder / "server.log").read_text(errors="replace").splitlines()[-20:])

    def stop(self) -> None:
        """SIGTERM, and wait. Raises ServerError when it has to be killed."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: what a crash or an out-of-memory kill does."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            raise ServerError(f"the server at {self.url} is not ours to stop: leave --url away for this scenario")
        last, process = self.usage(), self._process
        assert last is not None
        self._spent_cpu_s, self._peak_rss = last.cpu_s, last.peak_rss_bytes
        process.send_signal(how)
        try:
            process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ServerError(f"the server did not stop within {_STOP_WITHIN_S:.0f} s of SIGTERM") from None
        finally:
            self._process = None

    def get(self, path: str) -> tuple[int, bytes]:
        """One GET on a connection of its own: status and body, or (0, b"") when nobody answers."""
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.url).netloc, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def usage(self) -> Usage | None:
        """CPU s and memory of our own server, over all its lives; None for a server that is not ours."""
        if self._process is None:
            return Usage(self._spent_cpu_s, 0, self._peak_rss) if self.own else None
        now = usage(self._process.pid)
        return Usage(self._spent_cpu_s + now.cpu_s, now.rss_bytes, max(self._peak_rss, now.peak_rss_bytes))

    def disk_bytes(self) -> int | None:
        """Allocated bytes of the data folder; None for a server that is not ours."""
        return disk_bytes(self.data) if self.own and self.data else None

    def filesystem(self) -> str:
        """Type of the filesystem below the data folder."""
        return filesystem(self.data) if self.own and self.data else "unknown"
