"""Lets duemq hold Dramatiq messages that have a delay. See `docs/guides/dramatiq.md`.

    dramatiq.set_broker(broker := RedisBroker())
    duemq.client.dramatiq.install(broker, url="http://127.0.0.1:8787")

A destination with `envelope = "dramatiq"` sends the messages to the broker when they are due.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

try:
    import dramatiq
    from dramatiq.errors import ConnectionFailed
except ImportError as missing:
    raise ImportError("duemq.client.dramatiq needs Dramatiq: pip install 'duemq[dramatiq]'") from missing

from duemq.client.deferred import AWAY, DeferredQueue, HeldMessage
from duemq.client.http.blocking.client import Client
from duemq.model.errors import DuemqError

PAUSES_S: Final = (0.0, 0.2, 0.4, 0.8, 1.6)
"""Pauses (s) before a message is sent again while duemq is unreachable."""

log = logging.getLogger("duemq.client.dramatiq")


class NotHeld(ConnectionFailed):
    """duemq did not accept the message. Programs can handle it like the error for an unreachable broker."""


class DramatiqDeferral:
    """Gives one broker's messages to duemq. `install` sets it as `broker.duemq`."""

    def __init__(self, broker: Any, holder: DeferredQueue, threshold: int, fallback: bool) -> None:
        self.broker, self.threshold, self.fallback = broker, threshold, fallback
        self._holder = holder
        self._enqueue: Callable[..., dramatiq.Message[Any]] = broker.enqueue

    @property
    def topic(self) -> str:
        return self._holder.topic

    @property
    def client(self) -> Client:
        return self._holder.client

    def close(self) -> None:
        """Close this process's connection; the next call opens a new one."""
        self._holder.close()

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Replaces the broker's `enqueue`. `delay` is in ms."""
        if delay is None or delay <= self.threshold:
            return self._enqueue(message, delay=delay)
        due = int(time.time() * 1000) + delay
        self.broker.emit_before("enqueue", message, delay)
        retries = message.options.get("retries", 0)
        try:
            self._holder.hold(HeldMessage(message.message_id, retries, due, message.encode(), PAUSES_S))
        except DuemqError as error:
            # Retries always fall back: Dramatiq acknowledges a message even if its retry cannot be enqueued, so that it
            # would be lost.
            if not (retries or (self.fallback and isinstance(error, AWAY))):
                if not isinstance(error, AWAY):
                    raise
                raise NotHeld(f"duemq: {error}") from error  # type: ignore[no-untyped-call]
            log.warning("message %s goes to the broker with its delay: %s", message.message_id, error)
            left_ms = max(due - int(time.time() * 1000), 0)
            return self._enqueue(message, delay=left_ms)
        self.broker.emit_after("enqueue", message, delay)
        return message

    def cancel(self, message_ids: Iterable[str]) -> set[str]:
        """Cancel messages. Returns the ids of messages that duemq held and has cancelled: they will not run.

        Raises `NotHeld` if duemq is unreachable, and `duemq.client.PendingError` if the answer is not known in time.
        """
        try:
            return self._holder.cancel(message_ids)
        except AWAY as error:
            raise NotHeld(f"duemq: {error}") from error  # type: ignore[no-untyped-call]


def install(
    broker: dramatiq.Broker,
    url: str | None = None,
    *,
    api_key: str | None = None,
    topic: str = "dramatiq",
    threshold: int = 1000,
    fallback: bool = False,
    timeout: float = 10.0,
) -> DramatiqDeferral:
    """Let duemq hold the broker's messages that have a delay of more than `threshold` ms, until they are due.

    Messages get delays from `send_with_options(delay=)`, pipelines and retries.

    Call it in the code that creates the broker, so that both senders and workers call it. `url` and `api_key` are as in
    `duemq.client.Client`; `timeout` is in seconds. duemq delivers the messages to `topic`, from which a destination
    takes them: use one topic per broker. If duemq is unreachable, `NotHeld` is raised. With `fallback`, and for retries
    in any case, the message is sent to the broker with its delay instead, as without duemq.

    Raises `ValueError` if duemq is already installed in the broker.
    """
    if isinstance(getattr(broker, "duemq", None), DramatiqDeferral):
        raise ValueError(f"duemq is already installed in {broker!r}")
    hold = DramatiqDeferral(broker, DeferredQueue(url, api_key, timeout, topic), threshold, fallback)
    vars(broker)["duemq"] = hold
    vars(broker)["enqueue"] = hold.enqueue
    return hold


def hold_of(broker: dramatiq.Broker) -> DramatiqDeferral:
    """The deferral of a broker. Raises `ValueError` if `install` was not called for the broker."""
    hold = getattr(broker, "duemq", None)
    if not isinstance(hold, DramatiqDeferral):
        raise ValueError(f"{broker!r} has no duemq: call duemq.client.dramatiq.install(broker) when you create it")
    return hold
