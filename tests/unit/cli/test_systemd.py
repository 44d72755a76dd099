"""What systemd is told, and when."""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from duemq.cli.app import _COMMANDS
from duemq.cli.exit_codes import Exit
from duemq.cli.settings.settings import Settings
from duemq.cli.systemd.notifier import Board, Notifier
from duemq.cli.systemd.watchdog import Watchdog, watchdog
from tests.support.patience import WITHIN_S

WATCHDOG_S = 0.3
FOLDER = Path(__file__).parents[3] / "conf" / "systemd"
UNIT = FOLDER / "duemq@.service"
KINDS = ("serve", "node", "proxy", "relay")
MOST_EXPOSURE = 3.0


class Systemd:
    """A socket in the abstract namespace, as systemd's may be."""

    def __init__(self) -> None:
        self.address = f"@duemq-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{self.address[1:]}")
        self._socket.setblocking(False)

    def close(self) -> None:
        self._socket.close()

    def received(self) -> list[str]:
        """All since the last time."""
        lines: list[str] = []
        while True:
            try:
                lines += self._socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return lines

    async def until(self, wanted: str) -> list[str]:
        lines: list[str] = []
        async with asyncio.timeout(WITHIN_S):
            while wanted not in lines:
                lines += self.received()
                await asyncio.sleep(0.01)
        return lines


@pytest.fixture
def systemd() -> Iterator[Systemd]:
    server = Systemd()
    yield server
    server.close()


def run(systemd: Systemd, scenario: Callable[[Watchdog, asyncio.Event], Awaitable[None]], workers: int = 1) -> Notifier:
    notifier = Notifier(systemd.address, WATCHDOG_S, Board(workers))

    async def main() -> None:
        stopping = asyncio.Event()
        async with watchdog(notifier, stopping) as watching:
            await scenario(watching, stopping)

    asyncio.run(main())
    return notifier


async def ready(watching: Watchdog) -> None:
    async def at_once() -> None:
        pass

    await watching.ready_after(at_once)()


def test_a_service_is_ready_works_and_stops(systemd: Systemd) -> None:
    async def scenario(watching: Watchdog, stopping: asyncio.Event) -> None:
        begun = await systemd.until("WATCHDOG=1")
        assert "READY=1" not in begun and any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in begun)
        watching.status = lambda: "shard 0 rests"
        await ready(watching)
        lines = await systemd.until("READY=1")
        assert "STATUS=shard 0 rests" in lines + await systemd.until("WATCHDOG=1")
        rest = await systemd.until("WATCHDOG=1")
        assert "READY=1" not in rest and not any(line.startswith(("STATUS", "EXTEND")) for line in rest), "once"
        stopping.set()
        assert "STATUS=it stops" in await systemd.until("STOPPING=1")

    run(systemd, scenario)


def test_a_stuck_shard_stops_the_pings(systemd: Systemd) -> None:
    async def scenario(watching: Watchdog, stopping: asyncio.Event) -> None:
        await ready(watching)
        await systemd.until("WATCHDOG=1")
        watching.stuck = lambda: {0: 61.0}
        await asyncio.sleep(WATCHDOG_S * 2)
        systemd.received()
        await asyncio.sleep(WATCHDOG_S * 2)
        assert "WATCHDOG=1" not in systemd.received()
        watching.stuck = dict
        await systemd.until("WATCHDOG=1")

    run(systemd, scenario)


def test_one_worker_that_is_not_well_stops_the_pings_of_all(systemd: Systemd) -> None:
    async def scenario(watching: Watchdog, stopping: asyncio.Event) -> None:
        await ready(watching)
        await asyncio.sleep(WATCHDOG_S * 2)
        assert not {"READY=1", "WATCHDOG=1"}.intersection(systemd.received()), "the other one is not there yet"
        other = Notifier(systemd.address, WATCHDOG_S, watching._notifier.board).of_worker(1)
        other.record(ready=True)
        await systemd.until("READY=1")
        await asyncio.sleep(WATCHDOG_S * 2)
        systemd.received()
        await asyncio.sleep(WATCHDOG_S * 2)
        assert "WATCHDOG=1" not in systemd.received(), "the other one said nothing more"
        other.record(ready=True)
        await systemd.until("WATCHDOG=1")

    run(systemd, scenario, workers=2)


def test_the_variables_are_for_the_process_that_they_name() -> None:
    own = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    notifier = Notifier.of(own)
    assert (notifier.address, notifier.watchdog_s, own) == ("/run/x", 30.0, {"HOME": "/"})
    other = Notifier.of({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"})
    assert other.watchdog_s is None
    assert Notifier.of({}).address == "" and Notifier.of({"WATCHDOG_USEC": "x"}).watchdog_s is None


def test_a_socket_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    Notifier(str(tmp_path / "gone")).tell("WATCHDOG=1")
    Notifier().tell("WATCHDOG=1")


def test_the_unit_asks_for_what_the_service_tells() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    service = unit["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "all")
    assert int(service["WatchdogSec"]) >= 10


def test_the_unit_leaves_to_the_settings_file_what_the_sample_sets() -> None:
    unit = UNIT.read_text()
    assert re.findall(r"^ExecStart=.*?/duemq (.*)$", unit, re.MULTILINE) == ["%i --config /etc/duemq/duemq.toml"]
    assert not re.search(r"^Environment", unit, re.MULTILINE)
    settings = Settings.load(FOLDER / "duemq.toml")
    assert {"data", "listen", "log_format", "node", "relay"} <= settings.model_fields_set
    assert str(settings.data) == re.search(r"^WorkingDirectory=(.*)$", unit, re.MULTILINE)[1]  # type: ignore[index]
    assert all(kind in _COMMANDS for kind in KINDS)


@pytest.mark.parametrize("name", [*(f"duemq@{kind}.service" for kind in KINDS), "duemq-backup.service"])
def test_a_unit_is_little_exposed(name: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here")
    source = UNIT if "@" in name else FOLDER / name
    copy = shutil.copy(source, tmp_path / name)
    done = subprocess.run([analyze, "security", "--offline=true", copy], capture_output=True, text=True)
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd before 250 judges no files")
    found = re.search(r"Overall exposure level for .*: ([\d.]+) ", done.stdout)
    assert found and float(found[1]) <= MOST_EXPOSURE, done.stdout + done.stderr


def test_the_backup_is_made_each_night_by_settings_that_servers_have() -> None:
    backup, timer = (FOLDER / f"duemq-backup.{kind}" for kind in ("service", "timer"))
    assert "OnCalendar=*-*-* 03:17:00" in timer.read_text()
    assert "duemq backup /backup/duemq --config /etc/duemq/duemq.toml --keep 14\n" in backup.read_text()
    assert f"RestartPreventExitStatus={Exit.ERROR:d} {Exit.USAGE:d}\n" in backup.read_text()
