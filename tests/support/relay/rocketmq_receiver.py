"""RocketMQ as a receiver of a relay; Apache's own consumer counts the arrivals."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from duemq.relay.rocketmq.outlet import RocketMqOutlet
from tests.support.patience import SERVERS_S
from tests.support.relay.receivers import NAME, Receiver
from tests.support.rocketmq.client import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    InternalErrorException,
    Message,
    SimpleConsumer,
)
from tests.support.rocketmq.server import RocketMQServer

_READERS = 4
_AT_A_TIME = 32  # what the proxy gives at most
_INVISIBLE_S = 600


class RocketMQReceiver(Receiver):
    """A topic; the name server stays alive.

    RocketMQ does not recognise repeats: messages in flight may be there twice, and so may messages done since the relay
    last stored its position. It stores that every 20 ms; 100 ms are allowed, because it takes longer on a busy machine:
    756 repeats were seen, where 20 ms would allow 800.
    """

    most_twice = RocketMqOutlet.concurrency + 15_000 // 10

    def __init__(self, folder: Path) -> None:
        self._server = RocketMQServer(folder)

    def declaration(self) -> dict[str, Any]:
        return {"url": f"rocketmq://{self._server.endpoint}", "options": {"topic": NAME}}

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._server.close()

    def prepare(self) -> None:
        self._server.create_topic(NAME)
        self._server.create_group(NAME)

    def kill(self) -> None:
        """kill -9 of broker and proxy."""
        self._server.kill()

    def count(self) -> int:
        return self._server.count(NAME)

    def arrived(self) -> Counter[tuple[str, bytes]]:
        total, arrived = self.count(), Counter[tuple[str, bytes]]()
        configuration = ClientConfiguration(self._server.endpoint, Credentials(), request_timeout=10)
        consumer = SimpleConsumer(configuration, NAME, {NAME: FilterExpression()}, await_duration=2)
        deadline, lock = time.monotonic() + SERVERS_S, Lock()

        def read() -> None:
            while arrived.total() < total and time.monotonic() < deadline:
                with suppress(InternalErrorException):  # until the proxy has the settings, which the client sends apart
                    messages = consumer.receive(_AT_A_TIME, _INVISIBLE_S)
                    with lock:
                        arrived.update(map(_arrival, messages))

        consumer.startup()
        try:
            with ThreadPoolExecutor(_READERS) as readers:
                for reading in [readers.submit(read) for _ in range(_READERS)]:
                    reading.result()
        finally:
            consumer.shutdown()
        return arrived


def _arrival(message: Message) -> tuple[str, bytes]:
    assert message.delivery_attempt == 1, "it is given to a consumer once"
    assert message.message_id.rpartition(":")[0] == message.properties["duemq-id"], "its id, and a sum of its place"
    return message.properties["duemq-id"], message.body
