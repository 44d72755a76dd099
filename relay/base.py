"""The port to another system: an outlet sends one message and reports the result.

Implementations: `http`, `rabbitmq`, `nats`, `redis`, `rocketmq`, and `memory` for tests. All pass
`tests/contract/test_outlet.py`.
Every outlet guarantees:

* `send` returns ACCEPTED only after the other side has reported that it stored the message as durably as it can: with a
  2xx, a publisher confirm, a JetStream acknowledgement, or a reply to XADD.
* Up to `concurrency` calls of `send` run at once and finish in any order. `send` never raises because of the other
  side. A cancelled call (the caller timed out) leaks nothing, but the message may have been sent.
* A message has the same `id` each time it is sent. A system that can drop repeats gets this id.
* Key, headers and payload arrive byte for byte, as `docs/guides/destinations.md` maps them.

An outlet that is also a `Watcher` (`client/consumer/base.py`) is notified of records that were pulled or have ended.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import NamedTuple, Protocol

from duemq.client.consumer.message import Message

MAX_DETAIL = 500  # characters stored from an answer


class Result(StrEnum):
    """The result of sending one message."""

    ACCEPTED = "accepted"
    FAILED = "failed"
    """The attempt failed. The message is retried according to the destination's retry rule."""
    REJECTED = "rejected"
    """The other side refused the message for good. It becomes a dead letter at once."""
    AWAY = "away"
    """The other side cannot be reached. The message is not at fault: the whole destination waits, and then the message
    is sent again, which does not count as a retry."""
    GONE = "gone"
    """The other side refuses all further messages: the destination is disabled."""


class Reply(NamedTuple):
    """A result, with the other side's answer.

    `status`: the answer in one word (`200`, `nack`, `NO_ROUTE`, `timeout`). `detail`: the start of the answer's text.
    `retry_after_ms`: how long the other side asks us to wait. `overloaded`: the other side asks for fewer messages at a
    time.
    """

    result: Result
    status: str
    detail: str = ""
    retry_after_ms: int | None = None
    overloaded: bool = False


class Outlet(Protocol):
    """One process's access to a destination. It is created without IO: `send` connects when necessary."""

    concurrency: int
    """How many messages may be in flight if the declaration sets no limit."""

    async def send(self, message: Message) -> Reply:
        """Send a message; see the module docstring. Returns AWAY if the outlet cannot connect."""
        ...

    async def close(self) -> None:
        """Close all connections, within a few seconds. Idempotent."""
        ...


class NotMapped(Exception):
    """The message cannot be represented in the destination's system. `reply` contains the reason."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.reply = Reply(Result.REJECTED, status, detail)


def resolve(reply: asyncio.Future[Reply], with_: Reply) -> bool:
    """Set the reply to a message. Returns False if the caller no longer waits for it."""
    if reply.done():
        return False
    reply.set_result(with_)
    return True


class OutletMissing(Exception):
    """The client library for a system is not installed. The error text contains the extra to install."""
