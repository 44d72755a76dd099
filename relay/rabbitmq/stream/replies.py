"""Maps a broker's answers in the stream protocol to replies. Each error is temporary, or an operator has to fix it: a
stream never refuses a single message."""

from __future__ import annotations

import ssl
from typing import Final

from duemq.relay.base import Reply, Result
from duemq.relay.network.address import NoAddress

OK: Final = 1
ACCEPTED: Final = Reply(Result.ACCEPTED, "confirm")
UNCONFIRMED: Final = Reply(Result.AWAY, "unconfirmed", "no confirms from the broker: does the stream have a majority?")
CLOSED: Final = Reply(Result.AWAY, "connection lost", "closed here")

_WORDS: Final = {
    2: "STREAM_DOES_NOT_EXIST", 6: "STREAM_NOT_AVAILABLE", 7: "SASL_MECHANISM_NOT_SUPPORTED",
    8: "AUTHENTICATION_FAILURE", 9: "SASL_ERROR", 11: "AUTHENTICATION_FAILURE_LOOPBACK",
    12: "VIRTUAL_HOST_ACCESS_FAILURE", 13: "UNKNOWN_FRAME", 14: "FRAME_TOO_LARGE", 15: "INTERNAL_ERROR",
    16: "ACCESS_REFUSED", 17: "PRECONDITION_FAILED", 18: "PUBLISHER_DOES_NOT_EXIST",
}  # fmt: skip
"""The protocol's own words for the response codes."""


class ConnectionLost(Exception):
    """The attempt to connect failed, or the connection was lost. `reply` contains the reason."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.detail)
        self.reply = reply


def refused(code: int, detail: str) -> Reply:
    """The reply for a refused request. `detail`: the request."""
    return Reply(Result.AWAY, _WORDS.get(code, str(code)), detail)


def unreachable(error: OSError | ssl.SSLError, place: str) -> Reply:
    """The reply if a broker cannot be reached. `place`: its host and port."""
    if isinstance(error, NoAddress):
        return Reply(Result.AWAY, error.status, str(error))
    if isinstance(error, ssl.SSLCertVerificationError):
        return Reply(Result.AWAY, "certificate", error.verify_message)
    if isinstance(error, ssl.SSLError):
        return Reply(Result.AWAY, "tls", str(error))
    return Reply(Result.AWAY, "unreachable", f"{place}: {error}")
