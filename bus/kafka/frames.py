"""Frames inside, Kafka's key, headers and value outside.

A frame that duemq made comes back byte for byte. Of other programs' records, what a frame cannot hold is replaced, so
that no record stops a reader: bytes of a header name that are not UTF-8 become U+FFFD, names are cut at 65,535 bytes,
and of more headers than a frame counts the first 65,000 are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import error as StructError

from duemq.model.messages.message import COMMAND_BODY, COMMAND_HEADER, MAX_HEADERS
from duemq.model.messages.record import HEAD, HEADER, frame_of, no_value, pack_headers, unpack_headers

KafkaHeaders = list[tuple[str, bytes | None]]

_COMMAND = COMMAND_HEADER.decode()
_BARE = HEAD.pack(-1, 0, 0)
_HEAD_BYTES, _HEADER_BYTES = HEAD.size, HEADER.size
_COMMAND_AT = _HEAD_BYTES + _HEADER_BYTES
_NAME_BYTES = 0xFFFF


def to_kafka(frame: bytes) -> tuple[bytes | None, bytes | None, KafkaHeaders]:
    """Key, value and headers of a frame."""
    key_bytes, count, header_bytes = HEAD.unpack_from(frame)
    if key_bytes < 0:
        start, end = _HEAD_BYTES, _HEAD_BYTES + header_bytes
        if count == 1 and frame[_COMMAND_AT:COMMAND_BODY] == COMMAND_HEADER:
            return None, frame[end:], [(_COMMAND, frame[COMMAND_BODY:end])]
        key = None
    else:
        start = _HEAD_BYTES + key_bytes
        key, end = frame[_HEAD_BYTES:start], start + header_bytes
    value = frame[end:] or no_value(frame, start, count, end)
    return key, value, list(unpack_headers(frame, start, count, end)) if count else []


def to_frame(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    if key is None:
        if not headers and value is not None:
            return _BARE + value
        if len(headers) == 1 and headers[0][0] == _COMMAND:
            envelope = headers[0][1] or b""  # a command has its null marks in the envelope
            size = len(envelope)
            return b"".join((
                HEAD.pack(-1, 1, COMMAND_BODY - _HEAD_BYTES + size), HEADER.pack(len(COMMAND_HEADER), size),
                COMMAND_HEADER, envelope, value or b"",
            ))  # fmt: skip
    try:
        count, packed = pack_headers(headers)
        return frame_of(key, count, packed, value)
    except StructError:
        count, packed = pack_headers([(_cut(name), content) for name, content in headers[:MAX_HEADERS]])
        return frame_of(key, count, packed, value)


def _cut(name: str) -> str:
    return name.encode()[:_NAME_BYTES].decode(errors="ignore")
