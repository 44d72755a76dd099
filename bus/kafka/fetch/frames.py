"""Frames inside, Kafka's key, headers and value outside.

A frame that duemq made comes back byte for byte. Of other programs' records, what a frame cannot hold is replaced, so
that no record stops a reader: a null value or header value becomes an empty one, bytes of a header name that are not
UTF-8 become U+FFFD, names are cut at 65,535 bytes, and of more headers than a frame counts the first 65,000
are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import error as StructError

from duemq.model.message import COMMAND_BODY, COMMAND_HEADER, MAX_HEADERS
from duemq.model.record import HEAD, HEADER, frame_of, pack_headers, unpack_headers

KafkaHeaders = list[tuple[str, bytes]]

_COMMAND = COMMAND_HEADER.decode()
_BARE = HEAD.pack(-1, 0, 0)
_HEAD_BYTES, _HEADER_BYTES = HEAD.size, HEADER.size
_COMMAND_AT = _HEAD_BYTES + _HEADER_BYTES
_NAME_BYTES = 0xFFFF


def to_kafka(frame: bytes) -> tuple[bytes | None, bytes, KafkaHeaders]:
    """Key, value and headers of a frame."""
    key_bytes, count, header_bytes = HEAD.unpack_from(frame)
    if key_bytes < 0:
        end = _HEAD_BYTES + header_bytes
        if count == 1 and frame[_COMMAND_AT:COMMAND_BODY] == COMMAND_HEADER:
            return None, frame[end:], [(_COMMAND, frame[COMMAND_BODY:end])]
        return None, frame[end:], list(unpack_headers(frame, _HEAD_BYTES, count)) if count else []
    start = _HEAD_BYTES + key_bytes
    return frame[_HEAD_BYTES:start], frame[start + header_bytes :], list(unpack_headers(frame, start, count))


def to_frame(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    if value is None:
        value = b""
    if key is None:
        if not headers:
            return _BARE + value
        name, envelope = headers[0]
        if len(headers) == 1 and name == _COMMAND and envelope is not None:
            size = len(envelope)
            return b"".join((
                HEAD.pack(-1, 1, COMMAND_BODY - _HEAD_BYTES + size), HEADER.pack(len(COMMAND_HEADER), size),
                COMMAND_HEADER, envelope, value,
            ))  # fmt: skip
    try:
        count, packed = pack_headers(headers)  # type: ignore[arg-type]
        return frame_of(key, count, packed, value)
    except (StructError, TypeError):
        count, packed = pack_headers([(_cut(name), content or b"") for name, content in headers[:MAX_HEADERS]])
        return frame_of(key, count, packed, value)


def _cut(name: str) -> str:
    return name.encode()[:_NAME_BYTES].decode(errors="ignore")
