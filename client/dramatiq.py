"""duemq holds Dramatiq messages that have a delay. See `docs/guides/dramatiq.md`.

    dramatiq.set_broker(broker := RedisBroker())
    duemq.client.dramatiq.install(broker, url="http://127.0.0.1:8787")

`python -m duemq.client.dramatiq proj.tasks` is the relay that sends them to the broker when they are due.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, get_args

try:
    import dramatiq
    from dramatiq.errors import BrokerConnectionError, ConnectionFailed, DecodeError
except ImportError as missing:
    raise ImportError("duemq.client.dramatiq needs Dramatiq: pip install 'duemq[dramatiq]'") from missing

from duemq.client.http.blocking.client import Client
from duemq.client.http.values import Record
from duemq.client.relay.command import MAX_LEASE_S, RelayOptions, run_relay
from duemq.client.relay.deferred import AWAY, DeferredQueue, HeldMessage
from duemq.client.relay.lease import LEAST_S, LENGTH_S
from duemq.client.relay.redis_errors import is_redis_away
from duemq.client.relay.relay import MAX_PAGE, PAGE, BrokerAway, NoPlace, NotPublishable, Start
from duemq.model.errors import DuemqError

PAUSES_S: Final = (0.0, 0.2, 0.4, 0.8, 1.6)
"""How a message is retried while duemq is unreachable."""

log = logging.getLogger("duemq.client.dramatiq")


class NotHeld(ConnectionFailed):
    """duemq did not accept the message, like a broker that is unreachable."""


class DramatiqDeferral:
    """The messages of one broker that duemq holds. `install` sets it as `broker.duemq`."""

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
            # Dramatiq acknowledges a message even if its retry cannot be enqueued: the message would be lost.
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
        """Cancel messages. Returns those that were held and are cancelled: they will not run.

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
    """From now on duemq holds the broker's messages with a delay of more than `threshold` ms, until they are due.

    These come from `send_with_options(delay=)`, pipelines and retries.

    Call it where the broker is created, so that senders, workers and the relay all have it. `url` and `api_key` are as
    in `duemq.client.Client`, `timeout` is in seconds. duemq delivers to `topic`, and the relay reads it: use one per
    broker. If duemq is unreachable, `NotHeld` is raised; with `fallback`, and always for retries, the message goes to
    the broker with its delay, as without duemq.

    Raises `ValueError` if the broker already has it.
    """
    if isinstance(getattr(broker, "duemq", None), DramatiqDeferral):
        raise ValueError(f"duemq is already installed in {broker!r}")
    hold = DramatiqDeferral(broker, DeferredQueue(url, api_key, timeout, topic), threshold, fallback)
    vars(broker)["duemq"] = hold
    vars(broker)["enqueue"] = hold.enqueue
    return hold


def hold_of(broker: dramatiq.Broker) -> DramatiqDeferral:
    """The deferral of a broker. Raises `ValueError` for a broker without `install`."""
    hold = getattr(broker, "duemq", None)
    if not isinstance(hold, DramatiqDeferral):
        raise ValueError(f"{broker!r} has no duemq: call duemq.client.dramatiq.install(broker) when you create it")
    return hold


class DramatiqOutlet:
    """Puts held messages into their queues, without a delay."""

    def __init__(self, broker: dramatiq.Broker) -> None:
        self._broker = broker

    def publish(self, record: Record) -> None:
        try:
            message = dramatiq.Message.decode(record.payload)
        except DecodeError as error:
            raise NotPublishable(f"not a held message: {error}") from error
        try:
            self._broker.enqueue(message)
        except Exception as error:
            if isinstance(error, BrokerConnectionError | OSError) or is_redis_away(error):
                raise BrokerAway(f"{type(error).__name__}: {error}") from error
            raise

    def close(self) -> None:
        self._broker.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Relay until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(
        "python -m duemq.client.dramatiq",
        description="Send messages held by duemq to the broker when they are due. One of several relays works.",
        epilog="Example: python -m duemq.client.dramatiq proj.tasks",
    )
    parser.add_argument("broker", help="the module, as for `dramatiq`: proj.tasks or proj.tasks:broker")
    parser.add_argument("--consumer", default="dramatiq-relay", help="whose position is used (%(default)s)")
    parser.add_argument(
        "--page", type=int, default=PAGE, help="messages per page: the most that are sent twice (%(default)s)"
    )
    parser.add_argument("--lease", type=float, default=LENGTH_S, help="s until another relay takes over (%(default)s)")
    parser.add_argument("--alone", action="store_true", help="the consumer has no other relay: take no lease")
    parser.add_argument(
        "--start",
        choices=get_args(Start),
        help="start of a consumer without a position: at the first message in the topic, or after the last "
        "one; without this option, it starts only in an empty topic",
    )
    parser.add_argument("--loglevel", default="INFO")
    options = parser.parse_args(arguments)
    if not 1 <= options.page <= MAX_PAGE:
        parser.error(f"argument --page: from 1 to {MAX_PAGE}, not {options.page}")
    if not LEAST_S <= options.lease <= MAX_LEASE_S:
        parser.error(f"argument --lease: from {LEAST_S:g} to {MAX_LEASE_S:g}, not {options.lease}")

    from dramatiq.cli import import_broker

    _, broker = import_broker(options.broker)  # type: ignore[no-untyped-call]
    relay = RelayOptions(options.consumer, options.page, options.lease, options.alone, options.start, options.loglevel)
    try:
        run_relay(hold_of(broker), DramatiqOutlet(broker), type(broker).__name__, relay)
    except NoPlace as error:
        print(f"relay: {error} (--start)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # Not as `__main__`: the project installed into the module under its own name.
    from duemq.client.dramatiq import main as relay_main

    sys.exit(relay_main())
