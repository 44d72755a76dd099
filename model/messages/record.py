"""A record as a broker has it (key, headers, value), and its packed form, the *frame*.

Inside duemq, records are passed as frames. A frame is one `bytes` object, so an embedded log stores frames as they are,
and a batch of thousands needs only one join. A bus for a real broker unpacks each frame before it sends the record.

    frame   = key length (i32, -1 = no key) | header count (u16) | header bytes (u32) | key | headers | null marks
            | value
    header  = name length (u16) | value length (u32) | name (UTF-8) | value
    null marks (u16 each; none in a frame without nulls)
            = for each null header, how many headers follow it | 0xFFFE if there are any | 0xFFFF if the value is null

A null value has no bytes. The null marks are counted in the header bytes, so readers of version 0.1.0 skip them and
read empty values (docs/adr/0053-null-marks.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

HEAD = Struct(">iHI")
HEADER = Struct(">HI")
NULL_HEADERS, NULL_VALUE = b"\xff\xfe", b"\xff\xff"  # the last one of the null marks
_NULL_BYTES, _NO_HEADER = 2, 0xFFFE

Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]
Partition = tuple[str, int]  # topic and partition number


class Record(NamedTuple):
    """A frame as a consumer sees it."""

    key: bytes | None
    headers: Headers
    value: bytes | None

    @property
    def payload(self) -> bytes:
        """The value; empty for null."""
        return self.value or b""

    def header(self, name: str) -> bytes | None:
        """The value of the first header with this name."""
        return next((value for header_name, value in self.headers if header_name == name), None)


class StoredRecord(NamedTuple):
    """A frame in a log. `timestamp`: when it was appended, epoch ms, on the log's clock."""

    offset: int
    timestamp: int
    frame: bytes


def pack_headers(headers: Iterable[Header]) -> tuple[int, bytes]:
    """The number of headers, and their packed form with null marks, to which other packed headers may be prepended."""
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
    """The headers in `packed[start:end]`, which includes their null marks."""
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
    """Where the `count` headers from `start` on end and their null marks begin; -1 if there are fewer headers."""
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
    """The value of a frame that has no bytes for a value: empty or null. `frame[start:end]`: its headers and null
    marks."""
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
    """A frame from its parts. `headers`: packed."""
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
    """The frame; if it has more than `most` bytes, a frame without the value and, if necessary, without the key and all
    but the first headers. Its header `duemq-shortened` has the original size in bytes."""
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
