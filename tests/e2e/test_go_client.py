"""A client in another language, written from the specification of frames alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.server import Server
from tests.support.http.browser import cannot
from tests.support.patience import WITHIN_S

pytestmark = pytest.mark.xdist_group("server")
SOURCE = Path(__file__).with_name("go_client")


def go() -> str:
    """The Go tool, from Debian if this machine has none."""
    if (tool := shutil.which("go")) is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            cannot("there is no go: install Debian's package golang-go")
        for command in (["update"], ["install", "-y", "--no-install-recommends", "golang-go"]):
            subprocess.run(["apt-get", "-q", *command], check=True, capture_output=True)
        tool = shutil.which("go")
    assert tool is not None
    return tool


def test_a_go_client_sends_looks_up_cancels_and_reads_a_stream(shared_server: Server, tmp_path: Path) -> None:
    program = tmp_path / "client"
    environment = os.environ | {"GOCACHE": str(tmp_path / "cache"), "GOTOOLCHAIN": "local"}
    built = subprocess.run(
        [go(), "build", "-o", program, "."], cwd=SOURCE, env=environment, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program, shared_server.url], capture_output=True, text=True, timeout=10 * WITHIN_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "statuses": {"201": 200}, "shown": "scheduled", "cancelled": "cancelled", "refused": 400,
        "code": "bad_field", "records": 199, "pong": "still here",
    }  # fmt: skip
