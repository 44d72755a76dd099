"""What a caller says, as the JSON the API wants: messages, times and filters. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict

import orjson

from duemq.client.http.errors import NaiveTimeError
from duemq.client.http.times import delay_ms, is_naive, to_ms

Payload = bytes | str | Mapping[str, Any] | Sequence[Any] | None
"""None is null, as the tombstone of a compacted topic has it: neither empty nor the text `null`."""
Instant = datetime | int | str
"""An aware datetime, epoch milliseconds, or RFC 3339 text with a zone."""
Delay = timedelta | int | str
"""A timedelta, milliseconds, or text such as "90s", "2h30m", "PT90S"."""


class When(TypedDict, total=False):
    """When a message is due: one of the three, or none for at once."""

    deliver_at: Instant | None
    deliver_after: Delay | None
    delay_level: int | None
    """1..18 of the server's table (1s 5s 10s 30s 1m ... 2h); above the highest means the highest."""


class MessageOptions(When, total=False):
    """What may be said of a message beside its topic and payload."""

    key: str | None
    """The record key at the target, and a business key to look messages up by."""
    headers: Mapping[str, str] | None
    labels: Sequence[str] | None
    """At most 16 words to look messages up by."""
    expires_at: Instant | None
    """Where the message could only be delivered after this, it goes to the dead letters instead."""


class Filter(TypedDict, total=False):
    """Which messages: all that match every field given. `due_from` is inclusive, `due_to` exclusive. `topic_prefix` and
    `name_prefix`: how topic and name begin.

    `shard`, `order`: lists only; of this shard (`Cluster.shards`), and `due` or `newest`. Newest first takes a key or a
    label, needs the server's index (`index.topics`), and without `status` gives messages of any.
    """

    topic: str | None
    status: str | None
    key: str | None
    label: str | None
    due_from: Instant | None
    due_to: Instant | None
    topic_prefix: str | None
    name_prefix: str | None
    shard: int | None
    order: str | None


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to send with `send_batch`. Fields as in `send`.

    `payload`: bytes go unchanged, str as UTF-8, dicts and lists as JSON text, None as null. With a `name` or an
    `idempotency_key` the message is accepted once, however often the draft is sent.
    """

    topic: str
    payload: Payload = b""
    key: str | None = None
    headers: Mapping[str, str] | None = None
    labels: Sequence[str] | None = None
    deliver_at: Instant | None = None
    deliver_after: Delay | None = None
    delay_level: int | None = None
    expires_at: Instant | None = None
    name: str | None = None
    idempotency_key: str | None = None

    @property
    def repeatable(self) -> bool:
        """Whether sending it again does no harm."""
        return self.name is not None or self.idempotency_key is not None


def message_body(draft: Draft) -> bytes:
    """The JSON of one message.

    Raises `NaiveTimeError` for a datetime without a zone and `TypeError` for what JSON cannot say.
    """
    body = {"topic": draft.topic, **_payload_fields(draft.payload)}
    if draft.name is not None:
        body["name"] = draft.name
    if draft.idempotency_key is not None:
        body["idempotency_key"] = draft.idempotency_key
    if draft.key is not None:
        body["key"] = draft.key
    if draft.headers is not None:
        body["headers"] = dict(draft.headers)
    if draft.labels is not None:
        body["labels"] = list(draft.labels)
    body |= when_fields(deliver_at=draft.deliver_at, deliver_after=draft.deliver_after, delay_level=draft.delay_level)
    if draft.expires_at is not None:
        body["expires_at"] = _instant("expires_at", draft.expires_at)
    return orjson.dumps(body)


def when_fields(
    deliver_at: Instant | None = None, deliver_after: Delay | None = None, delay_level: int | None = None
) -> dict[str, int | str]:
    """The time fields that were given. That there is only one is the server's to judge."""
    fields: dict[str, int | str] = {}
    if deliver_at is not None:
        fields["deliver_at"] = _instant("deliver_at", deliver_at)
    if deliver_after is not None:
        fields["deliver_after"] = delay_ms(deliver_after) if isinstance(deliver_after, timedelta) else deliver_after
    if delay_level is not None:
        fields["delay_level"] = delay_level
    return fields


def filter_fields(filters: Filter) -> dict[str, int | str]:
    """The filter fields that were given, for a query string or a cancel's `filter`."""
    fields: dict[str, int | str] = {}
    for name, value in filters.items():
        if isinstance(value, str | int | datetime):
            fields[name] = _instant(name, value)
    return fields


def _payload_fields(payload: Payload) -> dict[str, Any]:
    if payload is None or isinstance(payload, str):
        return {"payload": payload}
    if not isinstance(payload, bytes):
        return {"payload": orjson.dumps(payload).decode()}
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def _instant(field: str, value: Instant) -> int | str:
    if not isinstance(value, datetime):
        return value
    if is_naive(value):
        detail = f"{field} has no time zone: say datetime.now(UTC) or .astimezone(), not a naive {value.isoformat()}"
        raise NaiveTimeError("naive_time", detail, field)
    return to_ms(value)
