"""Validates producers' messages: each becomes a `Draft`, or is refused with an error that says which field broke which
rule.

No later code checks a message again, so every draft must fit the envelope (`model/messages/message.py`). The checks are
written by hand, without a schema library, because they run for each message. `null` never means that a field is absent:
a message that lost its time on the way must not be delivered at once. A payload may be null, which is not the same as
empty.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from duemq.model.destinations.destination import Destination
from duemq.model.errors import ClockOutOfBounds, Rejected, RejectedNow
from duemq.model.messages.message import Draft
from duemq.model.messages.record import Header, pack_headers
from duemq.model.timing import TIME_FIELDS, WHEN_FIELDS, resolve, resolve_expiry, shown
from duemq.model.topics.rules import (
    HEADER_NAME_CHARACTERS,
    LABEL,
    MAX_LABELS,
    RESERVED_TOPICS,
    TOPIC,
    TOPIC_RULE,
    is_reserved_header,
)
from duemq.model.topics.topic_names import is_of_another
from duemq.model.topics.topic_patterns import topic_matcher
from duemq.proxy.request.json_body import MAX_VALUES, check_fields
from duemq.proxy.request.json_text import PAYLOAD_JSON, JsonText
from duemq.proxy.request.message_limits import MessageLimits as MessageLimits
from duemq.proxy.request.raw_body import read_dashed

_RARE = frozenset(("key", "headers", "header_list", "labels", "expires_at", "expires_after", "destination"))
_OTHER_PAYLOADS = ("payload_base64", PAYLOAD_JSON)
FIELDS = _RARE | {"topic", "payload", *_OTHER_PAYLOADS, *WHEN_FIELDS}
_KNOWN_TOPICS = 10_000
_WHEN_FIELDS = frozenset(WHEN_FIELDS)
_CLOCK_RETRY_S = 5
_VALUES_PER_ITEM = 50  # JSON values per item of a batch, on average


class Ingress:
    """Reads messages under `limits`. Every method raises `Rejected`; `now` is epoch ms.

    Rejections that depend on `now` or on the limits are `RejectedNow`: the same message may have been accepted before.

    `why_clock_out` returns why `now` may be used to check times but not to compute a due time from it; None if it may
    be used for both. `destinations` returns the declared destinations, by name.
    """

    def __init__(
        self,
        limits: MessageLimits,
        why_clock_out: Callable[[], str | None] = lambda: None,
        destinations: Callable[[], Mapping[str, Destination]] = dict,
    ) -> None:
        self.limits, self._why_clock_out, self._destinations = limits, why_clock_out, destinations
        self._time = limits.time
        self._allows = topic_matcher(limits.topics) if limits.topics else None
        self._known_topics: set[str] = set()

    def draft(self, item: Mapping[str, Any], now: int) -> Draft:
        """A message from parsed JSON. A `payload_json` that is a `JsonText` is used as it is; any other value is
        written as JSON."""
        if type(item) is not dict:
            raise Rejected("bad_field", f"a message is a JSON object, not {shown(item)}")
        if not item.keys() <= FIELDS:
            check_fields(item, sorted(FIELDS))
        payload: bytes | None
        if "payload_base64" in item or PAYLOAD_JSON in item:
            payload, source = _other_payload(item)
        else:
            source = "payload"
            text = item.get("payload", "")
            if type(text) is not str and text is not None:
                detail = f"payload must be text or null; send JSON as {PAYLOAD_JSON}, bytes as payload_base64"
                raise Rejected("bad_field", f"{detail}, not {shown(text)}", "payload")
            payload = None if text is None else text.encode()
        return self._draft(item, payload, source, now)

    def draft_from_raw(self, headers: Sequence[tuple[bytes, bytes]], body: bytes, now: int) -> Draft:
        """A message whose payload is the body itself; its fields are the dashed headers among the ASGI `headers`."""
        return self._draft(read_dashed(headers), body, "payload", now, text=True)

    def when(self, item: Mapping[str, Any], now: int) -> int:
        """The new due time of a moved message; `now` if the fields mean "at once" or a past time."""
        if not item.keys() <= _WHEN_FIELDS:
            check_fields(item, sorted(_WHEN_FIELDS))
        if item.keys().isdisjoint(TIME_FIELDS):
            raise Rejected("bad_field", f"exactly one of {', '.join(TIME_FIELDS)} is needed", "deliver_at")
        due = self._resolve(item, now)
        return now if due is None or due < now else due

    def check_open_topic(self, topic: str) -> None:
        """Check that messages may go to this topic. Raises Rejected `bad_topic` or `unknown_topic`."""
        self._check_topic({"topic": topic})

    @property
    def most_values(self) -> int:
        """How many JSON values a batch may have."""
        return max(_VALUES_PER_ITEM * self.limits.max_batch_items, MAX_VALUES)

    def batch(self, body: Mapping[str, Any]) -> list[Any]:
        """The items of a batch, still unread."""
        check_fields(body, ("messages",))
        items = body.get("messages")
        if type(items) is not list:
            raise Rejected("bad_field", "messages must be a list of messages", "messages")
        if len(items) > (limit := self.limits.max_batch_items):
            raise Rejected("batch_too_large", f"a batch holds at most {limit} messages, not {len(items)}", "messages")
        return items

    def _draft(
        self, item: Mapping[str, Any], payload: bytes | None, source: str, now: int, text: bool = False
    ) -> Draft:
        limits = self.limits
        if payload is not None and len(payload) > limits.max_payload_bytes:
            raise RejectedNow(
                "payload_too_large",
                f"the payload has {len(payload)} bytes, the limit is {limits.max_payload_bytes}",
                source,
            )
        topic = item.get("topic")
        if type(topic) is not str or topic not in self._known_topics:
            topic = self._check_topic(item)
        due = self._resolve(item, now, text)
        if _RARE.isdisjoint(item):
            return Draft(topic, payload, due)

        if "destination" in item and "topic" in item:
            raise Rejected("bad_field", "topic and destination are both given: a message goes to one", "destination")
        key = None
        if "key" in item:
            key = self._key(item["key"])
        count, packed = 0, b""
        if "headers" in item or "header_list" in item:
            count, packed = self._pack(topic, *_headers(item))
        labels = _labels(item["labels"]) if "labels" in item else ()
        expires = resolve_expiry(item, now, text=text)
        if expires and expires < (now if due is None else max(due, now)):
            name = "expires_at" if "expires_at" in item else "expires_after"
            raise RejectedNow("bad_time", f"{name} is before the message is due", name)
        return Draft(topic, payload, due, key, count, packed, labels, expires)

    def _resolve(self, item: Mapping[str, Any], now: int, text: bool = False) -> int | None:
        """See `resolve`. Also raises ClockOutOfBounds, because `expires_after`, and any due time without `deliver_at`,
        are computed from now."""
        due = resolve(item, now, self._time, text=text)
        if ("deliver_at" not in item or "expires_after" in item) and (reason := self._why_clock_out()) is not None:
            detail = f"only messages with deliver_at are accepted now: {reason}"
            raise ClockOutOfBounds(detail, _CLOCK_RETRY_S)
        return due

    def _check_topic(self, item: Mapping[str, Any]) -> str:
        if "topic" not in item:
            if "destination" in item:
                return self._own_topic_of(item["destination"])
            raise Rejected("missing_topic", "topic is required: the name of the topic to deliver to", "topic")
        topic = item["topic"]
        if type(topic) is not str or not TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise Rejected("bad_topic", f"topic {TOPIC_RULE}, not {shown(topic)}", "topic")
        if topic.startswith(RESERVED_TOPICS) or is_of_another(topic):
            whose = "the brokers' own" if topic.startswith("__") else "duemq's own"
            raise Rejected("bad_topic", f"topic {shown(topic)} begins like {whose}: messages cannot go there", "topic")
        if self._allows is not None and not self._allows(topic):
            raise RejectedNow(
                "unknown_topic", f"topic {topic} is not among the topics this server delivers to", "topic"
            )
        if len(self._known_topics) >= _KNOWN_TOPICS:
            self._known_topics.clear()
        self._known_topics.add(topic)
        return topic

    def _own_topic_of(self, name: object) -> str:
        """The topic for messages to this destination only. The destination is looked up each time, because it may have
        been removed."""
        if type(name) is not str:
            raise Rejected("bad_field", f"destination must be text, not {shown(name)}", "destination")
        if (destination := self._destinations().get(name)) is None:
            raise RejectedNow("unknown_destination", f"there is no destination {shown(name)}", "destination")
        return self._check_topic({"topic": destination.own_topic})

    def _key(self, value: object) -> bytes:
        if type(value) is not str:
            raise Rejected("bad_field", f"key must be text, not {shown(value)}", "key")
        key = value.encode()
        if len(key) > (limit := self.limits.max_key_bytes):
            raise RejectedNow("bad_field", f"the key has {len(key)} bytes, the limit is {limit}", "key")
        return key

    def _pack(self, topic: str, field: str, headers: list[Header]) -> tuple[int, bytes]:
        if len(headers) > (most := self.limits.max_headers):
            raise RejectedNow("bad_header", f"{len(headers)} headers are given, the limit is {most}", field)
        for name, _ in headers:
            if not 0 < len(name) <= HEADER_NAME_CHARACTERS:
                detail = f"header names have 1 to {HEADER_NAME_CHARACTERS} characters, not {len(name)}"
                raise Rejected("bad_header", detail, field)
            if is_reserved_header(name, topic):
                detail = f"header {shown(name)}: the prefixes duemq- and x-duemq- are duemq's own"
                raise Rejected("bad_header", detail, field)
        count, packed = pack_headers(headers)
        if len(packed) > (limit := self.limits.max_headers_bytes):
            raise RejectedNow("bad_header", f"the headers have {len(packed)} bytes, the limit is {limit}", field)
        return count, packed


def _headers(item: Mapping[str, Any]) -> tuple[str, list[Header]]:
    """The headers of a message, and the name of the field that has them."""
    if "header_list" in item:
        return "header_list", _header_list(item)
    headers = item["headers"]
    if type(headers) is not dict:
        raise Rejected("bad_header", f"headers must be an object of names and texts, not {shown(headers)}", "headers")
    pairs: list[Header] = []
    for name, value in headers.items():
        if type(value) is not str:
            detail = f"the value of header {shown(name)} must be text, not {shown(value)}; header_list takes others"
            raise Rejected("bad_header", detail, "headers")
        pairs.append((name, value.encode()))
    return "headers", pairs


def _header_list(item: Mapping[str, Any]) -> list[Header]:
    if "headers" in item:
        raise Rejected("bad_header", "headers and header_list are both given", "header_list")
    listed = item["header_list"]
    if type(listed) is not list:
        detail = f"header_list must be a list of names and values, not {shown(listed)}"
        raise Rejected("bad_header", detail, "header_list")
    pairs: list[Header] = []
    for one in listed:
        match one:
            case [str(name), str(text)]:
                pairs.append((name, text.encode()))
            case [str(name), None]:
                pairs.append((name, None))
            case [str(name), {"base64": str(encoded), **more}] if not more:
                try:
                    pairs.append((name, a2b_base64(encoded, strict_mode=True)))
                except ValueError as error:
                    detail = f"the value of header {shown(name)} is not base64 (RFC 4648): {error}"
                    raise Rejected("bad_header", detail, "header_list") from error
            case _:
                detail = f'a header is [name, value] with text, null or {{"base64": text}}, not {shown(one)}'
                raise Rejected("bad_header", detail, "header_list")
    return pairs


def _other_payload(item: Mapping[str, Any]) -> tuple[bytes, str]:
    """A payload that is in another field than `payload`, and the name of that field."""
    first, *more = (field for field in _OTHER_PAYLOADS if field in item)
    if more or "payload" in item:
        raise Rejected("both_payloads", f"{more[0] if more else 'payload'} and {first} are both given", first)
    if first == PAYLOAD_JSON:
        value = item[first]
        return value.encode() if type(value) is JsonText else orjson.dumps(value), first
    return _decode(item[first]), first


def _labels(labels: object) -> tuple[str, ...]:
    if type(labels) is not list or len(labels) > MAX_LABELS:
        raise Rejected("bad_field", f"labels must be a list of at most {MAX_LABELS} texts", "labels")
    for label in labels:
        if type(label) is not str or not LABEL.fullmatch(label):
            raise Rejected(
                "bad_field",
                f"a label has 1 to 128 characters, none of them a comma or a control character, not {shown(label)}",
                "labels",
            )
    return tuple(labels)


def _decode(value: object) -> bytes:
    if type(value) is not str:
        raise Rejected("bad_base64", f"payload_base64 must be text, not {shown(value)}", "payload_base64")
    try:
        return a2b_base64(value, strict_mode=True)
    except ValueError as error:
        raise Rejected("bad_base64", f"payload_base64 is not base64 (RFC 4648): {error}", "payload_base64") from error
