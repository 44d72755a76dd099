"""How a message ended otherwise than by delivery, as a shard's store keeps it."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from duemq.model.callers.caller import is_caller, job_of
from duemq.model.messages.row_notes import tags_of

CANCELLED, DEAD, PURGED = 1, 2, 3

_ENDED = Struct(">BQH")


class EndedMessage(NamedTuple):
    """A message that was cancelled, died, or was purged from the dead letters, `at` ms. `row` is without its payload,
    unless it may be redriven (dead). `reason`: of its death; of a cancel who asked for it (`model/callers/caller.py`),
    and if that was a job its tag (`model/messages/row_notes.py`).

    `row` is empty where a message was cancelled in a delay file: what is kept of it is read from there later.
    """

    status: int
    at: int
    reason: str
    row: bytes

    @property
    def tags(self) -> tuple[str, ...]:
        """Of the steps of jobs that changed the message; of a cancelled one, of the step that cancelled it alone."""
        if self.status != CANCELLED:
            return tags_of(self.row)
        return () if not self.reason or is_caller(self.reason) else (self.reason,)

    @property
    def cancelled_by(self) -> str:
        """Who cancelled the message (`model/callers/caller.py`); empty where that is not known."""
        return self.reason if is_caller(self.reason) else job_of(self.reason)

    def encode(self) -> bytes:
        reason = self.reason.encode()
        return _ENDED.pack(self.status, self.at, len(reason)) + reason + self.row

    @staticmethod
    def decode(raw: bytes) -> EndedMessage:
        status, at, reason_bytes = _ENDED.unpack_from(raw)
        middle = _ENDED.size + reason_bytes
        return EndedMessage(status, at, raw[_ENDED.size : middle].decode(), raw[middle:])
