"""Converts the fields of a message from the SDK's types to the API's form. Pure."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar, Final, Protocol

import orjson

from duemq.client.http.errors import BadField, BadHeader, BadPayload
from duemq.model.timing import shown


class DataclassValue(Protocol):
    """An instance of any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Payload = bytes | str | Mapping[str, Any] | Sequence[Any] | DataclassValue | None
"""A dataclass becomes a JSON object. None becomes null, which is a tombstone in a compacted topic; it is neither an
empty payload nor the text `null`."""
Text = str | int
"""An int is sent as its digits."""
HeaderValue = str | int | bytes | None
Headers = Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]]
"""A mapping by name, or pairs of name and value, which preserve repeated names and their order. None is null."""
HeaderList = tuple[tuple[str, bytes | None], ...]

_MEANT: Final = {
    "delay": "deliver_after", "after": "deliver_after", "countdown": "deliver_after", "at": "deliver_at",
    "eta": "deliver_at", "when": "deliver_at", "due": "deliver_at", "ttl": "expires_at", "expires": "expires_at",
    "tags": "labels", "message_id": "name", "id": "name",
}  # fmt: skip
"""Names that other libraries use, with the SDK's argument for each."""


def check_arguments(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises TypeError, as Python does, for a keyword argument that `function` does not have."""
    for name in given:
        if name not in known:
            meant = [_MEANT[name]] if _MEANT.get(name) in known else get_close_matches(name, known, 1)
            hint = f"; did you mean {meant[0]!r}?" if meant else f"; it has {', '.join(sorted(known))}"
            raise TypeError(f"{function}() has no argument {name!r}{hint}")


def text_of(field: str, value: Any) -> str:
    """Text, or an int as its digits. Raises `BadField`."""
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        raise BadField("bad_field", f"{field} must be text or an int, not {shown(value)}", field)
    if not _is_unicode(value):
        raise BadField("bad_field", f"{field} is not Unicode text: {shown(value)}", field)
    return value


def text_list(field: str, values: Any) -> list[str]:
    """A single text becomes a list of one. Raises `BadField`."""
    if isinstance(values, str):
        return [text_of(field, values)]
    if isinstance(values, bytes | Mapping) or not isinstance(values, Iterable):
        raise BadField("bad_field", f"{field} must be a list of texts, not {shown(values)}", field)
    return [text_of(field, value) for value in values]


def idempotency_header(key: Text) -> str:
    """The value of the header `Idempotency-Key`. Raises `BadField`."""
    text = text_of("idempotency_key", key)
    if not text.isprintable():
        detail = f"idempotency_key has 1 to 255 printable characters, not {shown(text)}"
        raise BadField("bad_field", detail, "idempotency_key")
    if text.startswith('"') or text != text.strip():  # otherwise the server would unquote it, or strip its spaces
        return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))
    return text


def header_fields(headers: Any) -> dict[str, Any]:
    """The field `headers`, which servers of all versions support, if it can represent all headers; otherwise
    `header_list`. Raises `BadHeader`."""
    if isinstance(headers, str | bytes) or not isinstance(headers, Iterable):
        raise BadHeader("bad_header", f"headers must be a mapping or pairs, not {shown(headers)}", "headers")
    pairs = []
    for pair in headers.items() if isinstance(headers, Mapping) else headers:
        if not isinstance(pair, Sequence) or isinstance(pair, str | bytes) or len(pair) != 2:
            raise BadHeader("bad_header", f"a header is a name and a value, not {shown(pair)}", "headers")
        name, value = pair
        if not isinstance(name, str) or not _is_unicode(name):
            raise BadHeader("bad_header", f"the name of a header must be text, not {shown(name)}", "headers")
        pairs.append((name, _header_value(name, value)))
    by_name = dict(pairs)
    if len(by_name) == len(pairs) and all(isinstance(value, str) for _, value in pairs):
        return {"headers": by_name}
    return {"header_list": pairs}


def read_header_list(body: Mapping[str, Any]) -> HeaderList:
    """All headers, in order, of a message or record in the server's JSON."""
    pairs = body["header_list"] if "header_list" in body else (body.get("headers") or {}).items()
    return tuple((name, _read_value(value)) for name, value in pairs)


def payload_fields(payload: Payload) -> dict[str, Any]:
    """The fields for a payload. Raises `BadPayload` for a value that JSON cannot represent."""
    if payload is None:
        return {"payload": None}
    if not isinstance(payload, bytes):
        try:
            payload = payload.encode() if isinstance(payload, str) else orjson.dumps(payload)
        except (TypeError, UnicodeEncodeError) as error:
            detail = f"payload: {error}; send numbers and text, or your own text: json.dumps(payload, default=str)"
            raise BadPayload("bad_field", detail, "payload") from error
    return bytes_fields("payload", payload)


def bytes_fields(name: str, value: bytes) -> dict[str, str]:
    """The field `name`, or `NAME_base64` for bytes that are not UTF-8."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _header_value(name: str, value: Any) -> Any:
    if value is None or (isinstance(value, str) and _is_unicode(value)):
        return value
    if type(value) is int:
        return str(value)
    if not isinstance(value, bytes):
        what = f"the value of header {name} must be text, an int, bytes or None, not {shown(value)}"
        raise BadHeader("bad_header", what, "headers")
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _read_value(value: Any) -> bytes | None:
    if isinstance(value, Mapping):
        return base64.b64decode(value["base64"])
    return None if value is None else value.encode()


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can encode the text: a file name or a command-line argument may contain surrogates."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False
