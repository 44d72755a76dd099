"""Messages that ended without delivery, as a shard's store keeps them."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from duemq.model.callers.caller import is_caller, job_of
from duemq.model.messages.row_notes import tags_of

CANCELLED, DEAD, PURGED = 1, 2, 3

_ENDED = Struct(">BQH")


class EndedMessage(NamedTuple):
    """A message that was cancelled, died, or was purged from the dead letters, `at` this time (epoch ms). `row` has no
    payload, unless the message is dead and may be redriven. `reason`: why it died; for a cancel the caller
    (`model/callers/caller.py`), or the tag if a job cancelled it (`model/messages/row_notes.py`).

    `row` is empty if the message was cancelled in a delay file: the row is read from the file later.
    """

    status: int
    at: int
    reason: str
    row: bytes

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the job steps that changed the message; if a step cancelled it, only the tag of that step."""
        if self.status != CANCELLED:
            return tags_of(self.row)
        return () if not self.reason or is_caller(self.reason) else (self.reason,)

    @property
    def cancelled_by(self) -> str:
        """The caller that cancelled the message (`model/callers/caller.py`); empty if unknown."""
        return self.reason if is_caller(self.reason) else job_of(self.reason)

    def encode(self) -> bytes:
        reason = self.reason.encode()
        return _ENDED.pack(self.status, self.at, len(reason)) + reason + self.row

    @staticmethod
    def decode(raw: bytes) -> EndedMessage:
        status, at, reason_bytes = _ENDED.unpack_from(raw)
        middle = _ENDED.size + reason_bytes
        return EndedMessage(status, at, raw[_ENDED.size : middle].decode(), raw[middle:])
