"""Maps RocketMQ's answers and connection failures to replies. Statuses are the words of RocketMQ and gRPC."""

from __future__ import annotations

from typing import Any, Final

from duemq.relay.base import MAX_DETAIL, Reply, Result
from duemq.relay.network.address import NoAddress
from duemq.relay.rocketmq.client import AioRpcError, Code, StatusCode

ACCEPTED: Final = Reply(Result.ACCEPTED, "OK")
CLOSED: Final = Reply(Result.AWAY, "closed")
NO_ROUTE: Final = Reply(Result.AWAY, "no route")

_REJECTED: Final = frozenset((
    Code.ILLEGAL_MESSAGE_TAG, Code.ILLEGAL_MESSAGE_KEY, Code.ILLEGAL_MESSAGE_GROUP, Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    Code.ILLEGAL_MESSAGE_ID, Code.MESSAGE_CORRUPTED, Code.PAYLOAD_TOO_LARGE, Code.MESSAGE_BODY_TOO_LARGE,
    Code.MESSAGE_BODY_EMPTY, Code.REQUEST_HEADER_FIELDS_TOO_LARGE, Code.MESSAGE_PROPERTIES_TOO_LARGE,
))  # fmt: skip
"""Codes with which RocketMQ refuses a message for good."""
_AWAY: Final = frozenset((Code.UNAUTHORIZED, Code.FORBIDDEN, Code.PAYMENT_REQUIRED, Code.ILLEGAL_ACCESS_POINT))
"""Errors that an operator has to fix; the message is not at fault."""
_OVERLOADED: Final = frozenset((
    Code.TOO_MANY_REQUESTS, Code.PROXY_TIMEOUT, Code.MASTER_PERSISTENCE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT,
))  # fmt: skip
_TAKES_NOTHING: Final = ("service not available now", "RemotingConnectException")
"""Texts in an INTERNAL_SERVER_ERROR if the broker's disk is full, the broker is stopping, or the proxy cannot reach
it."""
_CONNECTION: Final = frozenset((
    "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "tls", "closed", "timeout", "forbidden_address", "dns_error",
))  # fmt: skip
_TLS_WORDS: Final = ("handshake", "certificate", "hostname verification")


def answer(given: Any) -> Reply:
    """The reply for the proxy's answer. `given`: the `Status` in a response."""
    code, text = given.code, given.message[:MAX_DETAIL]
    if code == Code.OK:
        return ACCEPTED
    status = Code.Name(code) if code in Code.values() else str(code)
    if code in _REJECTED:
        return Reply(Result.REJECTED, status, text)
    if code in _AWAY or any(words in text for words in _TAKES_NOTHING):
        return Reply(Result.AWAY, status, text)
    return Reply(Result.FAILED, status, text, overloaded=code in _OVERLOADED)


def failure(error: Exception) -> Reply:
    """The reply if no answer came. The messages may have been stored nevertheless."""
    text = str(error)[:MAX_DETAIL]
    if isinstance(error, AioRpcError):
        return _of_grpc(error)
    if isinstance(error, NoAddress):
        return Reply(Result.AWAY, error.status, text)
    if isinstance(error, TimeoutError):
        return Reply(Result.AWAY, "timeout", text or "looking up its name timed out")
    return Reply(Result.FAILED, type(error).__name__, text)


def silent(reply: Reply) -> Reply:
    """The same reply, but AWAY if it failed because of the connection: the proxy does not answer, so no message is at
    fault."""
    return (
        reply._replace(result=Result.AWAY, overloaded=False) if reply.result is Result.FAILED and lost(reply) else reply
    )


def lost(reply: Reply) -> bool:
    """Whether the connection is at fault, so that a new connection may help."""
    return reply.status in _CONNECTION


def may_be_passed_over(reply: Reply) -> bool:
    """Whether the proxy chose a broker that does not work, and may choose another one for the next attempt."""
    return reply.status == "INTERNAL_SERVER_ERROR"


def _of_grpc(error: AioRpcError) -> Reply:
    """The reply if the proxy did not answer, or if the answer did not come from a RocketMQ proxy."""
    code, text = error.code(), (error.details() or "")[:MAX_DETAIL]
    if code is StatusCode.DEADLINE_EXCEEDED:
        return Reply(Result.FAILED, code.name, text or "no answer from the proxy", overloaded=True)
    if code is StatusCode.RESOURCE_EXHAUSTED:
        return Reply(Result.FAILED, code.name, text, overloaded=True)
    if code is StatusCode.UNAVAILABLE and any(word in text.lower() for word in _TLS_WORDS):
        return Reply(Result.AWAY, "tls", text)
    return Reply(Result.AWAY, code.name, text)
