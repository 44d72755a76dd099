"""The port to another system: an outlet sends one message and reports the result.

Plugs: `http`, `rabbitmq`, `nats`, `redis`, `rocketmq`, and `memory` for tests. All pass
`tests/contract/test_outlet.py`.
Every plug promises:

* `send` returns ACCEPTED only after the other side has stored the message as durably as it can: a 2xx, a publisher
  confirm, a JetStream acknowledgement, a reply to XADD.
* Up to `concurrency` calls of `send` run at once and finish in any order. `send` never raises because of the other
  side. A cancelled call (the caller timed out) leaks nothing, but the message may have been sent.
* A message has the same `id` each time it is sent, and the other side is given that id if it can drop repeats.
* Key, headers and payload arrive byte for byte, as `docs/guides/destinations.md` maps them.

An outlet that is also a `Watcher` (`client/consumer/base.py`) is told which records were pulled and which have ended.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import NamedTuple, Protocol

from duemq.client.consumer.message import Message

MAX_DETAIL = 500  # characters of an answer that are kept


class Result(StrEnum):
    """The result of sending one message."""

    ACCEPTED = "accepted"
    FAILED = "failed"
    """Failed this time. The message is retried, as the destination's retry rule says."""
    REJECTED = "rejected"
    """Refused for good: the message becomes a dead letter at once."""
    AWAY = "away"
    """The other side cannot be reached. The message is not at fault: the whole destination waits, and then the message
    is sent again without counting a retry."""
    GONE = "gone"
    """The other side refuses all further messages: the destination is disabled."""


class Reply(NamedTuple):
    """`status`: the answer in one word (`200`, `nack`, `NO_ROUTE`, `timeout`). `detail`: the start of its text.

    `retry_after_ms`: how long the other side asks us to wait. `overloaded`: it asks for fewer messages at a time.
    """

    result: Result
    status: str
    detail: str = ""
    retry_after_ms: int | None = None
    overloaded: bool = False


class Outlet(Protocol):
    """One process's way to a destination. Created without IO: `send` connects when it has to."""

    concurrency: int
    """Messages that may be in flight if the declaration does not say."""

    async def send(self, message: Message) -> Reply:
        """See the module docstring. AWAY if it cannot connect."""
        ...

    async def close(self) -> None:
        """Close all connections, within a few seconds. Idempotent."""
        ...


class NotMapped(Exception):
    """The destination's system cannot hold the message. `reply` says why."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.reply = Reply(Result.REJECTED, status, detail)


def resolve(reply: asyncio.Future[Reply], with_: Reply) -> bool:
    """Answer a message. False if its caller no longer waits."""
    if reply.done():
        return False
    reply.set_result(with_)
    return True


class OutletMissing(Exception):
    """The client library of a system is not installed. The message names the extra to install."""
