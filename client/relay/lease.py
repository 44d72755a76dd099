"""Lets one of several relays work at a time: the lease is a duemq message, so it needs no other service.

The holder has one scheduled message, due soon, and moves it ahead before it is due. If the holder dies, the message
becomes due: it is delivered, to the topic that the lease is for, with the header `LEASE_HEADER`, and the lease ends. To
take it: see that there is no lease, send one, and see that there is still no other. A relay that sees another lease
withdraws, and tries again after a random pause. Each sends before it checks, so of two concurrent attempts the later
check sees the other's message. Times are the server's: the answer to a send contains them.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from duemq.client.http.blocking.client import Client
from duemq.client.http.blocking.message import Message
from duemq.client.http.errors import PendingError, TooLate, Unavailable, UnexpectedAnswer, UnknownMessage, Unreachable
from duemq.client.http.times import EpochMs
from duemq.model.errors import DuemqError

LEASE_HEADER: Final = "x-duemq-lease"
LENGTH_S: Final = 6.0
LEAST_S: Final = 1.0
"""A shorter lease runs out while its holder waits for an answer."""
_SLACK_S: Final = 60.0
"""How much longer another relay's lease may be, or how far another proxy's clock may be ahead."""

log = logging.getLogger("duemq.client.relay.lease")


class Lease:
    """`hold` returns whether this process has the lease. It asks the server only if that is not known well enough.

    `length_s` is at least 1, else ValueError; the lease is renewed after a third of it, if `hold` is called then.
    `clock` is monotonic, in seconds. Not thread-safe.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        consumer: str,
        *,
        length_s: float = LENGTH_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not LEAST_S <= length_s < math.inf:
            raise ValueError(f"a lease must have a length of {LEAST_S:g} s or more, not {length_s}")
        self._client, self._topic, self._label = client, topic, f"lease:{consumer}"[:128]
        self.length_s, self._clock = length_s, clock
        self._message: Message | None = None
        self._until = self._renew_at = 0.0
        """Before the first instant no other process can have the lease; from the second on it should be renewed."""
        self._server_ahead_ms = (time.time() - clock()) * 1000
        """How far the server's clock is ahead of `clock`: a guess until the server has accepted a message."""

    def hold(self) -> bool:
        """Whether this process has the lease. Raises `Unreachable` or `Unavailable` if the server had to be asked and
        could not answer."""
        if self._message is None:
            return self._take()
        return self._clock() < self._renew_at or self._renew(self._message)

    def ask_again_s(self) -> float:
        """How long a process that did not get it should wait."""
        return random.uniform(0.05, 0.15) * self.length_s

    def release(self) -> None:
        """Let another process have it at once. If the server is unreachable, the lease runs out."""
        message, self._message = self._message, None
        if message is not None:
            with suppress(DuemqError):
                message.cancel(wait_s=1.0)

    def _renew(self, message: Message) -> bool:
        asked_at = self._clock()
        try:
            message.reschedule(deliver_after=timedelta(seconds=self.length_s))
        except (TooLate, UnknownMessage) as error:
            log.warning("lease: it ran out, %s", error, extra={"action": "lease_lost"})
            self._message = None
            return False
        except (Unreachable, Unavailable, UnexpectedAnswer, PendingError):
            # It may or may not have been moved: assume the old time.
            self._renew_at = min(self._clock() + self.length_s / 6, self._until)
            if self._clock() >= self._until:
                raise
            return True
        self._held_from(asked_at)
        return True

    def _held_from(self, asked_at: float) -> None:
        self._until, self._renew_at = asked_at + self.length_s, asked_at + self.length_s / 3

    def _take(self) -> bool:
        if self._others(None):
            return False
        asked_at = self._clock()
        message = self._client.send(
            self._topic,
            headers={LEASE_HEADER: self._label},
            labels=[self._label],
            deliver_after=timedelta(seconds=self.length_s),
        )
        self._server_ahead_ms = message.deliver_at_ms - (asked_at + self.length_s) * 1000
        if self._others(message.id):
            with suppress(TooLate, PendingError):
                message.cancel(wait_s=1.0)
            return False
        self._message = message
        self._held_from(asked_at)
        log.info("lease: this process has it", extra={"action": "lease_taken"})
        return self._clock() < self._until

    def _others(self, own: str | None) -> bool:
        now_ms = self._clock() * 1000 + self._server_ahead_ms
        until_ms = EpochMs(math.ceil(now_ms + (self.length_s + _SLACK_S) * 1000))
        messages = self._client.list(topic=self._topic, label=self._label, due_to=until_ms)
        return any(message.id != own for message in messages)


class Alone:
    """Replaces a `Lease` if there is no other relay. It sends no message, so it also works when the disk is full."""

    length_s = LENGTH_S

    def hold(self) -> bool:
        return True

    def ask_again_s(self) -> float:
        return 0.0

    def release(self) -> None: ...
