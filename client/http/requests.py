"""Converts a caller's arguments to the API's JSON: messages, times and filters. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, TypedDict

import orjson

from duemq.client.http.errors import BadField, BadTime, NaiveTimeError
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
from duemq.client.http.times import EpochMs, delay_ms, is_naive, to_ms
from duemq.model.errors import Rejected
from duemq.model.timing import parse_instant

Instant = datetime | EpochMs | str
"""An aware datetime, a date-time as text (RFC 3339, RFC 9557), or epoch ms. Numbers in seconds are refused."""
Delay = timedelta | str
"""A timedelta, or text such as "90s", "2h30m", "PT90S". A number is refused, because it has no unit."""


class Absent(Enum):
    """The type of `ABSENT`. None is not used for this, because a time may be None by mistake."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
"""Passing it is the same as leaving the time out."""
_DELAYS: Final = frozenset(("deliver_after", "expires_after", "overlap", "shift", "delay", "visibility"))
_RANGE: Final = ("due_from", "due_to")
_INSTANTS: Final = ("deliver_at", "expires_at", *_RANGE)
_TIMES: Final = ("deliver_at", "deliver_after", "delay_level", "zone", "expires_at", "expires_after")


class When(TypedDict, total=False):
    """When a message is due: one of `deliver_at`, `deliver_after` and `delay_level`; without any of them, at once."""

    deliver_at: Instant | Absent
    deliver_after: Delay | Absent
    delay_level: int | Absent
    """A level in the server's table, 1 to 18 (1s 5s 10s 30s 1m ... 2h); a higher number means the highest level."""
    zone: str | Absent
    """The zone for date-time texts without an offset, such as "Europe/Berlin"."""


class MessageOptions(When, total=False):
    """Options for a message, in addition to the topic and payload."""

    key: Text | None
    """The key of the record in the topic, by which messages can also be looked up. An int is sent as its digits."""
    headers: Headers | None
    """A mapping by name, or pairs of name and value, which preserve repeated names. Values are text, ints, bytes or
    None (null)."""
    labels: Sequence[str] | str | None
    """At most 16 words by which messages can be looked up; a single text is one label."""
    expires_at: Instant | Absent
    """A message that has not been delivered by this time becomes a dead letter instead."""
    expires_after: Delay | Absent
    """The same as a delay, counted from when the server accepts the message."""


_SEND_ARGUMENTS: Final = frozenset((*MessageOptions.__annotations__, "name", "if_new", "idempotency_key"))
_TEXT_FILTERS: Final = ("key", "label")


class Filter(TypedDict, total=False):
    """Selects messages that match every given field. `due_from` is inclusive, `due_to` exclusive. `topic_prefix`,
    `name_prefix`: the beginning of the topic or name.

    `shard`, `order`: only for lists. They select messages in one shard (`Cluster.shards`), and the order, `due` or
    `newest`. `newest` requires a key or a label, and the server's index (`index.topics`); without `status`, it returns
    messages with any status.
    """

    topic: str
    status: str
    key: Text
    label: Text
    due_from: Instant | Absent
    due_to: Instant | Absent
    topic_prefix: str
    name_prefix: str
    shard: int
    order: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to send with `send_batch`. The fields are those of `send`.

    `payload`: bytes are sent unchanged, str as UTF-8, dicts and lists as JSON text, None as null. With a `name` or an
    `idempotency_key`, the message is accepted only once, however often the draft is sent.
    """

    topic: str
    payload: Payload = b""
    key: Text | None = None
    headers: Headers | None = None
    labels: Sequence[str] | str | None = None
    deliver_at: Instant | Absent = ABSENT
    deliver_after: Delay | Absent = ABSENT
    delay_level: int | Absent = ABSENT
    expires_at: Instant | Absent = ABSENT
    name: Text | None = None
    idempotency_key: Text | None = None
    expires_after: Delay | Absent = ABSENT
    zone: str | Absent = ABSENT

    @property
    def repeatable(self) -> bool:
        """Whether sending the draft again is harmless."""
        return self.name is not None or self.idempotency_key is not None


def new_draft(topic: str, payload: Payload, options: Mapping[str, Any]) -> Draft:
    """The draft for a call of `send` with these options."""
    check_arguments("send", options, _SEND_ARGUMENTS)
    return Draft(topic, payload, **options)


def message_body(draft: Draft) -> bytes:
    """The JSON of one message.

    Raises a `RejectedError` for an invalid message: `BadField`, `BadHeader`, `BadPayload`, `NaiveTimeError`, or
    `BadTime` for a time that is None or a delay that is a number.
    """
    body = {"topic": text_of("topic", draft.topic), **payload_fields(draft.payload)}
    for field in ("name", "idempotency_key", "key"):
        if (value := getattr(draft, field)) is not None:
            body[field] = text_of(field, value)
    if draft.headers is not None:
        body |= header_fields(draft.headers)
    if draft.labels is not None:
        body["labels"] = text_list("labels", draft.labels)
    return orjson.dumps(body | time_fields({name: getattr(draft, name) for name in _TIMES}))


def time_fields(given: Mapping[str, object]) -> dict[str, Any]:
    """The fields for the given times, without those that are ABSENT. The server checks that they do not conflict."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            raise BadTime("bad_time", f"{name} is None: leave it out, or pass ABSENT, if there is no such time", name)
        if value is not ABSENT:
            fields[name] = value
            if name in _DELAYS:
                fields[name] = _delay(name, value)
            elif name in _INSTANTS:
                fields[name] = _instant(name, value)
    return fields


def filter_fields(filters: Filter) -> dict[str, int | str]:
    """The given fields of a filter, for a query string or the `filter` of a cancel.

    Raises `BadField` for None, and `BadTime` for an invalid time: if the field were ignored, more messages would match.
    """
    given: dict[str, int | str] = time_fields({name: value for name, value in filters.items() if name in _RANGE})
    for name, value in filters.items():
        if name in _RANGE:
            continue
        if value is None:
            raise BadField("bad_field", f"{name} is None: leave it out to match any", name)
        given[name] = value if type(value) is int and name not in _TEXT_FILTERS else text_of(name, value)
    return given


def _instant(field: str, value: object) -> object:
    if isinstance(value, str):
        return value
    if not isinstance(value, datetime):
        try:
            return parse_instant(value, field)
        except Rejected as error:
            raise BadTime(error.code, error.detail, field) from error
    if is_naive(value):
        detail = f"{field} has no time zone: pass datetime.now(UTC) or .astimezone(), not a naive {value.isoformat()}"
        raise NaiveTimeError("naive_time", detail, field)
    return to_ms(value)


def _delay(field: str, value: object) -> object:
    if isinstance(value, int | float):
        detail = f"{field} is {value}, which has no unit: pass timedelta(seconds={value}), or text such as {value}s"
        raise BadTime("bad_time", detail, field)
    return delay_ms(value) if isinstance(value, timedelta) else value
