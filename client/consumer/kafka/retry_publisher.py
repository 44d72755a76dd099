"""Sends messages back through duemq's buffer topic, which any Kafka client may write to (docs/guides/kafka.md).

Each message sent back has a name, made from the record that the handler got. So if a consumer dies between sending a
message back and committing, the message may be sent back again: duemq delivers only one of the two. No client can use
such a name (`model/messages/names.py`). The name includes the record's timestamp, because a recreated topic uses the
same offsets again.

Messages that duemq cannot accept are written to the dead letters directly, without the parts that are too large.
"""

from __future__ import annotations

import asyncio
import logging
from struct import error as StructError
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    BrokerResponseError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)

from duemq.background.loop import Loop, OutageOptions
from duemq.background.stray_cancellation import StrayCancellation, own_cancellation_only
from duemq.bus.kafka.clients import new_producer
from duemq.bus.kafka.produce.stop import stop
from duemq.client.consumer.kafka.topics import patiently
from duemq.client.consumer.letter import Letter, Pairs, dead_headers, letter_of
from duemq.client.consumer.message import Message
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.retry.headers import SIZE, returned
from duemq.client.consumer.retry.policy import DeadLetter, Wait
from duemq.model.messages.message import MAX_HEADERS, NO_KEY
from duemq.model.messages.names import RETURN_HEADER, of_client, shard_of_name
from duemq.model.messages.record import pack_headers
from duemq.model.topics.group_topics import dead_letter_topic

log = logging.getLogger(__name__)

_SEND_S = 15.0
_FIRST_S, _LONGEST_S = 0.1, 10.0  # pauses before a retry
_REQUEST_BYTES = 64 << 20  # above any usual limit, so that only the broker's limits apply

TOO_LARGE: Final = "too_large"
MALFORMED: Final = "malformed"
_NOT_ALLOWED: Final = "not_authorized"
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
_NO_RECORD = (TypeError, ValueError, OverflowError, StructError)  # aiokafka cannot encode it as a record
_FAILURES = (KafkaError, OSError, AssertionError, StrayCancellation, *_NO_RECORD)


class _Letter(NamedTuple):
    """A record to write. `topic`: None for duemq's buffer topic, where the headers form a command."""

    topic: str | None
    key: bytes | None
    value: bytes | None
    headers: Pairs


class RetryPublisher:
    """Sends back the messages of one group. `own_name`: see `KafkaLog`."""

    def __init__(self, group: str, bootstrap: str, options: ConsumerOptions, own_name: str | None = None) -> None:
        self._group, self._bootstrap, self._options = own_name or group, bootstrap, options
        self._dead_letters = dead_letter_topic(group)
        self._producer: AIOKafkaProducer | None = None
        self._partitions = 0
        self._opening = asyncio.Lock()

    async def start(self, partitions: int) -> None:
        """`partitions`: the number of partitions of the buffer topic."""
        self._partitions = partitions
        await patiently(self.open)

    async def send(self, message: Message, to: Wait | DeadLetter, error: str) -> Wait | DeadLetter:
        """Send a message back or to the dead letters, according to `to`. If duemq cannot accept the message, it is sent
        to the dead letters in any case. Returns the actual outcome, once the message is durable in the log.

        Retries until it succeeds; after a cancel the outcome is unknown.
        """
        record = message.record
        back = letter_of(self._group, message, to, error)
        letter = _Letter(None, record.key, message.value, [*_address(back), *back.headers])
        refused = _unfit(letter) or await self._append(message, letter)
        if refused is None:
            return to
        await self._send_dead_letter(message, refused, error)
        return DeadLetter(refused)

    async def _send_dead_letter(self, message: Message, reason: str, error: str) -> None:
        """Write a dead letter for a message that duemq cannot accept: the whole message, the message without its value,
        or only its place. The dead letter is written directly, or through duemq if this user may not write to the
        topic."""
        record, origin, value = message.record, message.origin, message.value
        null, dead = value is None, self._dead_letters
        nothing = None if null else b""
        log.warning(
            "consumer of group %s: duemq cannot accept %r, of %d bytes, so it becomes a dead letter: %s",
            self._group, message, len(message.payload), reason, extra={"action": "refused", "group": self._group},
        )  # fmt: skip
        headers = dead_headers(self._group, returned(record.headers, origin, reason, error, null), origin, error)
        size = (SIZE, b"%d" % len(message.payload))
        bare = [*dead_headers(self._group, returned((), origin, reason, error, null), origin, error), size]
        letters = [_Letter(dead, record.key, nothing, [*headers, size]), _Letter(dead, None, nothing, bare)]
        if reason != TOO_LARGE:
            letters.insert(0, _Letter(dead, record.key, value, headers))
        address = _address(letter_of(self._group, message, DeadLetter(reason), error))
        letters.append(_Letter(None, None, nothing, address + bare))
        for letter in letters[:-1]:
            if await self._append(message, letter) is None:
                return
        while await self._append(message, letters[-1]) is not None:  # noqa: ASYNC110  # a buffer that takes nothing
            await asyncio.sleep(_LONGEST_S)

    async def _append(self, message: Message, letter: _Letter) -> str | None:
        """Write a record. Returns None once the log has the record, or the reason why the log never accepts it."""
        topic, key, value, headers = letter
        if key is None and value is None:
            value = b""  # aiokafka requires a key or a value; `x-duemq-null` preserves the null
        partition = None
        if topic is None:
            topic = self._options.buffer_topic
            partition = shard_of_name(of_client((dict(headers)["duemq-name"] or b"").decode()), self._partitions)
        refused: str | None = None

        async def turn() -> None:
            nonlocal refused
            producer: AIOKafkaProducer | None = None
            try:
                with own_cancellation_only():
                    async with asyncio.timeout(_SEND_S):
                        producer = await self.open()
                        await producer.send_and_wait(topic, value, key, partition, headers=headers)
            except _TOO_LARGE:
                refused = TOO_LARGE
            except _FAILURES as failure:
                if isinstance(failure, _NO_RECORD) and producer is not None:
                    refused = MALFORMED
                elif isinstance(failure, TopicAuthorizationFailedError) and letter.topic is not None:
                    refused = _NOT_ALLOWED
                else:
                    # The producer survives errors from a broker or the network. After other errors it may be broken.
                    passing = isinstance(failure, BrokerResponseError) or getattr(failure, "retriable", False)
                    if producer is not None and not passing:
                        await self._close(producer)
                    raise

        pace = OutageOptions(first_s=_FIRST_S, longest_s=_LONGEST_S)
        of = f"{message!r} to group {self._group}"
        await Loop("return", turn, of, expected=_FAILURES, ends_on=(Exception,), **pace).run()
        return refused

    async def open(self) -> AIOKafkaProducer:
        async with self._opening:
            if self._producer is None:
                settings: dict[str, Any] = {"request_timeout_ms": 6_000, **self._options.kafka_of(AIOKafkaProducer)}
                # The producer need not be idempotent: duemq delivers one message per name. It must not be: after a
                # refused message, an idempotent producer could no longer send to that partition.
                producer = new_producer(
                    bootstrap_servers=self._bootstrap, acks="all", max_request_size=_REQUEST_BYTES, **settings
                )
                try:
                    await producer.start()
                except BaseException:
                    await stop(producer, failed=True)
                    raise
                self._producer = producer
            return self._producer

    async def _close(self, producer: AIOKafkaProducer) -> None:
        if self._producer is producer:
            self._producer = None
            await stop(producer)

    async def stop(self) -> None:
        """Stop the producer. Takes a few seconds at most, even if brokers are unreachable."""
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                await stop(producer)
            except asyncio.CancelledError:
                await stop(producer, failed=True)
                raise


def _address(letter: Letter) -> Pairs:
    """The headers that specify how duemq delivers the letter."""
    name = ("duemq-name", letter.name.encode())
    return [("duemq-topic", letter.topic.encode()), letter.wait.header, name, (RETURN_HEADER, b"1")]


def _unfit(letter: _Letter) -> str | None:
    """Why duemq would refuse the record as malformed (`model/messages/plain.py`), whatever its value is; None if it
    would not."""
    if len(letter.key or b"") >= NO_KEY or len(letter.headers) > MAX_HEADERS:
        return MALFORMED
    try:
        pack_headers(letter.headers)
    except (UnicodeEncodeError, StructError):  # not text, or a name beyond 65,535 bytes
        return MALFORMED
    return None
