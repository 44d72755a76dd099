"""What a caller says, as the JSON the API wants: messages, times and filters. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict

import orjson

from duemq.client.http.errors import BadField, NaiveTimeError
from duemq.client.http.fields import (
    Headers,
    Payload,
    Text,
    check_arguments,
    header_fields,
    payload_fields,
    text_list,
    text_of,
)
from duemq.client.http.times import delay_ms, is_naive, to_ms

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

    key: Text | None
    """The record key at the target, and a business key to look messages up by. An int is sent as its digits."""
    headers: Headers | None
    """By name, or pairs of name and value, which keep repeated names; values are text, ints, bytes or None (null)."""
    labels: Sequence[str] | str | None
    """At most 16 words to look messages up by; a single text is one."""
    expires_at: Instant | None
    """Where the message could only be delivered after this, it goes to the dead letters instead."""


_SEND_ARGUMENTS: Final = frozenset((*MessageOptions.__annotations__, "name", "if_new", "idempotency_key"))
_TEXT_FILTERS: Final = ("key", "label")


class Filter(TypedDict, total=False):
    """Which messages: all that match every field given. `due_from` is inclusive, `due_to` exclusive. `topic_prefix` and
    `name_prefix`: how topic and name begin.

    `shard`, `order`: lists only; of this shard (`Cluster.shards`), and `due` or `newest`. Newest first takes a key or a
    label, needs the server's index (`index.topics`), and without `status` gives messages of any.
    """

    topic: str
    status: str
    key: Text
    label: Text
    due_from: Instant | None
    due_to: Instant | None
    topic_prefix: str
    name_prefix: str
    shard: int
    order: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to send with `send_batch`. Fields as in `send`.

    `payload`: bytes go unchanged, str as UTF-8, dicts and lists as JSON text, None as null. With a `name` or an
    `idempotency_key` the message is accepted once, however often the draft is sent.
    """

    topic: str
    payload: Payload = b""
    key: Text | None = None
    headers: Headers | None = None
    labels: Sequence[str] | str | None = None
    deliver_at: Instant | None = None
    deliver_after: Delay | None = None
    delay_level: int | None = None
    expires_at: Instant | None = None
    name: Text | None = None
    idempotency_key: Text | None = None

    @property
    def repeatable(self) -> bool:
        """Whether sending it again does no harm."""
        return self.name is not None or self.idempotency_key is not None


def new_draft(topic: str, payload: Payload, options: Mapping[str, Any]) -> Draft:
    """The draft of a `send` with these options."""
    check_arguments("send", options, _SEND_ARGUMENTS)
    return Draft(topic, payload, **options)


def message_body(draft: Draft) -> bytes:
    """The JSON of one message.

    Raises a `RejectedError` for what cannot be sent: `BadField`, `BadHeader`, `BadPayload` or `NaiveTimeError`.
    """
    body = {"topic": text_of("topic", draft.topic), **payload_fields(draft.payload)}
    for field in ("name", "idempotency_key", "key"):
        if (value := getattr(draft, field)) is not None:
            body[field] = text_of(field, value)
    if draft.headers is not None:
        body |= header_fields(draft.headers)
    if draft.labels is not None:
        body["labels"] = text_list("labels", draft.labels)
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
    """The filter fields that were given, for a query string or a cancel's `filter`.

    Raises `BadField` for a value that is none: a filter without it would match more.
    """
    given: dict[str, int | str] = {}
    for name, value in filters.items():
        if isinstance(value, datetime):
            given[name] = _instant(name, value)
        elif value is None:
            raise BadField("bad_field", f"{name} is None: leave it out, if any will do", name)
        elif type(value) is int and name not in _TEXT_FILTERS:
            given[name] = value
        else:
            given[name] = text_of(name, value)
    return given


def _instant(field: str, value: Instant) -> int | str:
    if not isinstance(value, datetime):
        return value
    if is_naive(value):
        detail = f"{field} has no time zone: say datetime.now(UTC) or .astimezone(), not a naive {value.isoformat()}"
        raise NaiveTimeError("naive_time", detail, field)
    return to_ms(value)
