"""A batch of commands before the rules are applied: the parsed commands, and the stored state of their messages."""

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
from duemq.model.messages.plain import ByName, MalformedRecord, RecordPosition, command_of
from duemq.model.messages.record import StoredRecord


class View(Protocol):
    """The batched reads from a shard's store that the rules need.

    A row is returned empty if its message is pending in a delay file and only cancels refer to it: then only its
    existence is looked up.
    """

    def rows(self, keys: Sequence[bytes]) -> list[bytes | None]: ...
    def endings(self, keys: Sequence[bytes]) -> list[EndedMessage | None]: ...
    def current_keys(self, first_keys: Sequence[bytes]) -> list[bytes | None]: ...
    def names(self, names: Sequence[bytes]) -> list[bytes | None]: ...
    def contents(self, sums: Sequence[str]) -> list[int | None]: ...


Other = Change | ByName | ImportCommand | MalformedRecord
"""A parsed command other than a schedule."""

_Meaning = bytes | Other
"""The frame of a schedule, or another parsed command."""


class CommandBatch(NamedTuple):
    """Parsed commands: the fields of each schedule (None for any other command), and the other commands by offset."""

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
    """Parse commands. Schedules from plain clients are converted to duemq's own commands."""
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
    """Obey the ledger even if the master ran another version, which understood fewer commands."""
    if answer is Answer.MALFORMED:
        return MalformedRecord("the ledger says so")
    if isinstance(meaning, MalformedRecord):
        raise Diverged(
            f"command {offset} was valid for the master of its time and is not here ({meaning.reason}): "
            "is this an older version of duemq, or one with another number of shards?"
        )
    return meaning


class Lookups:
    """The stored state of all messages and names in a batch of commands, read in few calls."""

    def __init__(self, view: View, batch: CommandBatch) -> None:
        first_keys: dict[bytes, None] = {}
        sums: dict[str, None] = {}
        names = {  # name -> whether a change refers to it
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
        # A message has a row under only one key, and none once it has ended: this first lookup finds most rows.
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
