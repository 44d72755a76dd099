"""The message that a handler gets."""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from hashlib import blake2b
from typing import Any, Final, Protocol

import orjson

from duemq.client.consumer.retry.headers import NULL, Header, Headers, RetryOrigin, epoch_ms, labels_in, origin_in, own
from duemq.model.messages.dead_letters import DESTINATION, REDRIVEN_ID, REDRIVEN_ORIGIN

_SUM_BYTES: Final = 9


class KafkaRecord(Protocol):
    """A Kafka record, as aiokafka returns it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Message:
    """A message on its first delivery or a retry. Read-only. Everything except the record is computed on access,
    because most handlers use few of the attributes."""

    __slots__ = ("_origin", "record")

    def __init__(self, record: KafkaRecord, origin: RetryOrigin | None = None) -> None:
        self.record, self._origin = record, origin

    @property
    def origin(self) -> RetryOrigin:
        """The message's first place, and the history of its retries."""
        if self._origin is None:
            record = self.record
            # The timestamp is included because a recreated topic uses the same offsets again.
            place = f"{record.topic}:{record.partition}:{record.offset}:{record.timestamp}"
            id_ = self._text(REDRIVEN_ID)
            topic = record.topic
            if id_ and topic.startswith(DESTINATION):  # a dead letter of a destination, first sent to another topic
                topic = (self._text(REDRIVEN_ORIGIN) or topic).partition("/")[0]
            id_ = id_ or self._text("duemq-id") or place
            self._origin = RetryOrigin(topic, record.partition, record.offset, id_, due_ms=self.due_ms)
        return self._origin

    @property
    def topic(self) -> str:
        """The topic that the message was first sent to, not the retry topic."""
        record = self.record
        first = self._origin is None and not record.topic.startswith(DESTINATION)
        return record.topic if first else self.origin.topic

    @property
    def id(self) -> str:
        """duemq's id of the message, or `topic:partition:offset:timestamp` for a message that did not come through
        duemq. It is the same for every delivery, retry and redrive. To recognise repeats, use `identity`."""
        return self.origin.id

    @property
    def identity(self) -> str:
        """The id with a digest of the message's first place. It is different for any two messages, and the same for
        every delivery, retry and redrive of one message. The id alone does not suffice: a program that copies a
        record's headers to another record also copies the id."""
        origin = self.origin
        place = self._text(REDRIVEN_ORIGIN) or f"{origin.topic}/{origin.partition}/{origin.offset}"
        if origin.id.startswith(place.replace("/", ":") + ":"):
            return origin.id  # the record did not come through duemq, so its id already contains its place
        digest = blake2b(place.encode(), digest_size=_SUM_BYTES).digest()
        return f"{origin.id}:{urlsafe_b64encode(digest).decode()}"

    @property
    def retried(self) -> int:
        """How often the message was retried before; 0 on the first delivery."""
        return 0 if self._origin is None else self._origin.retried

    @property
    def attempt(self) -> int:
        """The number of this delivery; 1 for the first."""
        return self.retried + 1

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def value(self) -> bytes | None:
        """The value as the producer sent it. None for null (a tombstone in a compacted topic), also after a retry."""
        value = self.record.value
        return value if value or not any(name == NULL for name, _ in self.record.headers) else None

    @property
    def payload(self) -> bytes:
        """The value; empty if it is null."""
        return self.record.value or b""

    @property
    def text(self) -> str:
        return self.payload.decode()

    @property
    def json(self) -> Any:
        return orjson.loads(self.payload)

    @property
    def headers(self) -> list[Header]:
        """The producer's own headers, in order; a null value is None."""
        return list(own(self.record.headers))

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that the message was scheduled with."""
        labels = labels_in(self.record.headers)
        return tuple(labels.decode(errors="replace").split(",")) if labels else ()

    @property
    def due_ms(self) -> int | None:
        """When this delivery was due, epoch ms; None for a record that did not come through duemq."""
        return epoch_ms(self._value("duemq-due"))

    @property
    def lateness_ms(self) -> float | None:
        """How long ago this delivery was due, ms; None for a record that did not come through duemq."""
        return None if (due := self.due_ms) is None else time.time() * 1000 - due

    def _value(self, header: str) -> bytes | None:
        return next((value for name, value in self.record.headers if name == header and value is not None), None)

    def _text(self, header: str) -> str | None:
        value = self._value(header)
        return None if value is None else value.decode(errors="replace")

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.topic}, attempt {self.attempt}>"


def message_of(record: KafkaRecord, is_retry: bool) -> Message:
    """The message in a record. `is_retry`: whether the record is from the group's retry topic."""
    return Message(record, origin_in(record.headers) if is_retry else None)
