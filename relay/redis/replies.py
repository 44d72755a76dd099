"""What Redis answers, as an outlet says it."""

from __future__ import annotations

import ssl
from typing import Any, Final

from redis import exceptions

from duemq.relay.base import MAX_DETAIL, Reply, Result
from duemq.relay.network.addresses import NoAddress
from duemq.relay.tls import UnusableCredentials

ADDED: Final = Reply(Result.ACCEPTED, "ok")
KNOWN: Final = Reply(Result.ACCEPTED, "duplicate")
NO_RECEIVER: Final = Reply(Result.FAILED, "no_receiver", "nobody subscribes to the channel")
CLOSED: Final = Reply(Result.AWAY, "closed")
NOT_DURABLE: Final = "not_durable"
NOT_WRITTEN: Final = Reply(Result.AWAY, "timeout", "the server took too long for those before it")

_AWAY: Final = frozenset((
    "NOAUTH", "WRONGPASS", "NOPERM", "READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN", "MOVED", "ASK", "TRYAGAIN",
    "MISCONF", "NOREPLICAS", "BUSY", "OOM",
))  # fmt: skip
_NO_COMMAND: Final = ("unknown command", "unknown redis command")  # in lower case; the second in a script
_COMMAND_REFUSED: Final = ("to run the", "can't run")  # of NOPERM for a command, not a name
# The client takes the code off the text of these, and before its version 7 keeps it nowhere else.
_CODES: Final = (
    (exceptions.OutOfMemoryError, "OOM"), (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.AuthenticationError, "WRONGPASS"), (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.BusyLoadingError, "LOADING"), (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"), (exceptions.MovedError, "MOVED"), (exceptions.AskError, "ASK"),
    (exceptions.TryAgainError, "TRYAGAIN"), (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
)  # fmt: skip

# How servers say that a command in the script is not allowed: they forget the code there.
_NOT_ALLOWED: Final = ("The user executing the script can't run", "ACL failure in script")
# A server that wants a password reads no long command before it, and ends the connection. The second as the client
# says it before its version 7.
_NO_PASSWORD: Final = ("Protocol error: unauthenticated", "Authentication required")


def refusal(error: Exception, *, cluster: bool = False, by_key: bool = False) -> Reply:
    """The answer of a server that refuses one command, or what came of the connection. `by_key`: the name is made of
    the message's key, so that a right that lacks for it is no reason for other messages to wait."""
    if isinstance(error, exceptions.RedisClusterException) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what the last of its nodes said
    text = str(error)[:MAX_DETAIL]
    if (code := _code(error)) is None:
        return Reply(Result.AWAY, _trouble(error), text)
    if code == "MOVED" and not cluster:
        text = f"this is a cluster, set the option cluster: {text}"
    if code == "NOPERM" and by_key and not any(words in text for words in _COMMAND_REFUSED):
        return Reply(Result.FAILED, code, text)
    if code in _AWAY or text.lower().startswith(_NO_COMMAND):
        return Reply(Result.AWAY, code, text)
    return Reply(Result.FAILED, code, text, overloaded=code == "FULL")


def not_durable(result: Any, fsync: bool, replicas: int) -> Reply | None:
    """What WAITAOF or WAIT says to the messages before it, unless they are as durable as asked."""
    if isinstance(result, Exception):
        # As a refused message it would be tried again by itself, and all others with it.
        return refusal(result)._replace(result=Result.AWAY)
    synced, copies = result if fsync else (1, result)
    if synced and copies >= replicas:
        return None
    text = f"on disk here: {'yes' if synced else 'no'}, " if fsync else ""
    return Reply(Result.AWAY, NOT_DURABLE, f"{text}on {copies} of {replicas} replicas")


def _code(error: Exception) -> str | None:
    """The word that an error of the server begins with; None where the server said nothing."""
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
