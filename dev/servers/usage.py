"""The cost of processes: CPU seconds, resident memory, the filesystem they write to, and other load on the machine."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from duemq.dev.servers import procfs


@dataclass(frozen=True, slots=True)
class Usage:
    """A process and its children: CPU seconds so far (user + system), and resident bytes, current and peak."""

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
    """The CPU seconds of all processes with one of these roles."""
    return sum(part.usage.cpu_s for part in bill if part.role in roles)


def holder(bill: Bill) -> Usage:
    """The memory of the process that holds the pending messages; if there are several nodes, of the largest one."""
    holding = [part.usage for part in bill if part.role in ("server", "node")]
    return Usage(0.0, max(each.rss_bytes for each in holding), max(each.peak_rss_bytes for each in holding))


def process_tree(pid: int) -> list[psutil.Process]:
    """The process and all its descendants; empty if it has ended."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _cpu_s(process: psutil.Process) -> float:
    """User and system time of the process and its ended children, in seconds."""
    try:
        return sum(process.cpu_times()[:4])
    except psutil.NoSuchProcess:
        return 0.0


def _memory_bytes(process: psutil.Process) -> tuple[int, int]:
    try:
        return process.memory_info().rss, procfs.peak_rss_bytes(process.pid)
    except psutil.NoSuchProcess:
        return 0, 0


def usage(pid: int) -> Usage:
    """The usage of the process and all its descendants."""
    tree = process_tree(pid)
    memory = [_memory_bytes(each) for each in tree]
    return Usage(sum(map(_cpu_s, tree)), sum(now for now, _ in memory), sum(peak for _, peak in memory))


class Meter:
    """Follows one process of the measured system through restarts. Call `read` before it ends, or its usage is lost."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._pid: int | None = None
        self._now = Usage(0.0, 0, 0)
        self._spent_s, self._peak = 0.0, 0

    def read(self, pid: int | None) -> ProcessUsage:
        """The total cost of all runs of the process, including the current one (None: it is not running)."""
        if pid != self._pid:
            self._spent_s, self._pid = self._spent_s + self._now.cpu_s, pid
            self._now = Usage(0.0, 0, 0)
        if pid is not None:
            self._now = usage(pid)
        self._peak = max(self._peak, self._now.peak_rss_bytes)
        return ProcessUsage(self._role, Usage(self._spent_s + self._now.cpu_s, self._now.rss_bytes, self._peak))


def filesystem(folder: Path) -> str:
    """The type of the filesystem of `folder`: a sync to tmpfs is free, and would falsify a benchmark."""
    place = folder.resolve()
    holding = [each for each in psutil.disk_partitions(all=True) if place.is_relative_to(each.mountpoint)]
    # If filesystems are mounted over each other, the last one is visible.
    return max(reversed(holding), key=lambda each: len(each.mountpoint)).fstype if holding else "unknown"


class Neighbours:
    """How many cores were busy with work other than this benchmark and the server that it started."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._began = self._read()

    def _read(self) -> tuple[float, float, float]:
        """The time, the CPU seconds of the machine, and the CPU seconds of this process and its descendants."""
        times = psutil.cpu_times()
        busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
        return time.monotonic(), busy, sum(map(_cpu_s, process_tree(self._pid)))

    def cores(self) -> float:
        """The mean number of busy cores since this object was created."""
        (began, busy, own), (now, busy_now, own_now) = self._began, self._read()
        return max((busy_now - busy) - (own_now - own), 0.0) / max(now - began, 1e-3)
