"""Runs a separate `duemq serve` for a bench."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from duemq.client import Admin
from duemq.client.http.errors import Unavailable, Unreachable
from duemq.pipeline.errors import JobFailed

_START: Final = "from duemq.cli.main import main; main()"
_START_S: Final = 60.0
_STOP_S: Final = 30.0


@contextmanager
def serving(data: Path, *settings: str) -> Iterator[str]:
    """Run a server with this data folder; yield its URL. `settings`: as for `--set`. Raises JobFailed."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    chosen = [word for setting in settings for word in ("--set", setting)]
    options = ["--data", str(data), "--listen", url.removeprefix("http://"), *chosen]
    command = [sys.executable, "-P", "-c", _START, "serve", *options]
    with data.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until = time.monotonic() + _START_S
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > until:
                raise JobFailed(f"duemq serve did not start: see {data.with_suffix('.log')}")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with Admin(url) as client:
            client.cluster()
    except (Unavailable, Unreachable):
        return False
    return True
