"""The filter of system calls in the unit of systemd lets through whatever a server asks the kernel for."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.server import DUEMQ, Server, run, wait_for

UNIT = Path(__file__).parents[2] / "conf" / "systemd" / "duemq@.service"


def members(group: str) -> set[str]:
    """The calls in a group such as @system-service, those of its groups included."""
    shown = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
    names = {line.strip() for line in shown.stdout.splitlines()[1:] if line.strip() and "#" not in line}
    return names.union(*(members(name) for name in names if name.startswith("@")))


@pytest.mark.slow
def test_each_system_call_of_a_server_passes_the_filter_of_its_unit(
    tmp_path: Path, new_server: Callable[..., Server]
) -> None:
    if not shutil.which("strace") or not shutil.which("systemd-analyze"):
        pytest.skip("strace or systemd-analyze is not here")
    server, trace = new_server(), tmp_path / "trace"
    # Detached: the process that is started is the server itself.
    server.command = ["strace", "-D", "-f", "-qq", "-o", trace, DUEMQ]
    server.start()
    server.send("t", payload="now", deliver_after=10)
    wait_for(lambda: server.records("t"), "the delivery")
    assert server.call("GET", "/console/").status_code == 200
    assert run("backup", tmp_path / "backups", "--data", server.data).returncode == 0
    assert server.stop() == 0, server.log
    wait_for(lambda: "exit_group" in trace.read_text(errors="replace"), "the trace to be written")

    used = set(re.findall(r"^\d+ +(?:<\.\.\. )?([a-z_0-9]+)[ (]", trace.read_text(errors="replace"), re.MULTILINE))
    assert len(used) > 50
    allowed = members("@default")
    for group in re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE):
        allowed = allowed - members(group[1:]) if group.startswith("~") else allowed | members(group)
    assert used - allowed == set()
