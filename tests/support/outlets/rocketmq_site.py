"""RocketMQ for the contract of outlets: a topic for all tests, and a tag for each, read by RocketMQ's mqadmin."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from itertools import count
from typing import Any, Final

from duemq.model.destinations.destination import read_credentials, read_destination
from duemq.relay.rocketmq.mapping import EMPTY_BODY
from duemq.relay.rocketmq.outlet import RocketMqOutlet
from tests.support.outlets.site import LOOPBACK, Received
from tests.support.rocketmq.server import RocketMQServer
from tests.support.rocketmq.stored import Stored

_NUMBERS: Final = count()
_TOPIC: Final = "contract"


def rocketmq_outlet(
    endpoint: str, credentials: dict[str, str] | None = None, timeout: int = 10_000, scheme: str = "rocketmq",
    **options: Any,
) -> RocketMqOutlet:  # fmt: skip
    """`endpoint`: HOST:PORT of the proxy."""
    fields = {"name": "rocket", "url": f"{scheme}://{endpoint}", "timeout": timeout, "options": options}
    return RocketMqOutlet(read_destination(fields), read_credentials(credentials or {}), LOOPBACK)


class RocketMQSite:
    name, keeps_headers, tells_repeats_apart = "rocketmq", True, False

    def __init__(self, server: RocketMQServer) -> None:
        self._server = server
        self._tag = f"contract-{next(_NUMBERS)}"

    async def outlet(self) -> RocketMqOutlet:
        if not await asyncio.to_thread(self._server.serves, _TOPIC):  # it takes some seconds to make one
            await asyncio.to_thread(self._server.create_topic, _TOPIC)
        return rocketmq_outlet(self._server.endpoint, topic=_TOPIC, tag=self._tag)

    async def received(self, count: int) -> list[Received]:
        """Answered messages are stored."""
        stored = await asyncio.to_thread(self._server.stored, _TOPIC)
        return [as_received(one) for one in stored if one.tag == self._tag]

    async def stop(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)


def as_received(stored: Stored) -> Received:
    """As `docs/guides/destinations/rocketmq.md` says."""
    properties = stored.properties
    id_ = properties["duemq-id"]
    assert stored.message_id.startswith(f"{id_}:")
    assert id_ in stored.keys
    body: bytes | None = stored.body
    if properties.get("duemq-empty") == "true":
        assert body == EMPTY_BODY
        body = None if properties.get("duemq-null") == "true" else b""
    key = properties.get("duemq-key")
    if (encoded := properties.get("duemq-key-base64")) is not None:
        return Received(id_, b64decode(encoded), _headers(properties), body)
    return Received(id_, None if key is None else key.encode(), _headers(properties), body)


def _headers(properties: dict[str, str]) -> list[tuple[str, bytes | None]]:
    """In their order where `duemq-headers` has it, else by name."""
    if (packed := properties.get("duemq-headers")) is not None:
        return [
            (name, b64decode(text) if rest else None if text is None else text.encode())
            for name, text, *rest in json.loads(packed)
        ]
    own = [(name, text) for name, text in properties.items() if not name.isupper() and not name.startswith("duemq-")]
    return sorted((name, text.encode()) for name, text in own)
