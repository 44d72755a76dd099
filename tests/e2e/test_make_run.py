"""`make run`, the first thing a newcomer does: the demonstration, then a server, and Ctrl-C ends it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import httpx

from tests.e2e.server import BIN, environment, free_port, wait_for
from tests.support.patience import PROCESS_S

ROOT = Path(__file__).parents[2]


def test_make_run(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    # An environment that is made already: this one.
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(BIN)
    (tmp_path / ".venv" / ".installed").touch()
    address, data, screen = f"127.0.0.1:{free_port()}", tmp_path / "elsewhere", tmp_path / "screen"
    with screen.open("wb") as output:
        make = subprocess.Popen(
            ["make", "run", f"LISTEN={address}", f"DATA={data}"],
            cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(
            lambda: "What to try next" in screen.read_text() or make.poll() is not None, "the demonstration", PROCESS_S
        )
        shown = screen.read_text()
        found = re.search(r"300 scheduled = (\d+) delivered \+ (\d+) cancelled", shown)
        assert found, shown
        delivered, cancelled = map(int, found.groups())
        assert delivered + cancelled == 300 and cancelled <= 40
        assert " 0 wrong" in shown, shown
        assert shown.count(f"http://{address}/console/") == 2, shown
        assert "installing" not in shown
        assert httpx.get(f"http://{address}/readyz").status_code == 200
        assert (data / "duemq.json").exists()
    finally:
        os.killpg(make.pid, signal.SIGINT)  # as a terminal does
        code = make.wait(300)
    shown = screen.read_text()
    assert "Traceback" not in shown, shown
    # make itself says that it was interrupted; what it ran has stopped by then.
    assert code in (0, 2, 130, -signal.SIGINT), (code, shown)
    assert "Error" not in shown, shown
    assert f"duemq has stopped. Pending messages are kept in {data}." in shown
