"""A record as a broker carries it (key, headers, value), and its packed form, the *frame*.

Inside duemq records travel as frames: one `bytes` object each, so that an embedded log stores them as they are and a
batch of thousands is one join. A bus for a real broker unpacks them at its border.

    frame   = key length (i32, -1 = no key) | header count (u16) | header bytes (u32) | key | headers | value
    header  = name length (u16) | value length (u32) | name (UTF-8) | value
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

HEAD = Struct(">iHI")
HEADER = Struct(">HI")

Headers = tuple[tuple[str, bytes], ...]
Partition = tuple[str, int]  # topic and partition number


class Record(NamedTuple):
    """What a consumer sees of a frame."""

    key: bytes | None
    headers: Headers
    value: bytes

    def header(self, name: str) -> bytes | None:
        """The value of the first header of this name."""
        return next((value for header_name, value in self.headers if header_name == name), None)


class StoredRecord(NamedTuple):
    """A frame in a log. `timestamp`: when it was appended, epoch ms, on the log's clock."""

    offset: int
    timestamp: int
    frame: bytes


def pack_headers(headers: Iterable[tuple[str, bytes]]) -> tuple[int, bytes]:
    """How many there are, and their packed form."""
    parts: list[bytes] = []
    count = 0
    for name, value in headers:
        raw = name.encode()
        parts += (HEADER.pack(len(raw), len(value)), raw, value)
        count += 1
    return count, b"".join(parts)


def unpack_headers(packed: bytes, start: int, count: int) -> Headers:
    headers = []
    for _ in range(count):
        name_bytes, value_bytes = HEADER.unpack_from(packed, start)
        start += HEADER.size
        middle = start + name_bytes
        end = middle + value_bytes
        headers.append((packed[start:middle].decode(), packed[middle:end]))
        start = end
    return tuple(headers)


def headers_of(frame: bytes) -> Headers:
    key_bytes, count, _ = HEAD.unpack_from(frame)
    return unpack_headers(frame, HEAD.size + max(key_bytes, 0), count)


def pack_record(key: bytes | None, headers: Iterable[tuple[str, bytes]], value: bytes) -> bytes:
    count, packed = pack_headers(headers)
    return frame_of(key, count, packed, value)


def frame_of(key: bytes | None, header_count: int, headers: bytes, value: bytes) -> bytes:
    """A frame of headers that are packed already."""
    if key is None:
        return b"".join((HEAD.pack(-1, header_count, len(headers)), headers, value))
    return b"".join((HEAD.pack(len(key), header_count, len(headers)), key, headers, value))


def unpack_record(frame: bytes) -> Record:
    key_bytes, count, header_bytes = HEAD.unpack_from(frame)
    start = HEAD.size + max(key_bytes, 0)
    key = None if key_bytes < 0 else frame[HEAD.size : start]
    return Record(key, unpack_headers(frame, start, count), frame[start + header_bytes :])


def shorten(frame: bytes, most: int) -> bytes:
    """The frame, or where it has more than `most` bytes one without its value, and if need be without its key and all
    but its first headers. The header `duemq-shortened` says how many bytes it had."""
    if len(frame) <= most:
        return frame
    record = unpack_record(frame)
    notice = (("duemq-shortened", b"%d" % len(frame)),)
    headers = record.headers
    short = pack_record(record.key, notice + headers, b"")
    while len(short) > most and headers:
        headers = headers[: len(headers) // 2]
        short = pack_record(None, notice + headers, b"")
    return short
