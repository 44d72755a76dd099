"""The server that a bench starts."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from duemq.bench.system.server import EmbeddedServer
from duemq.bench.system.system import SiteError


class Stub(EmbeddedServer):
    """A process that says something, and does nothing."""

    def begin(self, folder: Path, code: str) -> "Stub":
        self._folder = folder
        with (folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen([sys.executable, "-c", code], stdout=log)
        return self

    @property
    def process(self) -> "subprocess.Popen[bytes] | None":
        return self._process


def test_a_server_that_ended_by_itself_makes_no_sound_run(tmp_path: Path) -> None:
    dead = Stub(data=tmp_path).begin(tmp_path, "print('out of luck', flush=True); raise SystemExit(3)")
    assert dead.process is not None
    dead.process.wait()
    for end in (dead.stop, dead.kill):
        with pytest.raises(SiteError, match=r"unexpectedly with exit code 3:\nout of luck|not ours to stop"):
            end()
    assert dead.process is None


def test_a_server_that_runs_is_stopped(tmp_path: Path) -> None:
    running = Stub(data=tmp_path).begin(tmp_path, "import time; time.sleep(600)")
    process = running.process
    assert process is not None
    running.kill()
    assert process.returncode == -signal.SIGKILL
    assert running.process is None
