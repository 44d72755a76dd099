"""Errors of redis-py that mean that Redis can take no command now. Dramatiq and kombu let them through."""

from __future__ import annotations

import re
import sys
from typing import Final

_AWAY: Final = (
    "ConnectionError", "TimeoutError", "RedisClusterException", "ClusterError", "AskError", "OutOfMemoryError",
    "ReadOnlyError", "TryAgainError",
)  # fmt: skip
"""Class names of `redis.exceptions`, with subclasses; older versions do not have all of them."""
# Codes of errors without a class. A script of Redis 6 puts other words before the code.
_CODE: Final = re.compile(r"(?:^|: -)(?:BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOAUTH|NOREPLICAS|OOM|READONLY) ")


def is_redis_away(error: BaseException) -> bool | None:
    """Whether the server is unreachable, starts, is a replica, is full or has lost its disk. False for what concerns
    one queue, such as a key of the wrong type or without permission; None for an error that is not Redis'."""
    exceptions = sys.modules.get("redis.exceptions")
    if exceptions is None or not isinstance(error, (exceptions.RedisError, exceptions.RedisClusterException)):
        return None
    away = tuple(getattr(exceptions, name) for name in _AWAY if hasattr(exceptions, name))
    text = str(error).rpartition(" caused error: ")[2]  # a pipeline's error shows the command before
    return isinstance(error, away) or _CODE.search(text) is not None
