"""The first quarter of an hour of a newcomer: every block of the README runs in a fresh checkout, by the tools that an
older machine has, with no more than what the README has him install."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.server import environment, free_port, wait_for
from tests.support.house.distributions import copy_of_checkout
from tests.support.old_curl import put_old_curl

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
ADDRESS = "127.0.0.1:8787"


class Newcomer:
    """Has a checkout, a Python, make, an old curl and what a system has, and no settings."""

    def __init__(self, folder: Path) -> None:
        tools = folder / "tools"
        tools.mkdir()
        (tools / "python3").write_text(f'#!/bin/sh\nexec {Path(sys.executable).resolve()} "$@"\n')
        (tools / "python3").chmod(0o755)
        put_old_curl(tools)
        self.checkout = copy_of_checkout(folder)
        self.address = f"127.0.0.1:{free_port()}"
        self.environment = environment() | {"PATH": f"{tools}:/usr/bin:/bin"}
        self.environment.pop("PYTHONSAFEPATH")
        self.environment.pop("VIRTUAL_ENV", None)
        self.export = ""

    def run(self, code: str, *shell: str) -> subprocess.CompletedProcess[str]:
        code = code.replace(ADDRESS, self.address)
        return subprocess.run(
            [*(shell or ("bash", "-c")), code], cwd=self.checkout, env=self.environment, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=600,
        )  # fmt: skip

    @contextmanager
    def make_run(self) -> Iterator[str]:
        """The server of `make run`; gives what it has shown once the demonstration is over."""
        screen = self.checkout / "screen"
        with screen.open("wb") as output:
            make = subprocess.Popen(
                ["make", "run", f"LISTEN={self.address}"], cwd=self.checkout, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        try:
            wait_for(lambda: "Ctrl-C stops" in screen.read_text() or make.poll() is not None, "make run", 600)
            yield screen.read_text()
        finally:
            os.killpg(make.pid, signal.SIGINT)
            make.wait(300)
        assert "duemq has stopped" in screen.read_text()


@pytest.mark.slow
def test_every_block_of_the_readme_runs_in_a_fresh_checkout(tmp_path: Path) -> None:
    assert shutil.which("make", path="/usr/bin:/bin")
    newcomer = Newcomer(tmp_path)
    blocks = iter(BLOCKS)

    def block(language: str, *, has: str) -> str:
        found, code = next(blocks)
        assert found == language and has in code, code
        return str(code)

    start = block("sh", has="make run")
    assert re.findall(r"^make (\w+)", start, re.MULTILINE) == ["run", "test"]
    assert newcomer.run("make -n test").returncode == 0  # `make test` is what runs this
    from_checkout, from_wheels = block("sh", has="pip install .").split("\n", 1)
    installed = newcomer.run(from_checkout)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    elsewhere = newcomer.run("elsewhere/bin/duemq --version; elsewhere/bin/duemq serve")
    assert elsewhere.stdout.startswith("duemq 0.") and "pip install 'duemq[server]'" in elsewhere.stderr
    installed = newcomer.run(f"set -e; {from_wheels} elsewhere/bin/duemq demo --help")
    assert installed.returncode == 0, installed.stdout + installed.stderr

    with newcomer.make_run() as shown:
        assert " 0 wrong" in shown, shown
        assert f"http://{newcomer.address}/console/" in shown
        page = newcomer.run(f"curl -sL -H 'Accept: text/html' http://{ADDRESS}/")
        assert "<title>" in page.stdout, page.stdout
        export = block("sh", has="export DUEMQ_URL")

        curl = newcomer.run(f"set -e; {export}" + block("sh", has="curl").replace("\n", "; echo\n"))
        statuses = ('"scheduled"', '"payload":"pay order 42"', '"scheduled"', '"cancelled"', '"naive_time"')
        answers = curl.stdout.split("\n")
        assert all(status in answer for status, answer in zip(statuses, answers, strict=False)), curl

        words = newcomer.run(f"set -e; {export}" + block("sh", has="duemq send"))
        for text in ("(in 1h)", "pay order 42", "pay order 44", "exit code 3: too late"):
            assert text in words.stdout, words
        assert words.returncode == 0

        python = block("python", has="Client()").replace("'", "'\\''")
        assert "cancelled at 20" in newcomer.run(f"{export}python -c '{python}'").stdout

        destination = newcomer.run(export + block("sh", has="destination add"))
        assert destination.returncode == 0, destination
        assert "billing is declared" in destination.stdout and "scheduled" in destination.stdout, destination
        assert "pip install" not in destination.stdout + destination.stderr
    assert next(blocks, None) is None, "a block that was not run"
