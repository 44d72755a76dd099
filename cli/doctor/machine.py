"""Checks this machine: versions, clock synchronisation, open files, and the systemd unit."""

from __future__ import annotations

import ctypes
import re
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from duemq import __version__
from duemq.cli.doctor.finding import Finding, error, ok, warning

_FILES = 4096  # enough for the log, each shard, and some connections
_UNIT_FIELDS = ("LoadState", "Type", "WatchdogUSec", "NotifyAccess", "LimitNOFILE", "Restart", "NRestarts")
_RESTARTS = 3
# struct timex of Linux: the status comes after modes, offset, freq, maxerror and esterror.
_TIMEX_BYTES, _STATUS_AT, _UNSYNCHRONISED = 512, struct.calcsize("@illll"), 0x40


def check_versions() -> Iterator[Finding]:
    missing = sorted(name for name in _server_packages() if _version(name) is None)
    if missing:
        yield error("versions", f"not installed: {', '.join(missing)}", "pip install 'duemq[server]'")
    else:
        shown = ", ".join(f"{name} {_version(name)}" for name in ("aiokafka", "rocksdict", "uvloop") if _version(name))
        yield ok("versions", f"duemq {__version__}, Python {sys.version.split()[0]}, {shown}")


def _server_packages() -> list[str]:
    """The names of the distributions that the extra `server` requires on this machine."""
    try:
        texts = requires("duemq") or []
    except PackageNotFoundError:
        return []
    return [
        re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]
        for text in texts
        if re.search(r"extra == .(server|consumer).", text) and not text.startswith("duemq")
    ]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_clock() -> Finding:
    synchronised = is_synchronised()
    if synchronised is None:
        return ok("clocks", "unknown here whether this clock is synchronised")
    if synchronised:
        return ok("clocks", "this machine's clock is synchronised")
    return warning(
        "clocks", "this machine's clock is not synchronised: messages are early or late by its error",
        "run chrony or systemd-timesyncd (of a container: on its host)",
    )  # fmt: skip


def is_synchronised() -> bool | None:
    """Whether the kernel reports that the clock is synchronised; None if it does not report this."""
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        failed = ctypes.CDLL(None).adjtimex(timex) < 0
    except (OSError, AttributeError):
        return None
    if failed:
        return None
    (status,) = struct.unpack_from("@i", timex, _STATUS_AT)
    return not status & _UNSYNCHRONISED


def check_open_files() -> Finding:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < _FILES:
        return warning(
            "open files", f"a process may have {most}: 256 for the log and each shard, and one per connection",
            "raise the limit (ulimit -Hn, LimitNOFILE of the unit) to 65536",
        )  # fmt: skip
    return ok(
        "open files", "enough for each process" if most == resource.RLIM_INFINITY else f"{most:,} for each process"
    )


def unit_fields(unit: str) -> Mapping[str, str] | None:
    """A unit's properties from systemd; None if there is no systemd."""
    if not Path("/run/systemd/system").is_dir() or shutil.which("systemctl") is None:
        return None
    command = ["systemctl", "show", unit, f"--property={','.join(_UNIT_FIELDS)}"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)


def judge_unit(unit: str, fields: Mapping[str, str] | None) -> Iterator[Finding]:
    if fields is None or fields.get("LoadState") != "loaded":
        yield ok("systemd", f"there is no unit {unit} here")
        return
    wrong = []
    if fields.get("Type") != "notify":
        wrong.append("Type is not notify")
    if fields.get("WatchdogUSec", "0") in ("0", "infinity"):
        wrong.append("WatchdogSec is not set: a stuck server is not restarted")
    if fields.get("Restart") == "no":
        wrong.append("Restart is not set")
    for sentence in wrong:
        yield warning("systemd", f"{unit}: {sentence}", "use conf/systemd/duemq@.service")
    if fields.get("NRestarts", "0").isdecimal() and int(fields.get("NRestarts", "0")) > _RESTARTS:
        yield warning("systemd", f"{unit} was restarted {fields['NRestarts']} times", f"journalctl -u {unit} says why")
    if not wrong:
        yield ok("systemd", f"{unit} is as it should be")
