"""Sends a test message to a destination, through the outlet that a relay would use."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from duemq.model.destinations.destination import Credentials, Destination
from duemq.proxy.relay_access import SystemReply

if TYPE_CHECKING:
    from duemq.client.consumer.retry.headers import Headers
    from duemq.relay.base import Outlet
    from duemq.relay.relay import OpenOutlet

HEADER: Final = ("x-duemq-test", b"1")
_CLOSE_S: Final = 10.0


@dataclass(slots=True)
class _TestRecord:
    """Has the form of a record in the destination's own topic, but is not stored there."""

    topic: str
    timestamp: int
    value: bytes | None
    headers: Headers
    partition: int = 0
    offset: int = 0
    key: bytes | None = None


async def send_test(destination: Destination, credentials: Credentials, open_with: OpenOutlet) -> SystemReply:
    """Send one message within the destination's timeout."""
    from duemq.client.consumer.message import Message
    from duemq.relay.base import MAX_DETAIL, Result

    now = int(time.time() * 1000)
    value = orjson.dumps({"duemq": "test", "destination": destination.name})
    own = [("duemq-id", f"test-{secrets.token_hex(8)}".encode()), ("duemq-due", b"%d" % now)]
    message = Message(_TestRecord(destination.own_topic, now, value, [*own, HEADER]))
    outlet = open_with(destination, credentials)
    begun = time.perf_counter()
    try:
        async with asyncio.timeout(destination.timeout / 1000):
            reply = await outlet.send(message)
        result, status, detail = reply.result, reply.status, reply.detail
    except TimeoutError:
        result, status = Result.AWAY, "timeout"
        detail = f"no answer within {destination.timeout} ms"
    finally:
        took_ms = round((time.perf_counter() - begun) * 1000, 1)
        await _close(outlet)
    return SystemReply(str(result), status, detail[:MAX_DETAIL], took_ms)


async def _close(outlet: Outlet) -> None:
    try:
        async with asyncio.timeout(_CLOSE_S):
            await outlet.close()
    except TimeoutError:
        pass  # the answer is known, so an error while closing does not matter
