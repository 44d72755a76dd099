"""Message ids: opaque, URL-safe text of 32 characters that locates a message and cannot be forged.

An id contains the shard, first due time, offset and row, and a 48-bit keyed checksum (BLAKE2b) over them. A lookup
needs no index, an id stays valid when the message is moved, and a forged id is simply unknown. The checksum's key is
generated once per cluster.

A message without delay never enters a shard. Its id has the shard `DIRECT`, the time at which duemq received it, a
unique number and the CRC-32 of its topic. If such an id was issued, the message was delivered at that time.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from binascii import b2a_base64
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from duemq.model.messages.key import make_key
from duemq.model.topics.rules import ID_CHARS

DIRECT = 0xFFFF
MAX_OFFSET = 1 << 48
RESTORED = "restored"
"""A file in the folder of a restored log. The log lost the records that came after its backup, and must not assign
their offsets again, because ids contain offsets. The file exists until the log has left a gap (ADR 59)."""
_MAC_BYTES = 6
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_SPLIT = Struct(">HHIHII")  # shard, due 16+32 bits, offset 16+32 bits, row
SPLIT_FIELDS = [
    ("shard", ">u2"), ("due_high", ">u2"), ("due", ">u4"), ("offset_high", ">u2"), ("offset", ">u4"), ("row", ">u4"),
]  # fmt: skip
"""The part of an id before its checksum, as a numpy dtype."""
_SPLIT_DTYPE = np.dtype(SPLIT_FIELDS)


class MessageId(NamedTuple):
    """The content of an id. `due` is the first due time in ms; `offset` < `MAX_OFFSET`."""

    shard: int
    due: int
    offset: int
    row: int = 0

    @property
    def direct(self) -> bool:
        return self.shard == DIRECT

    @property
    def key(self) -> bytes:
        """The first key of the message."""
        return make_key(self.due, self.offset, self.row)


def peek(text: str) -> MessageId:
    """Read an id without checking it, for tools that only sort or count. Never base a decision on it. Raises
    ValueError."""
    return _unpack(urlsafe_b64decode(text))


def _unpack(raw: bytes) -> MessageId:
    if len(raw) != _SPLIT.size + _MAC_BYTES:
        raise ValueError("not an id")
    shard, due_high, due, offset_high, offset, row = _SPLIT.unpack_from(raw)
    return MessageId(shard, due_high << 32 | due, offset_high << 32 | offset, row)


class IdCodec:
    """Issues and checks ids with one cluster's secret (16 to 64 bytes)."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self._keyed = blake2b(key=secret, digest_size=_MAC_BYTES)

    def issue(self, shard: int, due: int, offset: int, row: int = 0) -> str:
        return self.issue_bytes(shard, due, offset, row).decode()

    def issue_bytes(self, shard: int, due: int, offset: int, row: int = 0) -> bytes:
        """The id as ASCII bytes, as in the header `duemq-id`."""
        body = _SPLIT.pack(shard, due >> 32, due & 0xFFFF_FFFF, offset >> 32, offset & 0xFFFF_FFFF, row)
        mac = self._keyed.copy()
        mac.update(body)
        return b2a_base64(body + mac.digest(), newline=False).translate(_URL_SAFE)

    def issue_many(self, shard: int, dues: npt.NDArray[np.int64], offset: int, first_row: int) -> list[bytes]:
        """The ids of an imported file's rows from `first_row` on, which are due at `dues`."""
        fields = np.empty(len(dues), _SPLIT_DTYPE)
        fields["shard"], fields["row"] = shard, np.arange(first_row, first_row + len(dues))
        fields["due_high"], fields["due"] = dues >> 32, dues & 0xFFFF_FFFF
        fields["offset_high"], fields["offset"] = offset >> 32, offset & 0xFFFF_FFFF
        bodies, size, keyed = fields.tobytes(), _SPLIT.size, self._keyed.copy
        parts: list[bytes] = []
        for at in range(0, len(bodies), size):
            body = bodies[at : at + size]
            mac = keyed()
            mac.update(body)
            parts += (body, mac.digest())
        # An id has 24 bytes, a multiple of 3, so the base64 of many joined ids is the joined base64 of each.
        text = b2a_base64(b"".join(parts), newline=False).translate(_URL_SAFE)
        return [text[at : at + ID_CHARS] for at in range(0, len(text), ID_CHARS)]

    def read(self, text: str) -> MessageId | None:
        """The content of an id, or None if it was never issued."""
        if len(text) != ID_CHARS or not text.isascii():
            return None
        try:
            message_id = _unpack(urlsafe_b64decode(text))
        except ValueError:
            return None
        # Issuing the id again and comparing the text also refuses other spellings of the same bytes.
        return message_id if self.issue(*message_id) == text else None
