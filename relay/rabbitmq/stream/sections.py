"""Encodes a message's AMQP 1.0 sections, which a stream stores. It supports only the types that our messages need.

`rstream` can encode them, too, but takes eight times as long (39 µs per message) and drops an empty body.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

Value = str | bytes | int | None
"""A string, binary data, a 64-bit integer, or null."""

_LONG: Final = Struct(">Bq")
_TIMESTAMP: Final = Struct(">Bq")
_SIZE: Final = Struct(">BI")
_COMPOUND: Final = Struct(">BII")
_PROPERTIES: Final = b"\x00\x53\x73"
_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"
_DATA: Final = b"\x00\x53\x75"
_NULL: Final = b"\x40"


def value(of: Value) -> bytes:
    if of is None:
        return _NULL
    if isinstance(of, int):
        return _LONG.pack(0x81, of)
    code = 0xB0 if isinstance(of, bytes) else 0xB1
    raw = of if isinstance(of, bytes) else of.encode(errors="replace")
    if len(raw) <= 0xFF:
        return bytes((code - 0x10, len(raw))) + raw
    return _SIZE.pack(code, len(raw)) + raw


def symbol(text: str) -> bytes:
    """A symbol. `text`: ASCII, up to 255 characters."""
    return bytes((0xA3, len(text))) + text.encode("ascii")


def timestamp(ms: int) -> bytes:
    return _TIMESTAMP.pack(0x83, ms)


def properties(
    message_id: str, subject: str, content_type: str | None, content_encoding: str | None, created_ms: int | None
) -> bytes:
    """The properties section. `content_type` and `content_encoding`: see `symbol`. `created_ms`: the property
    `creation-time`, epoch ms."""
    types = [symbol(each) if each else _NULL for each in (content_type, content_encoding)]
    fields = [value(message_id), _NULL, _NULL, value(subject), _NULL, _NULL, *types]
    if created_ms is not None:
        fields += [_NULL, timestamp(created_ms)]
    body = b"".join(fields)
    return _PROPERTIES + _COMPOUND.pack(0xD0, len(body) + 4, len(fields)) + body


def application_properties(pairs: Sequence[tuple[str, Value]]) -> bytes:
    """The application properties section. Names must be unique."""
    body = b"".join([value(each) for pair in pairs for each in pair])
    return _APPLICATION_PROPERTIES + _COMPOUND.pack(0xD1, len(body) + 4, 2 * len(pairs)) + body


def data(body: bytes) -> bytes:
    return _DATA + _SIZE.pack(0xB0, len(body)) + body
