"""Maps answers from Redis to replies."""

from __future__ import annotations

import ssl
from typing import Any, Final

from redis import exceptions

from duemq.relay.base import MAX_DETAIL, Reply, Result
from duemq.relay.network.address import NoAddress
from duemq.relay.tls import UnusableCredentials

ADDED: Final = Reply(Result.ACCEPTED, "ok")
KNOWN: Final = Reply(Result.ACCEPTED, "duplicate")
NO_RECEIVER: Final = Reply(Result.FAILED, "no_receiver", "the channel has no subscriber")
CLOSED: Final = Reply(Result.AWAY, "closed")
NOT_DURABLE: Final = "not_durable"
NOT_WRITTEN: Final = Reply(Result.AWAY, "timeout", "the server took too long for earlier messages")

_AWAY: Final = frozenset((
    "NOAUTH", "WRONGPASS", "NOPERM", "READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN", "MOVED", "ASK", "TRYAGAIN",
    "MISCONF", "NOREPLICAS", "BUSY", "OOM",
))  # fmt: skip
_NO_COMMAND: Final = ("unknown command", "unknown redis command")  # in lower case; a script gets the second text
_COMMAND_REFUSED: Final = ("to run the", "can't run")  # texts of a NOPERM for a command, not for a key
# For these errors, the client removes the code from the text; before version 7, it stores the code nowhere else.
_CODES: Final = (
    (exceptions.OutOfMemoryError, "OOM"), (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.AuthenticationError, "WRONGPASS"), (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.BusyLoadingError, "LOADING"), (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"), (exceptions.MovedError, "MOVED"), (exceptions.AskError, "ASK"),
    (exceptions.TryAgainError, "TRYAGAIN"), (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
)  # fmt: skip

# If a command in the script is not allowed, servers report it with these texts, and without the code.
_NOT_ALLOWED: Final = ("The user executing the script can't run", "ACL failure in script")
# A server that requires a password refuses a long command sent before the password, and closes the connection. The
# second text is that of clients before version 7.
_NO_PASSWORD: Final = ("Protocol error: unauthenticated", "Authentication required")


def refusal(error: Exception, *, cluster: bool = False, by_key: bool = False) -> Reply:
    """The reply for an error of one command or of the connection. `by_key`: the name contains the message's key, so a
    missing permission for that name must not delay other messages."""
    if isinstance(error, exceptions.RedisClusterException) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # the error from the last node that the client tried
    text = str(error)[:MAX_DETAIL]
    if (code := _code(error)) is None:
        return Reply(Result.AWAY, _trouble(error), text)
    if code == "MOVED" and not cluster:
        text = f"this server is a cluster: set the option `cluster`: {text}"
    if code == "NOPERM" and by_key and not any(words in text for words in _COMMAND_REFUSED):
        return Reply(Result.FAILED, code, text)
    if code in _AWAY or text.lower().startswith(_NO_COMMAND):
        return Reply(Result.AWAY, code, text)
    return Reply(Result.FAILED, code, text, overloaded=code == "FULL")


def not_durable(result: Any, fsync: bool, replicas: int) -> Reply | None:
    """Check the answer to WAITAOF or WAIT. None if the messages sent before it are as durable as requested."""
    if isinstance(result, Exception):
        # AWAY rather than FAILED: otherwise every message before it would use up a retry.
        return refusal(result)._replace(result=Result.AWAY)
    synced, copies = result if fsync else (1, result)
    if synced and copies >= replicas:
        return None
    text = f"on disk here: {'yes' if synced else 'no'}, " if fsync else ""
    return Reply(Result.AWAY, NOT_DURABLE, f"{text}on {copies} of {replicas} replicas")


def _code(error: Exception) -> str | None:
    """The code with which a server's error begins; None if the error is not from the server."""
    if str(error).startswith(_NOT_ALLOWED):
        return "NOPERM"
    if str(error).startswith(_NO_PASSWORD):
        return "NOAUTH"
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
        if isinstance(cause, ssl.SSLError | UnusableCredentials):
            return "tls"
        if isinstance(cause, NoAddress):
            return cause.status
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, exceptions.TimeoutError | TimeoutError):
        return "timeout"
    return "unreachable"
