"""The systems to which a relay sends messages. For a bench, each has a place for messages, and counts the messages
there.

The clients are blocking. Each creates its queue or stream, and deletes it afterwards.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import psutil

from duemq.bench.relay.rocketmq import RocketMqTopic
from duemq.bench.relay.sink import HOOK
from duemq.bench.system.system import SiteError, free_port

T = TypeVar("T")

DEFAULT_URLS = {
    "rabbitmq": "amqp://guest:guest@127.0.0.1:5672/",
    "nats": "nats://127.0.0.1:4222",
    "redis": "redis://127.0.0.1:6379",
    "rocketmq": "rocketmq://127.0.0.1:8081",
}


class Receiver(Protocol):
    """`url`: the system's URL, with user and password if there are any. `name`: the name of the place. `at_once`: how
    many messages the plain client has in flight, which is the relay's default."""

    url: str
    name: str
    at_once: int

    def options(self) -> dict[str, Any]:
        """The options for declaring the destination."""
        ...

    def make(self) -> None:
        """Create the place for messages. Raises SiteError."""
        ...

    def count(self) -> int: ...

    def remove(self) -> None: ...


class Http:
    at_once = 50

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url or f"http://127.0.0.1:{free_port()}{HOOK}", name

    def options(self) -> dict[str, Any]:
        return {}

    def make(self) -> None: ...

    def count(self) -> int:
        raise NotImplementedError("its sink counts")

    def remove(self) -> None: ...


class RabbitMQ:
    """A quorum queue in RabbitMQ."""

    at_once = 1_000

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name

    def options(self) -> dict[str, Any]:
        return {"routing_key": self.name}

    def make(self) -> None:
        arguments = {"x-queue-type": "quorum"}
        self._do(lambda channel: channel.queue_declare(self.name, durable=True, arguments=arguments))

    def count(self) -> int:
        return int(self._do(lambda channel: channel.queue_declare(self.name, passive=True).method.message_count))

    def remove(self) -> None:
        self._do(lambda channel: channel.queue_delete(self.name))

    def _do(self, work: Callable[[Any], T]) -> T:
        from pika import BlockingConnection, URLParameters
        from pika.exceptions import AMQPError

        try:
            connection = BlockingConnection(URLParameters(self.url))
        except AMQPError as error:
            raise SiteError(f"no RabbitMQ at {place(self.url)}: {error!r}") from error
        try:
            return work(connection.channel())
        finally:
            connection.close()


class Nats:
    """A stream in NATS JetStream."""

    at_once = 500

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name

    def options(self) -> dict[str, Any]:
        return {"subject": self.name}

    def make(self) -> None:
        self._do(lambda stream: stream.add_stream(name=self.name, subjects=[self.name]))

    def count(self) -> int:
        return int(self._do(lambda stream: stream.stream_info(self.name)).state.messages)

    def remove(self) -> None:
        self._do(lambda stream: stream.delete_stream(self.name))

    def _do(self, work: Callable[[Any], Awaitable[T]]) -> T:
        import nats
        from nats.errors import Error

        async def connected() -> T:
            try:
                client = await nats.connect(self.url, allow_reconnect=False, connect_timeout=5)
            except (Error, OSError) as error:
                raise SiteError(f"no NATS at {place(self.url)}: {error!r}") from error
            async with client:
                return await work(client.jetstream())

        return asyncio.run(connected())


class RedisStream:
    at_once = 1_000

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name

    def options(self) -> dict[str, Any]:
        return {"name": self.name}

    def make(self) -> None:
        from redis.exceptions import RedisError

        try:
            self._do(lambda client: client.ping())
        except RedisError as error:
            raise SiteError(f"no Redis at {place(self.url)}: {error!r}") from error

    def count(self) -> int:
        return int(self._do(lambda client: client.xlen(self.name)))

    def remove(self) -> None:
        self._do(lambda client: client.delete(self.name))

    def _do(self, work: Callable[[Any], T]) -> T:
        from redis import Redis

        with Redis.from_url(self.url) as client:
            return work(client)


RECEIVERS: dict[str, Callable[[str, str], Receiver]] = {
    "http": Http,
    "rabbitmq": RabbitMQ,
    "nats": Nats,
    "redis": RedisStream,
    "rocketmq": RocketMqTopic,
}


def receiver(system: str, url: str | None, name: str) -> Receiver:
    """The receiver for a system. `url`: None means the usual port on this machine or, for HTTP, the bench's own
    sink."""
    return RECEIVERS[system](url or DEFAULT_URLS.get(system, ""), name)


def place(url: str) -> str:
    """The URL without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def credentials(url: str) -> dict[str, str]:
    """The credentials in the URL, in the form that a destination needs."""
    parts = urlsplit(url)
    secrets = {"username": parts.username, "password": parts.password}
    return {name: unquote(value) for name, value in secrets.items() if value}


def server_cpu_s(url: str) -> float | None:
    """CPU seconds of the process that listens at the URL; None if the process is not on this machine or not visible to
    us."""
    port = urlsplit(url).port
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return None
    for each in connections:
        if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid is not None:
            times = psutil.Process(each.pid).cpu_times()
            return times.user + times.system
    return None
