"""The port to another system: an outlet hands one message on and says what became of it.

Plugs: `http`, `rabbitmq`, `nats`, `redis`, `rocketmq`, and `memory` for tests. All pass
`tests/contract/test_outlet.py`.
What a plug promises:

* `send` returns ACCEPTED only when the other side has the message as durably as it can: a 2xx, a publisher's confirm,
  an acknowledgement of JetStream, a reply to XADD.
* `send` may be called so many times at once as `concurrency` says, and then answers in any order. It never raises for
  what the other side does. A cancel (a time-out of the caller) leaves nothing behind; the message may have been handed
  on.
* The same message has the same `id` each time it is sent; where the other side can tell repeats apart, it is told so.
* Key, headers and payload arrive byte for byte, as `docs/destinations.md` maps them.

One that is a `Watcher` (`client/consumer/base.py`), too, is told what comes and what has ended.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol

from duemq.client.consumer.message import Message

MAX_DETAIL = 500  # characters of an answer that are kept


class Result(StrEnum):
    """What became of one message."""

    ACCEPTED = "accepted"
    FAILED = "failed"
    """Not this time; it is tried again later, as the destination's retry rule says."""
    REJECTED = "rejected"
    """Never: it becomes a dead letter at once."""
    AWAY = "away"
    """The other side is not there. Nothing is wrong with the message: the whole destination waits, and then it is sent
    again, without counting a retry."""
    GONE = "gone"
    """The other side wants no more messages at all: the destination is disabled."""


class Reply(NamedTuple):
    """`status`: the answer in a word (`200`, `nack`, `NO_ROUTE`, `timeout`). `detail`: its first characters.

    `retry_after_ms`: when the other side wants to be asked again. `overloaded`: it asks for less at a time.
    """

    result: Result
    status: str
    detail: str = ""
    retry_after_ms: int | None = None
    overloaded: bool = False


class Outlet(Protocol):
    """One destination, from one process. Made without IO; the first `send` connects, and so does each after a loss."""

    concurrency: int
    """Messages that may be in flight, where the declaration leaves it open."""

    async def send(self, message: Message) -> Reply:
        """See the module. AWAY where it cannot connect."""
        ...

    async def close(self) -> None:
        """Close connections, within some seconds. Idempotent."""
        ...


class OutletMissing(Exception):
    """The client library of a system is not installed; the message says which extra has it."""
