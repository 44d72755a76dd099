"""A record as a broker carries it (key, headers, value), and its packed form, the *frame*.

Inside duemq records travel as frames: one `bytes` object each, so that an embedded log stores them as they are and a
batch of thousands is one join. A bus for a real broker unpacks them at its border.

    frame   = key length (i32, -1 = no key) | header count (u16) | header bytes (u32) | key | headers | null marks
            | value
    header  = name length (u16) | value length (u32) | name (UTF-8) | value
    null marks (u16 each; none in a frame without nulls)
            = the number of headers after each null header | 0xFFFE after these | 0xFFFF if the value is null

A null value has no bytes. The header bytes include the null marks, so that readers of version 0.1.0 skip them and read
empty values (docs/adr/0053-null-marks.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

HEAD = Struct(">iHI")
HEADER = Struct(">HI")
NULL_HEADERS, NULL_VALUE = b"\xff\xfe", b"\xff\xff"  # the last of the null marks
_NULL_BYTES, _NO_HEADER = 2, 0xFFFE

Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]
Partition = tuple[str, int]  # topic and partition number


class Record(NamedTuple):
    """What a consumer sees of a frame."""

    key: bytes | None
    headers: Headers
    value: bytes | None

    @property
    def payload(self) -> bytes:
        """The value; empty for null."""
        return self.value or b""

    def header(self, name: str) -> bytes | None:
        """The value of the first header of this name."""
        return next((value for header_name, value in self.headers if header_name == name), None)


class StoredRecord(NamedTuple):
    """A frame in a log. `timestamp`: when it was appended, epoch ms, on the log's clock."""

    offset: int
    timestamp: int
    frame: bytes


def pack_headers(headers: Iterable[Header]) -> tuple[int, bytes]:
    """How many there are, and their packed form, with null marks. Other packed headers may be put in front of it."""
    parts: list[bytes] = []
    nulls: list[int] = []
    count = 0
    for name, value in headers:
        raw = name.encode()
        if value is None:
            nulls.append(count)
            value = b""
        parts += (HEADER.pack(len(raw), len(value)), raw, value)
        count += 1
    if nulls:
        parts += ((count - 1 - at).to_bytes(_NULL_BYTES, "big") for at in nulls)
        parts.append(NULL_HEADERS)
    return count, b"".join(parts)


def unpack_headers(packed: bytes, start: int, count: int, end: int) -> Headers:
    """The headers in `packed[start:end]`, null marks included."""
    headers: list[Header] = []
    for _ in range(count):
        name_bytes, value_bytes = HEADER.unpack_from(packed, start)
        start += HEADER.size
        middle = start + name_bytes
        value_end = middle + value_bytes
        headers.append((packed[start:middle].decode(), packed[middle:value_end]))
        start = value_end
    if start < end:
        for at in range(start, end - 1, _NULL_BYTES):
            after = int.from_bytes(packed[at : at + _NULL_BYTES], "big")
            if after < min(count, _NO_HEADER) and not headers[~after][1]:
                headers[~after] = headers[~after][0], None
    return tuple(headers)


def headers_end(packed: bytes, start: int, count: int) -> int:
    """Where the headers from `start` on end and their null marks begin; -1 if there are fewer than `count`."""
    lengths, size = HEADER.unpack_from, HEADER.size
    try:
        for _ in range(count):
            name_bytes, value_bytes = lengths(packed, start)
            start += size + name_bytes + value_bytes
    except StructError:
        return -1
    return start


def are_nulls(packed: bytes) -> bool:
    """Whether these bytes are null marks."""
    return len(packed) % _NULL_BYTES == 0 and packed[-_NULL_BYTES:] in (NULL_HEADERS, NULL_VALUE)


def no_value(frame: bytes, start: int, count: int, end: int) -> bytes | None:
    """The value of a frame without bytes for it: empty or null. `frame[start:end]`: its headers and null marks."""
    is_null = frame[end - _NULL_BYTES : end] == NULL_VALUE and headers_end(frame, start, count) < end
    return None if is_null else b""


def headers_of(frame: bytes) -> Headers:
    key_bytes, count, header_bytes = HEAD.unpack_from(frame)
    start = HEAD.size + max(key_bytes, 0)
    return unpack_headers(frame, start, count, start + header_bytes)


def pack_record(key: bytes | None, headers: Iterable[Header], value: bytes | None) -> bytes:
    count, packed = pack_headers(headers)
    return frame_of(key, count, packed, value)


def frame_of(key: bytes | None, header_count: int, headers: bytes, value: bytes | None) -> bytes:
    """A frame of headers that are packed already."""
    if value is None:
        headers, value = headers + NULL_VALUE, b""
    if key is None:
        return b"".join((HEAD.pack(-1, header_count, len(headers)), headers, value))
    return b"".join((HEAD.pack(len(key), header_count, len(headers)), key, headers, value))


def unpack_record(frame: bytes) -> Record:
    key_bytes, count, header_bytes = HEAD.unpack_from(frame)
    start = HEAD.size + max(key_bytes, 0)
    end = start + header_bytes
    key = None if key_bytes < 0 else frame[HEAD.size : start]
    return Record(key, unpack_headers(frame, start, count, end), frame[end:] or no_value(frame, start, count, end))


def shorten(frame: bytes, most: int) -> bytes:
    """The frame, or where it has more than `most` bytes one without its value, and if need be without its key and all
    but its first headers. The header `duemq-shortened` says how many bytes it had."""
    if len(frame) <= most:
        return frame
    record = unpack_record(frame)
    notice = (("duemq-shortened", b"%d" % len(frame)),)
    headers = record.headers
    value = None if record.value is None else b""
    short = pack_record(record.key, notice + headers, value)
    while len(short) > most and headers:
        headers = headers[: len(headers) // 2]
        short = pack_record(None, notice + headers, value)
    return short
