"""Faults of each system that messages are sent to, on its real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import nats
import pika
from nats.js.api import StorageType

from duemq.model.destinations.destination import read_credentials
from duemq.relay.base import Outlet
from duemq.relay.http.outlet import HttpOutlet
from tests.support.destinations.nats_node import NatsNode
from tests.support.destinations.rabbitmq_node import RabbitMQNode
from tests.support.destinations.redis_nodes import RedisNode
from tests.support.outlets.http_site import Endpoint, http_destination, silent, status
from tests.support.outlets.nats_site import nats_outlet
from tests.support.outlets.rabbitmq_site import rabbitmq_outlet
from tests.support.outlets.redis_site import redis_outlet
from tests.support.outlets.site import LOOPBACK

if TYPE_CHECKING:
    from tests.support.rocketmq.server import RocketMQServer

USER = {"username": "relay", "password": "s3cret-word"}
WRONG = USER | {"password": "an-other-word"}
TIMEOUT_MS = 2_000

NATS_SETTINGS = """
authorization { users = [
  { user: admin, password: "all of it" }
  { user: relay, password: "s3cret-word", permissions: { publish: ["good.>", "good"], subscribe: ["_INBOX.>"] } }
] }
"""


class Trouble(Protocol):
    """A system. `good`, `bad`: keys of messages; the user has no right to the name that the second makes."""

    good: bytes
    bad: bytes

    def outlet(self, credentials: dict[str, str] | None = None, timeout: int = TIMEOUT_MS) -> Outlet:
        """Its names are made of keys."""
        ...

    async def freeze(self) -> None: ...

    async def thaw(self) -> None: ...

    def full(self) -> Any:
        """Asynchronous context manager: it has no memory or disk for messages."""
        ...


class RabbitMQTrouble:
    good, bad = b"good.1", b"bad.1"

    def __init__(self, node: RabbitMQNode) -> None:
        self._node = node
        with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("orders", durable=True)
            channel.queue_bind("orders", "amq.topic", "#")
        node.control("add_user", USER["username"], USER["password"])
        node.control("set_permissions", USER["username"], "", "amq.topic|stream", ".*")
        node.control("set_topic_permissions", USER["username"], "amq.topic", "^good", "")

    def outlet(self, credentials: dict[str, str] | None = None, timeout: int = TIMEOUT_MS) -> Outlet:
        options = {"exchange": "amq.topic", "routing_key": "{{ key }}"}
        return rabbitmq_outlet(self._node.url, credentials or USER, timeout, **options)

    async def freeze(self) -> None:
        await asyncio.to_thread(self._node.process.pause)

    async def thaw(self) -> None:
        self._node.process.resume()

    @asynccontextmanager
    async def full(self) -> AsyncIterator[None]:
        await asyncio.to_thread(self._node.control, "set_vm_memory_high_watermark", "0.00001")
        yield
        await asyncio.to_thread(self._node.control, "set_vm_memory_high_watermark", "0.4")


class StreamTrouble(RabbitMQTrouble):
    def __init__(self, node: RabbitMQNode) -> None:
        from tests.support.outlets.rabbitmq_stream_site import declare_stream

        super().__init__(node)
        declare_stream(node, "stream")

    def outlet(self, credentials: dict[str, str] | None = None, timeout: int = TIMEOUT_MS) -> Outlet:
        from tests.support.outlets.rabbitmq_stream_site import stream_outlet  # rstream

        return stream_outlet(self._node, "stream", credentials or USER, timeout=timeout)

    @asynccontextmanager
    async def full(self) -> AsyncIterator[None]:
        """Streams need disk; they go on without memory."""
        await asyncio.to_thread(self._node.control, "set_disk_free_limit", "100000GB")
        async with asyncio.timeout(30):  # until its watch of the disk looks again
            while "disk" not in await asyncio.to_thread(self._node.control, "eval", "rabbit_alarm:get_alarms()."):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        yield
        await asyncio.to_thread(self._node.control, "set_disk_free_limit", "1MB")


class NatsTrouble:
    good, bad = b"good", b"bad"

    def __init__(self, node: NatsNode, *, jetstream: bool = True) -> None:
        self._node, self._jetstream = node, jetstream

    async def prepare(self, storage: StorageType = StorageType.FILE) -> None:
        async with await nats.connect(self._node.url, user="admin", password="all of it") as client:
            await client.jetstream().add_stream(name="ORDERS", subjects=["good", "bad"], storage=storage)

    def outlet(self, credentials: dict[str, str] | None = None, timeout: int = TIMEOUT_MS) -> Outlet:
        given = read_credentials(credentials or USER)
        return nats_outlet(self._node, given, timeout=timeout, subject="{{ key }}", jetstream=self._jetstream)

    async def freeze(self) -> None:
        await asyncio.to_thread(self._node.process.pause)

    async def thaw(self) -> None:
        self._node.process.resume()


class RedisTrouble:
    good, bad = b"good.1", b"bad.1"

    def __init__(self, node: RedisNode) -> None:
        self._node = node
        node.ask("ACL", "SETUSER", USER["username"], "on", f">{USER['password']}", "~good*", "~duemq:*", "+@all")

    def outlet(self, credentials: dict[str, str] | None = None, timeout: int = TIMEOUT_MS) -> Outlet:
        return redis_outlet(self._node.url, credentials or USER, timeout, name="{{ key }}")

    async def freeze(self) -> None:
        await asyncio.to_thread(self._node.process.pause)

    async def thaw(self) -> None:
        self._node.process.resume()

    @asynccontextmanager
    async def full(self) -> AsyncIterator[None]:
        self._node.ask("CONFIG", "SET", "maxmemory", "1")
        yield
        self._node.ask("CONFIG", "SET", "maxmemory", "0")


class RocketMQTrouble:
    good, bad = b"good", b"bad"

    def __init__(self, server: RocketMQServer) -> None:
        self._server = server

    def outlet(self, credentials: dict[str, str] | None = None, timeout: int = TIMEOUT_MS) -> Outlet:
        from tests.support.outlets.rocketmq_site import rocketmq_outlet  # gRPC and the client

        return rocketmq_outlet(self._server.endpoint, timeout=timeout, topic="trouble")

    async def freeze(self) -> None:
        await asyncio.to_thread(self._server.pause)

    async def thaw(self) -> None:
        self._server.resume()

    @asynccontextmanager
    async def full(self) -> AsyncIterator[None]:
        with self._server.full_disk():
            yield


class HttpTrouble:
    """An endpoint of the tests' own. It answers 403 to the key `bad`, and 401 to a wrong password."""

    good, bad = b"good", b"bad"

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        endpoint.answer = self._answer

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        headers = dict(self._endpoint.requests[-1].headers)
        wrong = headers.get("authorization") == "Bearer an-other-word"
        code = 401 if wrong else 403 if headers.get("duemq-key") == "bad" else 200
        await status(code, b"the endpoint says so")(writer)

    def outlet(self, credentials: dict[str, str] | None = None, timeout: int = TIMEOUT_MS) -> Outlet:
        token = {"token": (credentials or USER)["password"]}
        return HttpOutlet(http_destination(self._endpoint.url, timeout=timeout), read_credentials(token), LOOPBACK)

    async def freeze(self) -> None:
        self._endpoint.answer = silent

    async def thaw(self) -> None:
        self._endpoint.answer = self._answer

    @asynccontextmanager
    async def full(self) -> AsyncIterator[None]:
        self._endpoint.answer = status(507, b"no room")
        yield
        self._endpoint.answer = self._answer
