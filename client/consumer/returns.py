"""Sending messages back: through duemq's buffer topic, which any Kafka client may write to (docs/kafka.md).

Each carries a name made of the record that the handler had, so a consumer that died after it sent a message back and
before it committed may send it again: duemq delivers one of the two. The record's time is part of the name, for a topic
that was made anew has the same offsets again.

What duemq cannot take is written to the dead letters directly, without what was too large.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import suppress
from struct import error as StructError
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from duemq.bus.kafka.client import mend_timeouts
from duemq.client.consumer.headers import SIZE, returned
from duemq.client.consumer.message import Message
from duemq.client.consumer.names import dead_letter_topic, retry_topic
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.policy import Dead, Wait
from duemq.model.message import CLIENT_NAME, MOST_HEADERS, NO_KEY, shard_of_name
from duemq.model.record import pack_headers

log = logging.getLogger(__name__)

_SEND_S, _STOP_S = 15.0, 5.0
_AT_ONCE = Wait("level", 0)
_BACK_OFF_S = (0.1, 0.3, 1.0, 3.0, 10.0)
_REQUEST_BYTES = 64 << 20  # the broker's own limits decide

TOO_LARGE: Final = "too_large"
MALFORMED: Final = "malformed"
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
_NO_RECORD = (TypeError, ValueError, OverflowError, StructError)  # aiokafka cannot make a record of it

Pairs = list[tuple[str, bytes]]


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

    async def send(self, message: Message, to: Wait | Dead, error: str) -> Wait | Dead:
        """Send it back, or to the dead letters; where duemq cannot take it, to the dead letters in any case. Gives what
        became of it.

        Tries until it succeeds; a cancel ends it, with an unknown outcome.
        """
        headers = self._headers(message, to, error)
        name = dict(headers)["duemq-name"]
        partition = shard_of_name(CLIENT_NAME + name, self._partitions)
        value, key = message.record.value or b"", message.record.key
        refused = _unfit(key, headers)
        if refused is None:
            refused = await self._append(message, self._options.buffer_topic, partition, key, value, headers)
        if refused is None:
            return to
        await self._bury(message, refused, error)
        return Dead(refused)

    def _headers(self, message: Message, to: Wait | Dead, error: str) -> Pairs:
        origin = message.origin
        if isinstance(to, Dead):
            kind, topic, when, reason, following = "dead", dead_letter_topic(self._group), _AT_ONCE, to.reason, origin
        else:
            kind, topic, when, reason = "retry", retry_topic(self._group), to, "failed"
            following = origin.again() if to.counts else origin
        record = message.record
        # The record at hand, not the one it was first: each time that it comes back its name is another one.
        place = kind, self._group, record.topic, record.partition, record.offset, record.timestamp
        digest = hashlib.sha256("\0".join(map(str, place)).encode()).hexdigest()
        name = f"{kind}-{digest[:40]}"
        return [
            ("duemq-topic", topic.encode()), when.header, ("duemq-name", name.encode()),
            *returned(record.headers, following, reason, error, message.value is None),
        ]  # fmt: skip

    async def _bury(self, message: Message, reason: str, error: str) -> None:
        """Write a dead letter directly: whole, without the value, or with no more than where it was."""
        record = message.record
        value, key, null = record.value or b"", record.key, message.value is None
        size = (SIZE, b"%d" % len(value))
        headers = returned(record.headers, message.origin, reason, error, null)
        bare = [*returned((), message.origin, reason, error, null), size]
        shorter: list[tuple[bytes | None, bytes, Pairs]] = [(key, b"", [*headers, size]), (None, b"", bare)]
        log.error(
            "consumer of group %s: duemq cannot take %r, of %d bytes, so it is a dead letter: %s",
            self._group, message, len(value), reason, extra={"action": "refused", "group": self._group},
        )  # fmt: skip
        if reason != TOO_LARGE:
            shorter.insert(0, (key, value, headers))
        while True:
            key, value, headers = shorter.pop(0) if len(shorter) > 1 else shorter[0]
            refused = await self._append(message, dead_letter_topic(self._group), None, key, value, headers)
            if refused is None:
                return
            if headers is bare:
                await asyncio.sleep(_BACK_OFF_S[-1])  # a topic that takes nothing has to be mended

    async def _append(
        self, message: Message, topic: str, partition: int | None, key: bytes | None, value: bytes, headers: Pairs
    ) -> str | None:
        """None once the log has it, or the reason why it never takes this one."""
        task, failures = asyncio.current_task(), 0
        while True:
            producer: AIOKafkaProducer | None = None
            try:
                async with asyncio.timeout(_SEND_S):
                    producer = await self._open()
                    await producer.send_and_wait(topic, value, key, partition, headers=headers)
                return None
            except _TOO_LARGE:
                return TOO_LARGE
            except (KafkaError, OSError, AssertionError, asyncio.CancelledError, *_NO_RECORD) as failure:
                if isinstance(failure, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise
                if isinstance(failure, _NO_RECORD) and producer is not None:
                    return MALFORMED
                log.error(
                    "consumer of group %s cannot send %r back, and will try again: %r", self._group, message, failure,
                    extra={"action": "return", "group": self._group},
                )  # fmt: skip
                # After what Kafka says of itself the producer goes on; nobody knows what is wrong in all other cases.
                if producer is not None and not getattr(failure, "retriable", False):
                    await self._close(producer)
            await asyncio.sleep(_BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)])
            failures += 1

    async def _open(self) -> AIOKafkaProducer:
        async with self._opening:
            if self._producer is None:
                settings: dict[str, Any] = {"request_timeout_ms": 6_000, **self._options.kafka}
                # Not idempotent: duemq delivers one message of a name, and after a refusal of one message an idempotent
                # producer could send no other to that partition.
                producer = AIOKafkaProducer(
                    bootstrap_servers=self._bootstrap, acks="all", max_request_size=_REQUEST_BYTES, **settings
                )
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


def _unfit(key: bytes | None, headers: Pairs) -> str | None:
    """The reason why duemq would take the record for malformed (`model/plain.py`), whatever it is sent with."""
    if (key is not None and len(key) >= NO_KEY) or len(headers) > MOST_HEADERS:
        return MALFORMED
    try:
        pack_headers(headers)
    except (UnicodeEncodeError, StructError):  # no text, or a name beyond 65,535 bytes
        return MALFORMED
    return None
