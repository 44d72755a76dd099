"""Receivers of a relay's messages, with a count of arrivals that no code of duemq has made."""

from __future__ import annotations

import asyncio
import sys
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import aio_pika
import nats

from duemq.dev.servers.ports import HOST, free_port, is_open
from duemq.dev.servers.process import Process
from duemq.dev.servers.running import RunningServer
from tests.support.destinations.nats_node import NatsNode
from tests.support.destinations.rabbitmq_node import RabbitMQNode
from tests.support.destinations.redis_nodes import RedisNode
from tests.support.destinations.server_node import ServerNode
from tests.support.outlets.rabbitmq_site import GUEST, plain
from tests.support.outlets.rabbitmq_stream_site import StreamCounter, declare_stream, read_stream

NAME = "arrivals"
_READY_WITHIN_S = 60.0


class Receiver(RunningServer):
    """A system that is killed. `most_twice`: messages that may arrive twice when it, or the relay, dies.

    Raises NotAvailable where its server cannot be had.
    """

    most_twice: ClassVar[int]

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...

    @abstractmethod
    def declaration(self) -> dict[str, Any]:
        """The fields of a destination that are its own."""

    def prepare(self) -> None:
        """Make what messages arrive in."""
        return

    @abstractmethod
    def count(self) -> int:
        """Messages that have arrived."""

    @abstractmethod
    def arrived(self) -> Counter[tuple[str, bytes]]:
        """Id and payload of each message that has arrived. To be asked once: it may take them out."""

    @abstractmethod
    def kill(self) -> None:
        """kill -9. `start` restarts it with its data."""


class HttpReceiver(Receiver):
    most_twice = 1_000  # in flight, and what is accepted in 100 ms

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._port, self._file = free_port(), folder / "received"
        program = str(Path(__file__).with_name("endpoint_process.py"))
        command = [sys.executable, "-P", program, str(self._port), str(self._file)]
        self._process = Process("endpoint", command, folder / "endpoint.log")

    def declaration(self) -> dict[str, Any]:
        retry = {"kind": "exponential", "first": "200ms", "factor": 1.5, "most": "2s", "retries": 50}
        return {"url": f"http://{HOST}:{self._port}/hook", "retry": retry}

    def start(self) -> None:
        self._process.start()
        self._process.until(lambda: is_open(self._port), _READY_WITHIN_S)

    def close(self) -> None:
        self._process.kill()

    kill = close

    def count(self) -> int:
        return self._file.read_bytes().count(b"\n")

    def arrived(self) -> Counter[tuple[str, bytes]]:
        words = [line.split(b" ", 1) for line in self._file.read_bytes().splitlines()]
        return Counter((id_.decode(), payload) for id_, payload in words)


class NodeReceiver(Receiver):
    """One whose server is a node of the tests."""

    _node: ServerNode

    def start(self) -> None:
        self._node.start()

    def close(self) -> None:
        self._node.close()

    def kill(self) -> None:
        self._node.kill()


class RabbitMQReceiver(NodeReceiver):
    """A quorum queue."""

    most_twice = 2_000

    _node: RabbitMQNode

    def __init__(self, folder: Path) -> None:
        self._node = RabbitMQNode(folder)

    def declaration(self) -> dict[str, Any]:
        return {"url": plain(self._node.url), "credentials": GUEST, "options": {"routing_key": NAME}}

    def prepare(self) -> None:
        asyncio.run(self._declare(passive=False))
        self._node.until_on_disk(NAME)

    def count(self) -> int:
        return asyncio.run(self._declare(passive=True))

    async def _declare(self, *, passive: bool) -> int:
        async with await aio_pika.connect(self._node.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(
                NAME, passive=passive, durable=True, arguments={"x-queue-type": "quorum"}
            )
            return queue.declaration_result.message_count or 0

    def arrived(self) -> Counter[tuple[str, bytes]]:
        return Counter((each.headers["duemq-id"], each.body) for each in self._node.dump(NAME))


class RabbitMQStreamReceiver(NodeReceiver):
    """A stream, which drops repeats by their publishing ids. It is read by AMQP 0-9-1."""

    most_twice = 0

    _node: RabbitMQNode

    def __init__(self, folder: Path) -> None:
        self._node = RabbitMQNode(folder)
        self._counter: StreamCounter | None = None

    def declaration(self) -> dict[str, Any]:
        options = {"stream": NAME, "stream_port": self._node.stream_port}
        return {"url": plain(self._node.url), "credentials": GUEST, "options": options}

    def prepare(self) -> None:
        declare_stream(self._node, NAME)

    def count(self) -> int:
        if self._counter is None:
            self._counter = StreamCounter(self._node, NAME)
        return self._counter.count

    def close(self) -> None:
        self._close_counter()
        super().close()

    def _close_counter(self) -> None:
        if self._counter is not None:
            self._counter.close()
            self._counter = None

    def arrived(self) -> Counter[tuple[str, bytes]]:
        self._close_counter()
        return Counter((properties.headers["duemq-id"], body) for properties, body in read_stream(self._node, NAME))


class NatsReceiver(NodeReceiver):
    """A stream of JetStream, which tells repeats apart."""

    most_twice = 0

    _node: NatsNode

    def __init__(self, folder: Path) -> None:
        self._node = NatsNode(folder)

    def declaration(self) -> dict[str, Any]:
        return {"url": self._node.url, "options": {"subject": NAME}}

    def prepare(self) -> None:
        async def add() -> None:
            async with await nats.connect(self._node.url) as client:
                await client.jetstream().add_stream(name=NAME, subjects=[NAME])

        asyncio.run(add())

    def count(self) -> int:
        async def messages() -> int:
            async with await nats.connect(self._node.url) as client:
                return (await client.jetstream().stream_info(NAME)).state.messages

        return asyncio.run(messages())

    def arrived(self) -> Counter[tuple[str, bytes]]:
        return Counter((each.headers["duemq-id"][0], each.body) for each in self._node.dump(NAME))


class RedisReceiver(NodeReceiver):
    """A stream, and the script that tells repeats apart."""

    most_twice = 0

    _node: RedisNode

    def __init__(self, folder: Path) -> None:
        self._node = RedisNode(folder)

    def declaration(self) -> dict[str, Any]:
        return {"url": self._node.url, "options": {"name": NAME}}

    def count(self) -> int:
        return int(self._node.ask("XLEN", NAME))

    def arrived(self) -> Counter[tuple[str, bytes]]:
        return Counter((each.headers["id"].decode(), each.body) for each in self._node.dump(NAME))


def rocketmq_receiver(folder: Path) -> Receiver:
    from tests.support.relay.rocketmq_receiver import RocketMQReceiver  # gRPC and the client: over a second

    return RocketMQReceiver(folder)


RECEIVERS: dict[str, Callable[[Path], Receiver]] = {
    "http": HttpReceiver,
    "rabbitmq": RabbitMQReceiver,
    "rabbitmq-stream": RabbitMQStreamReceiver,
    "nats": NatsReceiver,
    "redis": RedisReceiver,
    "rocketmq": rocketmq_receiver,
}
