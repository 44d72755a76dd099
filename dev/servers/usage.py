"""What processes cost, from /proc: CPU seconds, resident memory, bytes on disk, and how quiet the machine was."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """A process and its children: CPU s so far (user + system), resident bytes now and at their highest."""

    cpu_s: float
    rss_bytes: int
    peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """One process of the measured system. `role`: server, proxy, node, broker or zookeeper."""

    role: str
    usage: Usage


Bill = tuple[ProcessUsage, ...]


def cpu_s(bill: Bill, *roles: str) -> float:
    """CPU s of all processes that have one of these roles."""
    return sum(part.usage.cpu_s for part in bill if part.role in roles)


def holder(bill: Bill) -> Usage:
    """Memory of what holds the waiting messages: of the largest one, where there are several nodes."""
    holding = [part.usage for part in bill if part.role in ("server", "node")]
    return Usage(0.0, max(each.rss_bytes for each in holding), max(each.peak_rss_bytes for each in holding))


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = listing.read_text().split()
        except OSError:  # a thread that ended meanwhile
            continue
        for child in children:
            yield from _tree(int(child))


def _cpu_ticks(pid: int) -> int:
    """User and system ticks of the process and of its children that have ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return sum(int(field) for field in stat.rpartition(")")[2].split()[11:15])


def _memory_bytes(pid: int) -> tuple[int, int]:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    now, peak = (int(fields.get(name, "0 kB").split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, peak


def usage(pid: int) -> Usage:
    """The process and everything below it."""
    pids = list(_tree(pid))
    memory = [_memory_bytes(each) for each in pids]
    ticks = sum(_cpu_ticks(each) for each in pids)
    return Usage(ticks / _TICKS_PER_S, sum(now for now, _ in memory), sum(peak for _, peak in memory))


class Meter:
    """Follows one process of the measured system through its lives: look at it before it ends, or that one is lost."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._pid: int | None = None
        self._now = Usage(0.0, 0, 0)
        self._spent_s, self._peak = 0.0, 0

    def look(self, pid: int | None) -> ProcessUsage:
        """What all lives have cost, this one (None: it is not running) included."""
        if pid != self._pid:
            self._spent_s, self._pid = self._spent_s + self._now.cpu_s, pid
            self._now = Usage(0.0, 0, 0)
        if pid is not None:
            self._now = usage(pid)
        self._peak = max(self._peak, self._now.peak_rss_bytes)
        return ProcessUsage(self._role, Usage(self._spent_s + self._now.cpu_s, self._now.rss_bytes, self._peak))


def filesystem(folder: Path) -> str:
    """Type of the filesystem that holds `folder`: a sync to tmpfs costs nothing and makes a bench dishonest."""
    place, best = folder.resolve(), ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind = line.split()[:3]
        if place.is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def _busy_ticks() -> int:
    user, nice, system, _idle, _iowait, irq, softirq, steal = (
        int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return user + nice + system + irq + softirq + steal


class Neighbours:
    """How many cores were busy with something that is neither this bench nor the server it started."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._began = self._look()

    def _look(self) -> tuple[float, int, int]:
        return time.monotonic(), _busy_ticks(), sum(_cpu_ticks(pid) for pid in _tree(self._pid))

    def cores(self) -> float:
        """Mean over the time since this object was made."""
        (began, busy, own), (now, busy_now, own_now) = self._began, self._look()
        ticks = (busy_now - busy) - (own_now - own)
        return max(ticks, 0) / _TICKS_PER_S / max(now - began, 1e-3)
