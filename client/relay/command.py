"""Runs a relay in its own process, for the commands of Celery and Dramatiq."""

from __future__ import annotations

import logging
import signal
import sys
import time
from dataclasses import dataclass
from typing import Protocol

from duemq.client.http.blocking.client import Client
from duemq.client.relay.lease import LENGTH_S, Alone, Lease
from duemq.client.relay.relay import PAGE, Outlet, Relay, Start

MAX_LEASE_S = 600.0


class Deferral(Protocol):
    """The messages that wait for their time."""

    @property
    def topic(self) -> str: ...

    @property
    def client(self) -> Client: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class RelayOptions:
    """`alone`: take no lease, because `consumer` has no other relay. The rest as in `Relay` and `Lease`."""

    consumer: str
    page: int = PAGE
    lease_s: float = LENGTH_S
    alone: bool = False
    start: Start | None = None
    loglevel: str = "INFO"


def run_relay(hold: Deferral, outlet: Outlet, broker: str, options: RelayOptions) -> None:
    """Relay until SIGTERM or SIGINT, in the main thread, and close `hold`. `broker`: its name, printed at the start.

    Raises `NoPlace`.
    """
    log_in_utc(options.loglevel)
    lease = Alone() if options.alone else Lease(hold.client, hold.topic, options.consumer, length_s=options.lease_s)
    relay = Relay(
        hold.client, hold.topic, options.consumer, outlet, page=options.page, lease=lease, start=options.start
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: relay.stop())
    print(f"relay: from topic {hold.topic} to {broker}", file=sys.stderr, flush=True)
    try:
        relay.run()
    finally:
        hold.close()
    print(f"relay: stopped; {relay.published} published, {relay.buried} to the dead letters", file=sys.stderr)


def log_in_utc(level: str) -> None:
    """Log to stderr, with times marked as UTC."""
    lines = logging.Formatter("[%(asctime)s.%(msecs)03dZ: %(levelname)s] %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    lines.converter = time.gmtime  # to compare times of two machines
    handler = logging.StreamHandler()
    handler.setFormatter(lines)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
