"""Fills the placeholders of `model/destinations/template.py` with a message's values, escaped for their context.

In a body, values are escaped according to the content type: for the inside of a JSON string, for a form field, for XML
or for HTML. In a form, XML and HTML, `payload_json` is treated as text like any other value. In a header, everything
except visible ASCII is percent-encoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from html import escape
from typing import Final
from urllib.parse import quote, quote_plus

import orjson

from duemq.client.consumer.message import Message
from duemq.model.destinations.body import Kind, kind_of
from duemq.model.destinations.template import Placeholder, parse_template
from duemq.relay.http.times import timestamp

Escape = Callable[[str], str]

_VISIBLE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
"""Characters that stay unchanged in a header value. The percent sign is encoded, so that decoding is unambiguous."""


class Template:
    """A text with placeholders. `escape_`: escapes values; `of_json`: escapes `payload_json`. Raises ValueError for an
    unknown placeholder."""

    def __init__(self, text: str, escape_: Escape, of_json: Escape) -> None:
        self._parts: Final = parse_template(text)
        self._escape, self._of_json = escape_, of_json

    def render(self, message: Message) -> str:
        escape_, of_json = self._escape, self._of_json
        return "".join([
            part if isinstance(part, str)
            else of_json(payload_json(message)) if part.name == "payload_json"
            else escape_(_value(part, message))
            for part in self._parts
        ])  # fmt: skip


def body_template(text: str, content_type: str) -> Template:
    """A template for a body of this content type."""
    kind = kind_of(content_type) or _guessed(text)
    escape_ = _ESCAPES[kind]
    of_json = _as_it_is if kind in ("json", "plain") else _in_one_line if kind == "lines" else escape_
    return Template(text, escape_, of_json)


def header_template(text: str) -> Template:
    """A template for a header value."""
    return Template(text, header_text, header_text)


def header_text(text: str) -> str:
    """A text as a header value: visible ASCII except `%` is unchanged, anything else is percent-encoded UTF-8."""
    return quote(text, safe=_VISIBLE, errors="replace")


def payload_json(message: Message) -> str:
    """The payload if it is JSON, otherwise its text as a JSON string; `null` for a null payload."""
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


def _as_it_is(text: str) -> str:
    return text


def _in_one_line(text: str) -> str:
    """JSON text in one line. Replacing line ends is safe, because in JSON they occur only between tokens."""
    return text.replace("\n", " ").replace("\r", " ")


def _in_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _in_form(text: str) -> str:
    return quote_plus(text, errors="replace")


_ESCAPES: Final[Mapping[Kind, Escape]] = {
    "json": _in_json, "lines": _in_json, "form": _in_form, "markup": escape, "plain": _as_it_is,
}  # fmt: skip


def _guessed(text: str) -> Kind:
    """Guess the kind of a body whose content type does not determine it. Version 0.1.0 accepted such declarations."""
    first = text.lstrip()[:1]
    return "json" if first in ("{", "[") else "markup" if first == "<" else "plain"
