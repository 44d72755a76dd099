"""One message to try a destination out."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field

from duemq.client.consumer.message import Message
from duemq.model.destinations.destination import Destination
from duemq.relay.base import Outlet, Reply, Result

TEST_HEADER = "x-duemq-test"
_CLOSE_S = 5.0


@dataclass(slots=True)
class TrialRecord:
    """See `message.Record`."""

    topic: str
    timestamp: int
    headers: list[tuple[str, bytes]]
    partition: int = 0
    offset: int = 0
    key: bytes | None = None
    value: bytes = field(default=b'{"test":true}')


async def try_out(outlet: Outlet, destination: Destination, now_ms: int) -> Reply:
    """The answer to a message with the header `x-duemq-test`. Closes the outlet."""
    headers = [
        ("duemq-id", secrets.token_hex(16).encode()), ("duemq-due", b"%d" % now_ms),
        ("content-type", b"application/json"), (TEST_HEADER, b"1"),
    ]  # fmt: skip
    message = Message(TrialRecord(destination.own_topic, now_ms, headers))
    try:
        async with asyncio.timeout(destination.timeout / 1000):
            return await outlet.send(message)
    except TimeoutError:
        return Reply(Result.FAILED, "timeout", f"no answer within {destination.timeout} ms")
    finally:
        try:
            async with asyncio.timeout(_CLOSE_S):
                await outlet.close()
        except TimeoutError:
            pass
