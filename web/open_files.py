"""Sockets and stores share one budget of open files: the stores get theirs first."""

from __future__ import annotations

import logging
import resource
from contextlib import suppress

log = logging.getLogger(__name__)

_RESERVE = 600  # two RocksDB with 256 each, delay files, brokers, and what the process itself has open
_HIGHEST = 1 << 20  # where there is no hard limit, and a kernel refuses "infinity"


def raise_limit() -> int:
    """Raise this process's limit of open files as far as it may, and return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _HIGHEST if hard == resource.RLIM_INFINITY else min(hard, _HIGHEST)
    if soft != resource.RLIM_INFINITY and soft < target:
        with suppress(ValueError, OSError):  # macOS has a limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
    return _HIGHEST if soft == resource.RLIM_INFINITY else soft


def connections_within(files: int, requested: int) -> int:
    """How many connections there may be where a process can have so many open files: at least a quarter of them."""
    most = max(files - _RESERVE, files // 4, 1)
    if most >= requested:
        return requested
    log.warning(
        "at most %d connections are taken at a time, not %d as http.max_connections says: this process may open "
        "%d files, and the stores need some (ulimit -n, LimitNOFILE)",
        most,
        requested,
        files,
        extra={"action": "http.files", "files": files, "connections": most},
    )
    return most
