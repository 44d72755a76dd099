"""Turns an endpoint's answer, or its absence, into a reply."""

from __future__ import annotations

from typing import Final

from pyreqwest.exceptions import DetailedPyreqwestError, PyreqwestError, RequestTimeoutError

from duemq.model.destinations.http import HttpOptions
from duemq.relay.base import MAX_DETAIL, Reply, Result
from duemq.relay.http.times import retry_after_ms

_ALWAYS_AGAIN: Final = frozenset((408, 425, 429, 503))
_OVERLOADED: Final = frozenset((429, 503))
_NO_CONNECTION: Final = "client error (Connect)"


def answered(status: int, detail: str, retry_after: str, now_s: float, options: HttpOptions) -> Reply:
    """Reply for an answer. `retry_after`: the header of that name; `detail`: the start of the body."""
    if 200 <= status < 300:
        return Reply(Result.ACCEPTED, str(status), detail)
    if status == 410:
        return Reply(Result.GONE, "410", detail)
    rule = options.on_4xx if 400 <= status < 500 else options.on_5xx if status >= 500 else "retry"
    if rule == "dead_letter" and status not in _ALWAYS_AGAIN:
        return Reply(Result.REJECTED, str(status), detail)
    wait_ms = retry_after_ms(retry_after, now_s) if retry_after else None
    return Reply(Result.FAILED, str(status), detail, wait_ms, overloaded=status in _OVERLOADED)


def unanswered(error: PyreqwestError) -> Reply:
    """Reply when there was no answer, or none that is HTTP. AWAY: nothing was sent."""
    causes = _causes(error)
    detail = (causes[-1] if causes else str(error.message))[:MAX_DETAIL]
    connected = not not_connected(error)
    if isinstance(error, RequestTimeoutError):
        if not connected:
            return Reply(Result.AWAY, "timeout", "no connection in time")
        return Reply(Result.FAILED, "timeout", "no answer in time", overloaded=True)
    return Reply(Result.FAILED if connected else Result.AWAY, _status(error, causes), detail)


def not_connected(error: PyreqwestError) -> bool:
    """Whether the connection failed, so that another address of the endpoint may work."""
    return _NO_CONNECTION in _causes(error)


def _causes(error: PyreqwestError) -> list[str]:
    """Texts of the nested errors, the root cause last. The outermost is left out: it says only the URL."""
    if not isinstance(error, DetailedPyreqwestError):
        return []
    return [cause["message"] for cause in (error.details or {}).get("causes") or ()][1:]


def _status(error: PyreqwestError, causes: list[str]) -> str:
    # Only texts tell the client's errors apart; tests/functional/relay/test_http_endpoints.py triggers each.
    text = " ".join(causes)
    if _NO_CONNECTION in causes:
        if "refused" in text:
            return "refused"
        return "unreachable" if "os error" in text or "tcp connect" in text else "tls_error"
    if "connection closed" in text or "os error" in text:
        return "disconnected"
    return "malformed"
