"""From which process a connection on this machine comes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

OTHERS = "others"
"""The name of every process that is not in the table, such as the tests themselves."""


class Sources:
    """`names`: the names of processes by the files to which their output goes. Children of theirs share both."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._processes: dict[str, str] = {}  # folders in /proc

    def name_of(self, port: int, listener: int) -> str:
        """Of the process with the open connection from `port` to `listener`."""
        inode = _inode(port, listener)
        if inode is None:
            return OTHERS  # it has closed the connection by now
        socket = f"socket:[{inode}]"
        for process, name in self._processes.items():
            if _has(process, socket):
                return name
        self._look()
        return next((name for process, name in self._processes.items() if _has(process, socket)), OTHERS)

    def _look(self) -> None:
        """Processes come and go: find those that run now."""
        self._processes = {}
        for number in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                name = self._names.get(os.readlink(f"/proc/{number}/fd/1"))
                if name is not None:
                    self._processes[f"/proc/{number}"] = name


def _has(process: str, socket: str) -> bool:
    with suppress(OSError):
        for descriptor in os.scandir(f"{process}/fd"):
            with suppress(OSError):
                if os.readlink(descriptor.path) == socket:
                    return True
    return False


def _inode(port: int, listener: int) -> str | None:
    """Of the socket at the side of whoever connected. Java's sockets are among those of IPv6."""
    local, remote = f":{port:04X}", f":{listener:04X}"
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(local) and fields[2].endswith(remote):
                return fields[9]
    return None
