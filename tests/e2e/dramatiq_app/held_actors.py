"""The actors of the tests of the Dramatiq adapter, as a project has them. Where they write what they did: `RAN`."""

from __future__ import annotations

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from duemq.client.dramatiq import install

broker = RedisBroker(url=os.environ["BROKER"], heartbeat_timeout=2000, maintenance_chance=100_000)  # type: ignore[no-untyped-call]
dramatiq.set_broker(broker)
install(broker, os.environ["DUEMQ_URL"], threshold=200)


def ran(what: str, due_ms: int) -> None:
    """One line: what ran, how many ms after its time, and when."""
    now_ms = int(time.time() * 1000)
    file = os.open(os.environ["RAN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{what} {now_ms - due_ms} {now_ms}\n".encode())
    os.close(file)


@dramatiq.actor(broker=broker)
def note(what: str, due_ms: int) -> None:
    ran(what, due_ms)


@dramatiq.actor(broker=broker, min_backoff=500, max_backoff=500, max_retries=2)
def flaky(what: str) -> None:
    """Fails twice; its retries are a quarter to half a second apart."""
    message = dramatiq.middleware.CurrentMessage.get_current_message()
    assert message is not None
    retries = message.options.get("retries", 0)
    ran(f"{what}:{retries}", message.options.get("requeue_timestamp", 0))
    if retries < 2:
        raise RuntimeError("not yet")


broker.add_middleware(dramatiq.middleware.CurrentMessage())
