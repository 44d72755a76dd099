"""How a message ended otherwise than by delivery, as a shard's store keeps it."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

CANCELLED, DEAD, PURGED = 1, 2, 3

_ENDED = Struct(">BQH")


class EndedMessage(NamedTuple):
    """A message that was cancelled, died, or was purged from the dead letters, `at` ms. `row` is without its payload,
    unless it may be redriven (dead). `reason`: of its death; of a cancel by a job its tag (`model/row_notes.py`).

    `row` is empty where a message was cancelled in a delay file: what is kept of it is read from there later.
    """

    status: int
    at: int
    reason: str
    row: bytes

    def encode(self) -> bytes:
        reason = self.reason.encode()
        return _ENDED.pack(self.status, self.at, len(reason)) + reason + self.row

    @staticmethod
    def decode(raw: bytes) -> EndedMessage:
        status, at, reason_bytes = _ENDED.unpack_from(raw)
        middle = _ENDED.size + reason_bytes
        return EndedMessage(status, at, raw[_ENDED.size : middle].decode(), raw[middle:])
