"""Finds the exact text of `payload_json`. The values that orjson reads lose digits, spaces and repeated names.

orjson has read the body before, so it is valid JSON in UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from duemq.model.errors import Rejected

PAYLOAD_JSON = "payload_json"


class JsonText(str):
    """The exact text of a JSON value."""


_skip = re.compile(r"[ \t\n\r]*").match
_decode = json.JSONDecoder(parse_int=float).raw_decode  # int() raises ValueError for very many digits


def payload_text(body: bytes | bytearray) -> JsonText | None:
    """The text of the payload of one message; None if it has none. Raises Rejected `bad_field`."""
    text = body.decode()
    return _payload_of(text, _end(text, 0))[0]


def payload_texts(body: bytes | bytearray) -> Iterator[JsonText | None]:
    """The text of the payload in each item of a batch, which has no field but `messages`. See `payload_text`."""
    text = body.decode()
    at = _end(text, _end(text, 0) + 1)
    _, at = _decode(text, at)
    at = _end(text, _end(text, _end(text, at) + 1) + 1)
    while text[at] != "]":
        if text[at] == "{":
            payload, at = _payload_of(text, at)
        else:
            payload, at = None, _value_end(text, at)
        yield payload
        at = _next(text, at)
    if text[_end(text, at + 1)] != "}":
        raise Rejected("bad_json", "messages is given twice", "messages")


def _payload_of(text: str, at: int) -> tuple[JsonText | None, int]:
    """The text of the payload in the object at `at`, and where the object ends. If a name is repeated, the last
    value is used."""
    payload = None
    at = _end(text, at + 1)
    while text[at] != "}":
        name, at = _decode(text, at)
        start = _end(text, _end(text, at) + 1)
        end = _value_end(text, start)
        if name == PAYLOAD_JSON:
            payload = JsonText(text[start:end])
        at = _next(text, end)
    return payload, at + 1


def _value_end(text: str, at: int) -> int:
    try:
        return _decode(text, at)[1]
    except RecursionError:
        detail = f"{PAYLOAD_JSON} is nested too deeply; send it as text, in payload"
        raise Rejected("bad_field", detail, PAYLOAD_JSON) from None


def _next(text: str, at: int) -> int:
    """Where the next member or item begins, or the bracket that ends them."""
    at = _end(text, at)
    return _end(text, at + 1) if text[at] == "," else at


def _end(text: str, at: int) -> int:
    """Where the white space at `at` ends."""
    space = _skip(text, at)
    assert space is not None
    return space.end()
