"""A batch of commands before the rules see it: what each one says, and what the store knows of all they speak of."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from duemq.model.errors import Diverged
from duemq.model.log.ledger import Answer
from duemq.model.messages.ended import EndedMessage
from duemq.model.messages.import_command import ImportCommand
from duemq.model.messages.key import KEY_BYTES
from duemq.model.messages.message import Change, Schedule, read_change, read_name, read_schedule
from duemq.model.messages.plain import ByName, Malformed, RecordPosition, command_of
from duemq.model.messages.record import StoredRecord


class View(Protocol):
    """What the rules read of a shard's store, in batches.

    A row is empty where its message is pending in a delay file, nothing but cancels speaks of it, and only that it is
    there was looked up.
    """

    def rows(self, keys: Sequence[bytes]) -> list[bytes | None]: ...
    def endings(self, keys: Sequence[bytes]) -> list[EndedMessage | None]: ...
    def current_keys(self, first_keys: Sequence[bytes]) -> list[bytes | None]: ...
    def names(self, names: Sequence[bytes]) -> list[bytes | None]: ...
    def contents(self, sums: Sequence[str]) -> list[int | None]: ...


Other = Change | ByName | ImportCommand | Malformed
"""What a command says that is no schedule."""

_Meaning = bytes | Other
"""The frame of a schedule, or what another command says."""


class CommandBatch(NamedTuple):
    """Commands and what they say: the fields of each schedule (None for another), and by offset what others are."""

    commands: Sequence[StoredRecord]
    schedules: list[Schedule | None]
    others: dict[int, Other]

    def before(self, offset: int) -> CommandBatch:
        """The commands below an offset."""
        count = bisect_left(self.commands, offset, key=lambda command: command.offset)
        others = {at: other for at, other in self.others.items() if at < offset}
        return CommandBatch(self.commands[:count], self.schedules[:count], others)


def understand(
    commands: Sequence[StoredRecord], place: RecordPosition, answers: Mapping[int, Answer] | None
) -> CommandBatch:
    """Read commands; the schedules of plain clients are made into commands of duemq's own."""
    schedules = [read_schedule(frame) for _, _, frame in commands]
    others: dict[int, Other] = {}
    if not all(schedules):
        commands = list(commands)
        for index, (offset, timestamp, frame) in enumerate(commands):
            if schedules[index] is None:
                meaning: _Meaning = read_change(frame) or command_of(frame, timestamp, place, answers is not None)
                if answers is not None:
                    meaning = _obey(offset, meaning, answers.get(offset))
                if isinstance(meaning, bytes):
                    commands[index] = StoredRecord(offset, timestamp, meaning)
                    schedules[index] = read_schedule(meaning)
                else:
                    others[offset] = meaning
    return CommandBatch(commands, schedules, others)


def _obey(offset: int, meaning: _Meaning, answer: Answer | None) -> _Meaning:
    """Obey the ledger also where the master was of another version, which understood less."""
    if answer is Answer.MALFORMED:
        return Malformed("the ledger says so")
    if isinstance(meaning, Malformed):
        raise Diverged(
            f"command {offset} means something to the master of its time and nothing here ({meaning.reason}): "
            "is this an older version of duemq, or one with another number of shards?"
        )
    return meaning


class Lookups:
    """What the store knows of all messages and names that a batch of commands speaks of, read in few calls."""

    def __init__(self, view: View, batch: CommandBatch) -> None:
        first_keys: dict[bytes, None] = {}
        sums: dict[str, None] = {}
        names = {  # whether a change speaks of it
            read_name(frame, fields)[0]: False
            for (_, _, frame), fields in zip(batch.commands, batch.schedules, strict=True)
            if fields is not None and fields.name_bytes
        }
        for other in batch.others.values():
            if isinstance(other, Change):
                first_keys[other.first_key] = None
            elif isinstance(other, ByName):
                names[other.name] = True
            elif isinstance(other, ImportCommand):
                sums[other.sha256] = None
        self.contents = dict(zip(sums, view.contents(list(sums)), strict=True)) if sums else {}
        self.names = dict(zip(names, view.names(list(names)), strict=True))
        for name, changed_by in names.items():
            if changed_by and (holder := self.names[name]) is not None:
                first_keys[holder[:KEY_BYTES]] = None
        # A message has a row under one key only, and none once it ended: most are found by the first look-up.
        firsts = list(first_keys)
        self.rows = dict(zip(firsts, view.rows(firsts), strict=True))
        missing = [first for first in firsts if self.rows[first] is None]
        self.current_keys = {
            first: now for first, now in zip(missing, view.current_keys(missing), strict=True) if now is not None
        }
        elsewhere = list(self.current_keys.values())
        self.rows.update(zip(elsewhere, view.rows(elsewhere), strict=True))
        rowless = [key for key in (self.current_keys.get(first, first) for first in missing) if self.rows[key] is None]
        self.endings = dict(zip(rowless, view.endings(rowless), strict=True))
