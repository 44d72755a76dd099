"""Maps the broker's answers to replies. A status is AMQP's own word if AMQP defines one."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any, Final

from pika import exceptions

from duemq.relay.base import Reply, Result
from duemq.relay.network.address import NoAddress

ACCEPTED: Final = Reply(Result.ACCEPTED, "ack")
SILENT: Final = Reply(Result.AWAY, "heartbeat", "the broker has been silent")
NACK: Final = Reply(Result.FAILED, "nack", "the broker did not accept it: a queue is full or failed")

_WORDS: Final = {
    320: "CONNECTION_FORCED", 403: "ACCESS_REFUSED", 404: "NOT_FOUND", 405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED", 501: "FRAME_ERROR", 502: "SYNTAX_ERROR", 503: "COMMAND_INVALID", 504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME", 506: "RESOURCE_ERROR", 530: "NOT_ALLOWED", 540: "NOT_IMPLEMENTED", 541: "INTERNAL_ERROR",
}  # fmt: skip
PRECONDITION_FAILED: Final = _WORDS[406]
_AWAY: Final = (320, 403, 404, 506, 530)
"""Errors that an operator has to fix; the message is not at fault."""


def no_route(method: Any) -> Reply:
    """The reply for a `Basic.Return`."""
    where = f"exchange {method.exchange!r}, routing key {method.routing_key!r}"
    return Reply(Result.FAILED, method.reply_text or "NO_ROUTE", f"routed to no queue: {where}")


def blocked(reason: str) -> Reply:
    return Reply(Result.AWAY, "blocked", f"the broker accepts no messages: {reason}")


def closed(reason: Any) -> Reply:
    """The reply to messages that were in flight when a channel or its connection was closed."""
    if isinstance(reason, exceptions.ChannelClosedByBroker | exceptions.ConnectionClosedByBroker):
        code = reason.reply_code
        result = Result.AWAY if code in _AWAY else Result.FAILED
        return Reply(result, _WORDS.get(code, str(code)), reason.reply_text)
    if isinstance(reason, exceptions.AMQPHeartbeatTimeout):
        return SILENT
    return Reply(Result.AWAY, "connection lost", _root(reason))


def topic_refused(reply: Reply) -> bool:
    """Whether the user lacks permission for the exchange, not only for the routing key of one message."""
    return reply.status == _WORDS[403] and "access to topic '" in reply.detail


def exchange_refused(reply: Reply) -> bool:
    """Whether the exchange does not exist, or the user may not write to it."""
    return reply.status in (_WORDS[403], _WORDS[404]) and "exchange '" in reply.detail and not topic_refused(reply)


def names(reply: Reply, exchange: str, routing_key: str) -> bool:
    """Whether the broker refused this routing key or exchange, and not the one of another message in flight."""
    return (f"topic '{routing_key}'" if topic_refused(reply) else f"exchange '{exchange}'") in reply.detail


def not_connected(reason: BaseException) -> Reply:
    """The reply for a failed attempt to connect."""
    for error in _chain(reason):
        if isinstance(error, NoAddress):
            return Reply(Result.AWAY, error.status, str(error))
        if isinstance(error, exceptions.ProbableAuthenticationError | exceptions.AuthenticationError):
            return Reply(Result.AWAY, "ACCESS_REFUSED", f"user or password is wrong: {_root(error)}")
        if isinstance(error, exceptions.ProbableAccessDeniedError):
            return Reply(Result.AWAY, "NOT_ALLOWED", f"no access to the virtual host: {_root(error)}")
        if isinstance(error, ssl.SSLCertVerificationError):
            return Reply(Result.AWAY, "certificate", error.verify_message)
        if isinstance(error, ssl.SSLError) or "SSLError" in str(error):  # pika keeps only the text if a stream is lost
            return Reply(Result.AWAY, "tls", _root(error))
    return Reply(Result.AWAY, "unreachable", _root(reason))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and all errors nested in it: pika nests them in `args`."""
    yield error
    for inner in (*getattr(error, "exceptions", ()), *error.args):
        if isinstance(inner, BaseException):
            yield from _chain(inner)
        elif isinstance(inner, tuple | list):
            for each in inner:
                if isinstance(each, BaseException):
                    yield from _chain(each)
    inner = getattr(error, "exception", None)
    if isinstance(inner, BaseException):
        yield from _chain(inner)


def _root(error: BaseException | None) -> str:
    """The text of the innermost error."""
    if error is None:
        return ""
    *_, last = _chain(error)
    return str(last) or type(last).__name__
