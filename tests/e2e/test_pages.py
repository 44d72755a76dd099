"""Pages that a reader follows with a server at hand: every block runs as printed, in order."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.server import BIN, Server, environment, wait_for
from tests.support.docs.blocks import ENDLESS, ROOT, SERVED, Served, blocks, is_run

_ADDRESS: Final = "http://127.0.0.1:8787"
_END: Final = "--- end of the block"
_SETTINGS: Final = re.compile(r"^```toml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LISTENS: Final = re.compile(r"0\.0\.0\.0:(\d+)|\"127\.0\.0\.1\", (\d+)")
_REFUSED: Final = re.compile(r'"code":"(?:bad_(?!cursor)\w+|unknown_field|not_found|missing_topic)"')
"""Codes that say that the page is wrong, whatever the server has."""


class Shell:
    """A bash that keeps variables from one block to the next, as a reader's does."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash"], cwd=folder, env=variables, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, code: str) -> str:
        """What the block prints. A command that fails is in it, as `failed: COMMAND`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        trap = "trap 'echo \"failed: $BASH_COMMAND\"' ERR\n"
        self._process.stdin.write(f"{trap}{code}\necho\necho '{_END}'\n")
        self._process.stdin.flush()
        lines = list[str]()
        for line in self._process.stdout:
            if line.strip() == _END:
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"the shell ended: {''.join(lines)}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def _variables(server: Server) -> Iterator[dict[str, str]]:
    mine = {"DUEMQ_URL": server.url, "PATH": f"{BIN}:{os.environ['PATH']}"}
    before = dict(os.environ)
    os.environ.update(mine)
    try:
        yield environment() | mine
    finally:
        os.environ.clear()
        os.environ.update(before)


def _stays(code: str, language: str, variables: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    """An endless block, begun; it has to be there still when the page ends. If it listens, then at its return."""
    command = (
        [sys.executable, "-c", code]
        if language == "python"
        else ["bash", "-c", f"DUEMQ={variables['DUEMQ_URL']}\n{code}"]
    )
    process = subprocess.Popen(
        command,
        env=variables,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for port in (int(one or other) for one, other in _LISTENS.findall(code)):
        wait_for(lambda: process.poll() is not None or _listens(port), f"port {port}")  # noqa: B023  # called at once
    return process


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _server(served: Served, page: str, folder: Path) -> Iterator[Server]:
    """Not started if the page does that."""
    settings = served.settings or "".join(_SETTINGS.findall((ROOT / "docs" / page).read_text()))
    (folder / "duemq.toml").write_text(settings)
    with Server(folder / "data", "--config", str(folder / "duemq.toml")) as server:
        if not served.starts:
            server.start()
        yield server


@pytest.mark.servers
@pytest.mark.smoke
@pytest.mark.parametrize("page", SERVED)
def test_every_block_of_the_page_runs_in_order(page: str, tmp_path: Path) -> None:
    served = SERVED[page]
    for name, text in served.files.items():
        (tmp_path / name).write_text(text)
    names: dict[str, Any] = {"__name__": page}
    with _server(served, page, tmp_path) as server, _variables(server) as variables:
        shell, endless = Shell(tmp_path, variables), list[subprocess.Popen[str]]()
        try:
            exec(served.names, names)
            for block in filter(is_run, blocks(page)):
                code = block.code.replace(_ADDRESS, server.url)
                if served.starts:
                    code = code.replace("8787", str(server.port)).replace("/var/lib/duemq", str(tmp_path / "own"))
                if code.startswith(ENDLESS):
                    endless.append(_stays(code, block.language, variables, tmp_path))
                elif block.language == "python":
                    exec(compile(code, page, "exec"), names)
                else:
                    printed = shell.run(code)
                    assert "failed: " not in printed and not _REFUSED.search(printed), printed
            for process in endless:
                assert process.poll() is None, process.communicate()[1]
        finally:
            shell.close()
            for process in endless:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                process.communicate()
            if "client" in names:
                names["client"].close()
