"""What Redis answers, as an outlet says it."""

from __future__ import annotations

import ssl
from typing import Final

from redis import exceptions

from duemq.relay.base import MAX_DETAIL, Reply, Result

ADDED: Final = Reply(Result.ACCEPTED, "ok")
KNOWN: Final = Reply(Result.ACCEPTED, "duplicate")
NO_RECEIVER: Final = Reply(Result.FAILED, "no_receiver", "nobody subscribes to the channel")
CLOSED: Final = Reply(Result.AWAY, "closed")

_AWAY: Final = frozenset((
    "NOAUTH", "WRONGPASS", "NOPERM", "READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN", "MOVED", "ASK", "TRYAGAIN",
    "MISCONF", "NOREPLICAS", "BUSY",
))  # fmt: skip
_OVERLOADED: Final = frozenset(("OOM", "FULL"))
# The client takes the code off the text of these, and before its version 7 keeps it nowhere else.
_CODES: Final = (
    (exceptions.OutOfMemoryError, "OOM"), (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.AuthenticationError, "WRONGPASS"), (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.BusyLoadingError, "LOADING"), (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"), (exceptions.MovedError, "MOVED"), (exceptions.AskError, "ASK"),
    (exceptions.TryAgainError, "TRYAGAIN"),
)  # fmt: skip


def refusal(error: Exception) -> Reply:
    """The answer of a server that refuses one command, or what came of the connection."""
    text = str(error)[:MAX_DETAIL]
    if (code := _code(error)) is None:
        return Reply(Result.AWAY, _trouble(error), text)
    if code == "MOVED":
        text = f"this is a cluster, set the option cluster: {text}"
    if code in _AWAY:
        return Reply(Result.AWAY, code, text)
    return Reply(Result.FAILED, code, text, overloaded=code in _OVERLOADED)


def _code(error: Exception) -> str | None:
    """The word that an error of the server begins with; None where the server said nothing."""
    if code := getattr(error, "status_code", None):
        return str(code)
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    if not isinstance(error, exceptions.ResponseError):
        return None
    first = str(error).partition(" ")[0]
    return first if first.isupper() else "ERR"


def _trouble(error: Exception) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return "tls"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, exceptions.TimeoutError | TimeoutError):
        return "timeout"
    return "unreachable"
