"""Sending messages back: through duemq's buffer topic, which any Kafka client may write to (docs/kafka.md).

Each carries a name made of where the message was first and how often it was retried. So a consumer that died after it
sent a message back and before it committed may send it again: duemq delivers one of the two.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from duemq.bus.kafka.client import mend_timeouts
from duemq.client.consumer.headers import returned
from duemq.client.consumer.message import Message
from duemq.client.consumer.names import dead_letter_topic, retry_topic
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.policy import Dead, Wait
from duemq.model.message import CLIENT_NAME, shard_of_name

log = logging.getLogger(__name__)

_SEND_S, _STOP_S = 15.0, 5.0
_AT_ONCE = Wait("level", 0)
_BACK_OFF_S = (0.1, 0.3, 1.0, 3.0, 10.0)
_REQUEST_BYTES = 64 << 20  # the broker's own limits decide


class Returns:
    """Of one group. `send` comes back when the log has the message, durably."""

    def __init__(self, group: str, bootstrap: str, options: ConsumerOptions) -> None:
        self._group, self._bootstrap, self._options = group, bootstrap, options
        self._producer: AIOKafkaProducer | None = None
        self._partitions = 0
        self._opening = asyncio.Lock()

    async def start(self, partitions: int) -> None:
        """`partitions`: of the buffer topic."""
        self._partitions = partitions
        await self._open()

    async def send(self, message: Message, to: Wait | Dead, error: str) -> None:
        """Tries until it succeeds; a cancel ends it, with an unknown outcome."""
        headers = self._headers(message, to, error)
        name = dict(headers)["duemq-name"]
        partition = shard_of_name(CLIENT_NAME + name, self._partitions)
        failures = 0
        while True:
            producer: AIOKafkaProducer | None = None
            try:
                async with asyncio.timeout(_SEND_S):
                    producer = await self._open()
                    await producer.send_and_wait(
                        self._options.buffer_topic, message.record.value or b"", message.record.key, partition,
                        headers=headers,
                    )  # fmt: skip
                return
            except (KafkaError, TimeoutError) as failure:
                log.error(
                    "consumer of group %s cannot send %r back, and will try again: %r", self._group, message, failure,
                    extra={"action": "return", "group": self._group},
                )  # fmt: skip
                if producer is not None:  # a batch that was refused poisons its partition for this producer
                    await self._close(producer)
            await asyncio.sleep(_BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)])
            failures += 1

    def _headers(self, message: Message, to: Wait | Dead, error: str) -> list[tuple[str, bytes]]:
        origin = message.origin
        if isinstance(to, Dead):
            kind, topic, when, reason, following = "dead", dead_letter_topic(self._group), _AT_ONCE, to.reason, origin
        else:
            kind, topic, when, reason, following = "retry", retry_topic(self._group), to, "failed", origin.again()
        place = "\0".join((kind, self._group, origin.place, str(origin.retried)))
        name = f"{kind}-{hashlib.sha256(place.encode()).hexdigest()[:40]}"
        return [
            ("duemq-topic", topic.encode()), when.header, ("duemq-name", name.encode()),
            *returned(message.record.headers, following, reason, error),
        ]  # fmt: skip

    async def _open(self) -> AIOKafkaProducer:
        async with self._opening:
            if self._producer is None:
                settings: dict[str, Any] = {"request_timeout_ms": 6_000, **self._options.kafka}
                producer = AIOKafkaProducer(
                    bootstrap_servers=self._bootstrap, enable_idempotence=True, acks="all",
                    max_request_size=_REQUEST_BYTES, **settings,
                )  # fmt: skip
                mend_timeouts(producer.client)
                try:
                    await producer.start()
                except BaseException:
                    await self._stop(producer)
                    raise
                self._producer = producer
            return self._producer

    async def _close(self, producer: AIOKafkaProducer) -> None:
        if self._producer is producer:
            self._producer = None
            await self._stop(producer)

    async def _stop(self, producer: AIOKafkaProducer) -> None:
        with suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await producer.stop()

    async def stop(self) -> None:
        if self._producer is not None:
            await self._close(self._producer)
