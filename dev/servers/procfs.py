"""Reads from Linux' /proc what psutil does not offer. No other file of the project's tools reads /proc."""

from __future__ import annotations

from pathlib import Path


def _stat_fields(stat: str) -> list[str]:
    """The fields after the program's name, which may contain spaces and brackets: see proc(5)."""
    return stat.rpartition(")")[2].split()


def start_ticks(pid: int) -> int:
    """Clock ticks from the start of the machine to the start of the process. Raises ProcessLookupError if there is no
    such process.

    psutil returns wall clock time, which another process cannot compare once the clock has been set.
    """
    try:
        return int(_stat_fields(Path(f"/proc/{pid}/stat").read_text())[19])
    except FileNotFoundError:
        raise ProcessLookupError(f"there is no process {pid}") from None


def is_zombie(pid: int) -> bool:
    """Whether the process has ended and released its ports and files. Raises ProcessLookupError."""
    try:
        return _stat_fields(Path(f"/proc/{pid}/stat").read_text())[0] in "ZX"
    except FileNotFoundError:
        raise ProcessLookupError(f"there is no process {pid}") from None


def threads_stopped(pid: int) -> bool:
    """Whether SIGSTOP has reached all threads of a process. Raises ProcessLookupError if one of them has just ended."""
    try:
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except FileNotFoundError:
        raise ProcessLookupError(f"a thread of {pid} has ended") from None
    return all(_stat_fields(stat)[0] == "T" for stat in stats)


def peak_rss_bytes(pid: int) -> int:
    """The peak memory of a process, in bytes; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:")), 0)
