"""A server process that can be stopped, killed, frozen and measured."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from duemq.dev.servers import procfs
from duemq.dev.servers.errors import LocalError
from duemq.dev.servers.usage import Usage, usage

_LOOK_EVERY_S = 0.02
STOP_WITHIN_S = 60.0


def wait_for(condition: Callable[[], object], what: str, within_s: float) -> None:
    """Wait until `condition` is true, checking every 20 ms. Raises LocalError."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise LocalError(f"waited {within_s:.0f} s for {what}")
        time.sleep(_LOOK_EVERY_S)


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, which another process may have started. `started`: clock ticks since boot, because pids are reused."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """The identity of a running process. Raises ProcessLookupError."""
        return cls(pid, procfs.start_ticks(pid))

    def lives(self) -> bool:
        """Whether the process runs. False for a zombie, because it has released its ports and files."""
        try:
            return procfs.start_ticks(self.pid) == self.started and not procfs.is_zombie(self.pid)
        except ProcessLookupError:
            return False

    def frozen(self) -> bool:
        """Whether all threads of the process are stopped; also true if it has ended."""
        try:
            return not self.lives() or procfs.threads_stopped(self.pid)
        except ProcessLookupError:
            return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. Does nothing if the process is gone."""
        if self.lives():
            os.kill(self.pid, number)


class Process:
    """One server, which can be started any number of times. Its output is appended to `log`.

    The server runs in a separate session, so that Ctrl-C reaches only the process that started it, which stops it in
    order. The server is killed when the interpreter ends, unless `leave` was called.
    """

    _living: set[Process] = set()  # noqa: RUF012

    def __init__(
        self, name: str, command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.log = name, log
        self.command = list(command)
        self.environment = dict(environment or {})
        self._child: subprocess.Popen[bytes] | None = None
        self.identity: ProcessIdentity | None = None
        self._told_to_end = False

    @property
    def pid(self) -> int:
        """The process id. Raises LocalError if the server was never started."""
        if self.identity is None:
            raise LocalError(f"{self.name} was not started")
        return self.identity.pid

    @property
    def running(self) -> bool:
        """Whether the process runs. Also true if it is paused."""
        if self._child is not None:
            return self._child.poll() is None
        return self.identity is not None and self.identity.lives()

    @property
    def exit_code(self) -> int | None:
        """As in subprocess: if a signal ended the process, the negative signal number; None while it runs."""
        return None if self._child is None else self._child.poll()

    def attach(self, identity: ProcessIdentity) -> None:
        """Take over a process that an earlier interpreter started."""
        self._child, self.identity = None, identity

    def leave(self) -> None:
        """Let the process continue when this interpreter ends."""
        self._living.discard(self)

    def start(self) -> None:
        """Start the process. Does nothing if it is running."""
        if self.running:
            return
        self._told_to_end = False
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment or None,
                start_new_session=True,
            )
        self.identity = ProcessIdentity.of(self._child.pid)
        self._living.add(self)

    def until(self, ready: Callable[[], object], within_s: float) -> None:
        """Wait until the process is ready. Raises LocalError with the end of its log if it ends or is too slow."""

        def check() -> object:
            if not self.running:
                raise LocalError(f"{self.name} ended with exit code {self.exit_code}:\n{self.last_words()}")
            return ready()

        try:
            wait_for(check, f"{self.name} to be ready", within_s)
        except LocalError as error:
            if self.running:
                raise LocalError(f"{error}:\n{self.last_words()}") from None
            raise

    def last_words(self, lines: int = 20) -> str:
        """The end of the log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    def terminate(self) -> None:
        """Send SIGTERM, without waiting. Does nothing if the process is not running or was sent one before.

        A second signal could arrive after the process has removed its handlers, and end it before it has finished.
        """
        if not self._told_to_end:
            self._told_to_end = True
            self._signal(signal.SIGTERM)

    def stop(self, within_s: float = STOP_WITHIN_S) -> int | None:
        """Send SIGTERM, and wait. Returns the exit code, or None if the process was attached. After `within_s`, kills
        the process and raises LocalError."""
        self._signal(signal.SIGCONT)
        self.terminate()
        try:
            self._wait(within_s)
        except LocalError:
            self.kill()
            raise
        return self.exit_code

    def kill(self) -> None:
        """Send SIGKILL, and wait. This has the same effect as a crash or the out-of-memory killer."""
        self._signal(signal.SIGKILL)
        self._wait(STOP_WITHIN_S)

    def pause(self) -> None:
        """Send SIGSTOP. When this returns, the process still has its connections, but does not answer."""
        self._signal(signal.SIGSTOP)
        if self.identity is not None:
            wait_for(self.identity.frozen, f"{self.name} to freeze", STOP_WITHIN_S)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._signal(signal.SIGCONT)

    def usage(self) -> Usage:
        """The present CPU seconds and memory of the process and its children; zeros if it is not running."""
        return usage(self.pid) if self.running else Usage(0.0, 0, 0)

    def _signal(self, number: signal.Signals) -> None:
        if self.running and self.identity is not None:
            self.identity.signal(number)

    def _wait(self, within_s: float) -> None:
        wait_for(lambda: not self.running, f"{self.name} to end", within_s)
        self._living.discard(self)

    @classmethod
    def _kill_all(cls) -> None:
        for process in list(cls._living):
            process.kill()


atexit.register(Process._kill_all)
