"""Maps answers from a NATS server to replies."""

from __future__ import annotations

import ssl
from typing import Any, Final

import orjson
from nats import errors

from duemq.relay.base import MAX_DETAIL, Reply, Result
from duemq.relay.network.address import NoAddress
from duemq.relay.tls import UnusableCredentials

ACCEPTED: Final = Reply(Result.ACCEPTED, "ok")
_DUPLICATE: Final = Reply(Result.ACCEPTED, "duplicate")
_NO_STREAM: Final = Reply(Result.FAILED, "no_stream", "no JetStream stream has this subject, or none can answer now")
_NO_STREAM_ANSWER: Final = Reply(Result.FAILED, "no_stream", "a subscriber answered, not a JetStream stream")
_TOO_LARGE, _OTHER_STREAM = 10054, 10060  # JetStream error codes
_STATUSES: Final = {_TOO_LARGE: "too_large", _OTHER_STREAM: "other_stream"}
_BUSY: Final = (429, 503)
_NO_ROOM: Final = frozenset((10023, 10028, 10047))
"""JetStream error codes: the server, not the stream, is short of memory or disk."""
PERMISSIONS: Final = "permissions"


def acknowledged(data: bytes, headers: dict[str, str] | None) -> Reply:
    """The reply for the answer to a publication."""
    if headers and headers.get("Status") == "503":
        return _NO_STREAM
    try:
        answer = orjson.loads(data)
        if "error" not in answer:
            return _DUPLICATE if answer.get("duplicate") else ACCEPTED if answer["seq"] else _NO_STREAM_ANSWER
        return _refused(answer["error"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return _NO_STREAM_ANSWER


def _refused(error: dict[str, Any]) -> Reply:
    code, error_code = error["code"], error.get("err_code", 0)
    return Reply(
        Result.REJECTED if error_code == _TOO_LARGE else Result.AWAY if error_code in _NO_ROOM else Result.FAILED,
        _STATUSES.get(error_code, str(error_code or code)),
        str(error.get("description", ""))[:MAX_DETAIL],
        overloaded=code in _BUSY,
    )


def too_large(size: int, limit: int) -> Reply:
    detail = f"payload and headers have {size:,} bytes, the server accepts {limit:,} (max_payload)"
    return Reply(Result.REJECTED, "too_large", detail)


def away(error: BaseException | None, status: str = "unreachable") -> Reply:
    """The reply for a lost connection, or a failed attempt to connect. `status`: used if the error does not determine a
    status."""
    text = str(error or "")
    lower = text.lower()
    if isinstance(error, NoAddress):
        status = error.status
    elif isinstance(error, errors.AuthorizationError) or "authorization" in lower or "authentication" in lower:
        status = "authorization"
    elif isinstance(error, ssl.SSLError | errors.SecureConnWantedError | UnusableCredentials):
        status = "tls"
    elif isinstance(error, TimeoutError):
        status, text = "timeout", text or "no answer from the server"
    elif "permissions violation" in lower:
        status = PERMISSIONS
    return Reply(Result.AWAY, status, text[:MAX_DETAIL])
