"""Divides the limit of open files between sockets and stores; the stores come first."""

from __future__ import annotations

import logging
import resource
from contextlib import suppress

log = logging.getLogger(__name__)

_RESERVE = 600  # two RocksDB databases with 256 files each, delay files, brokers, and the process's own files
_HIGHEST = 1 << 20  # used if there is no hard limit and the kernel refuses "infinity"


def raise_limit() -> int:
    """Raise this process's limit on open files as far as allowed, and return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _HIGHEST if hard == resource.RLIM_INFINITY else min(hard, _HIGHEST)
    if soft != resource.RLIM_INFINITY and soft < target:
        with suppress(ValueError, OSError):  # macOS has a further limit and may refuse
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
    return _HIGHEST if soft == resource.RLIM_INFINITY else soft


def connections_within(files: int, requested: int) -> int:
    """How many of the requested connections are allowed if the process may open `files` files: at least a quarter of
    that limit."""
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
