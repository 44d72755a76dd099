"""Fills the placeholders of `model/destinations/template.py` with what a message has, so that nothing breaks out.

In a body, values are escaped as its content type needs: the inside of a JSON string, of a form field, of XML or HTML.
In a header, what is not visible ASCII is percent-encoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from typing import Final
from urllib.parse import quote, quote_plus

import orjson

from duemq.client.consumer.message import Message
from duemq.model.destinations.template import Placeholder, parse_template
from duemq.relay.http.times import timestamp

Escape = Callable[[str], str]

_VISIBLE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
"""What a header's value keeps as it is. A percent sign is encoded, so that the text can be had back."""


class Template:
    """A text with placeholders. Raises ValueError where it has others than there are."""

    def __init__(self, text: str, escape_: Escape) -> None:
        self._parts: Final = parse_template(text)
        self._escape: Final = escape_

    def render(self, message: Message) -> str:
        escape_ = self._escape
        return "".join([
            part if isinstance(part, str)
            else payload_json(message) if part.name == "payload_json"
            else escape_(_value(part, message))
            for part in self._parts
        ])  # fmt: skip


def body_template(text: str, content_type: str) -> Template:
    """Of a body of this content type."""
    return Template(text, _escape_of(content_type))


def header_template(text: str) -> Template:
    """Of the value of a header."""
    return Template(text, header_text)


def header_text(text: str) -> str:
    """Text as a value of a header: ASCII without `%` as it is, else percent-encoded UTF-8."""
    return quote(text, safe=_VISIBLE, errors="replace")


def payload_json(message: Message) -> str:
    """The payload if it is JSON, else a JSON string of its text; `null` for null."""
    if message.value is None:
        return "null"
    text = _text(message.payload)
    try:
        orjson.loads(message.payload)
    except orjson.JSONDecodeError:
        return json.dumps(text)
    return text


def _value(part: Placeholder, message: Message) -> str:
    match part.name:
        case "id":
            return message.id
        case "key":
            return _text(message.key or b"")
        case "topic":
            return message.topic
        case "due":
            return timestamp(message)
        case "due_ms":
            return str(message.record.timestamp if message.origin.due_ms is None else message.origin.due_ms)
        case "attempt":
            return str(message.attempt)
        case "header":
            return next((_text(value or b"") for name, value in message.headers if name.lower() == part.header), "")
        case _:
            return _text(message.payload)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _escape_of(content_type: str) -> Escape:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return lambda text: json.dumps(text)[1:-1]
    if kind == "application/x-www-form-urlencoded":
        return lambda text: quote_plus(text, errors="replace")
    if kind in ("text/html", "text/xml", "application/xml") or kind.endswith("+xml"):
        return escape
    return lambda text: text
