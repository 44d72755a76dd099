"""The frames of `duemq-frames/1`, by which one connection carries many requests and answers at a time.
docs/reference/frames.md specifies the protocol.

A frame is its size, not counting the size field (u32), its kind (u8), its stream (u32) and a payload. Numbers are
big-endian.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from duemq.model.errors import DuemqError

PROTOCOL: Final = b"duemq-frames/1"
PATH: Final = b"/v1/frames"
MAX_PAYLOAD: Final = 256 << 10
FIRST_CREDIT: Final = 256 << 10
"""How many bytes of an answer's body the server may send before the client grants more."""
MAX_STREAMS: Final = 256
"""The most requests in flight on one connection."""

# Frames from the client: REQUEST begins a stream, CREDIT (u32) grants bytes, CANCEL ends a stream.
REQUEST, CREDIT, CANCEL, PING = 1, 2, 3, 4
# Frames from the server: ANSWER begins an answer, DATA continues it.
ANSWER, DATA, PONG, GOING_AWAY = 1, 2, 4, 5

LAST, MORE, BROKEN_OFF = 0, 1, 2
"""What follows a part of a body: nothing, because it was the last part; more parts; or nothing, although the body is
incomplete."""

HEAD: Final = Struct(">IBI")
ANSWER_HEAD: Final = Struct(">HBH")  # status, what follows (LAST, MORE or BROKEN_OFF), bytes of header lines
NUMBER: Final = Struct(">I")
_SIZE_BYTES, _REST_OF_HEAD = 4, HEAD.size - 4
_METHOD: Final = re.compile(rb"[A-Z]{1,16}")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([\x20-\x7e\x80-\xff\t]*)")


class FrameError(DuemqError):
    """The other side violated the protocol: the connection is closed, and this text is the reason."""


class Frame(NamedTuple):
    kind: int
    stream: int
    payload: bytes


class FrameRequest(NamedTuple):
    """`fields`: the headers of the request, with lower-case names."""

    method: str
    url: bytes
    fields: list[tuple[bytes, bytes]]
    body: bytes


def pack(kind: int, stream: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(len(payload) + _REST_OF_HEAD, kind, stream) + payload


class FrameReader:
    """Cuts the data that a connection receives into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes that were received of an incomplete frame."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete now. Raises FrameError."""
        source: bytes | bytearray = data
        if self._rest:
            self._rest += data
            source = self._rest
        frames, start, end = [], 0, len(source)
        while end - start >= HEAD.size:
            size, kind, stream = HEAD.unpack_from(source, start)
            if not _REST_OF_HEAD <= size <= MAX_PAYLOAD + _REST_OF_HEAD:
                raise FrameError(f"a frame has a payload of at most {MAX_PAYLOAD} bytes; this one says {size}")
            stop = start + _SIZE_BYTES + size
            if stop > end:
                break
            frames.append(Frame(kind, stream, bytes(source[start + HEAD.size : stop])))
            start = stop
        if source is data:
            self._rest += source[start:]
        else:
            del self._rest[:start]
        return frames


def request_of(payload: bytes) -> FrameRequest:
    """The request in the payload of a REQUEST: `METHOD TARGET`, the header lines, an empty line, the body. Raises
    FrameError."""
    head, separator, body = payload.partition(b"\n\n")
    line, *lines = head.split(b"\n")
    method, _, url = line.partition(b" ")
    if not separator or not _METHOD.fullmatch(method) or not url.startswith(b"/"):
        raise FrameError("a request is METHOD /TARGET, header lines, an empty line and the body")
    fields = []
    for text in lines:
        if (match := _FIELD.fullmatch(text)) is None:
            raise FrameError("a header line of a request is not NAME: VALUE")
        fields.append((match[1].lower(), match[2]))
    return FrameRequest(method.decode(), url, fields, body)


def pack_request(method: bytes, url: bytes, fields: Sequence[tuple[bytes, bytes]], body: bytes) -> bytes:
    """The payload of a REQUEST."""
    lines = b"".join([b"\n%b: %b" % field for field in fields])
    return b"%b %b%b\n\n%b" % (method, url, lines, body)


class FrameAnswer(NamedTuple):
    """The beginning of an answer. `what`: LAST, MORE or BROKEN_OFF; `body`: the first part of the body."""

    status: int
    what: int
    fields: list[tuple[bytes, bytes]]
    body: bytes


def answer_of(payload: bytes) -> FrameAnswer:
    """The beginning of an answer, from the payload of an ANSWER. Raises FrameError."""
    try:
        status, what, size = ANSWER_HEAD.unpack_from(payload)
    except struct_error as error:
        raise FrameError("an answer is too short") from error
    start = ANSWER_HEAD.size
    lines = payload[start : start + size].splitlines()
    fields = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
    return FrameAnswer(status, what, fields, payload[start + size :])
