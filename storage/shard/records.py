"""The imports in a shard's store: requested, imported or refused files.

These records depend only on the logs, so every replica has the same ones. Only the files are local to each replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

import orjson

from duemq.model.errors import CorruptStore
from duemq.model.log.ledger import FileDecision
from duemq.model.messages.import_command import ImportCommand
from duemq.model.state_table import StateTable
from duemq.storage.delay_files.about import About
from duemq.storage.keyspace import CONTENT, IMPORT, U64


class ImportState(StrEnum):
    REQUESTED = "requested"  # the command is in the log and has not been applied
    DUPLICATE = "duplicate"  # another file has the same content: nothing is stored
    PENDING = "pending"
    IMPORTED = "imported"
    REJECTED = "rejected"
    PURGED = "purged"  # nothing is stored any more


class ImportEvent(StrEnum):
    NEW_CONTENT = "new_content"
    KNOWN_CONTENT = "known_content"  # a file with this content is pending or imported
    IMPORT = "import"  # by the master's entry: enough replicas have the file
    REJECT = "reject"
    WINDOW_PURGED = "window_purged"


IMPORT_STATES: Final = StateTable(
    "import",
    ImportState.REQUESTED,
    {
        (ImportState.REQUESTED, ImportEvent.NEW_CONTENT): ImportState.PENDING,
        (ImportState.REQUESTED, ImportEvent.KNOWN_CONTENT): ImportState.DUPLICATE,
        (ImportState.PENDING, ImportEvent.IMPORT): ImportState.IMPORTED,
        (ImportState.PENDING, ImportEvent.REJECT): ImportState.REJECTED,
        (ImportState.IMPORTED, ImportEvent.WINDOW_PURGED): ImportState.PURGED,
        (ImportState.REJECTED, ImportEvent.WINDOW_PURGED): ImportState.PURGED,
    },
)
PENDING, IMPORTED, REJECTED = ImportState.PENDING, ImportState.IMPORTED, ImportState.REJECTED

# The store has the names from format 1, so that older folders can still be read.
_STORED_STATES = {PENDING: "wanted", IMPORTED: "adopted", REJECTED: "refused"}
_STATES = {stored: state for state, stored in _STORED_STATES.items()}


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """The import requested by the command at `offset`, as of the cycle at `at` ms. `reason`: why it was refused."""

    offset: int
    import_command: ImportCommand
    state: ImportState
    at: int
    reason: str = ""

    @staticmethod
    def new(offset: int, import_command: ImportCommand, at: int) -> ImportRecord:
        return ImportRecord(
            offset, import_command, IMPORT_STATES.next(IMPORT_STATES.start, ImportEvent.NEW_CONTENT), at
        )

    def decide(self, decision: FileDecision, at: int) -> ImportRecord:
        event = ImportEvent.REJECT if decision.reason else ImportEvent.IMPORT
        return replace(self, state=IMPORT_STATES.next(self.state, event), at=at, reason=decision.reason)

    @property
    def row(self) -> tuple[bytes, bytes]:
        """The record's key and value in the store."""
        document = {
            "adopt": asdict(self.import_command), "state": _STORED_STATES[self.state], "at": self.at,
            "reason": self.reason,
        }  # fmt: skip
        return IMPORT + U64.pack(self.offset), orjson.dumps(document)

    @property
    def content(self) -> tuple[bytes, bytes]:
        """The key and value of the row that leads from the file's content to this record. It exists unless the file was
        refused."""
        return CONTENT + bytes.fromhex(self.import_command.sha256), U64.pack(self.offset)

    @staticmethod
    def decode(key: bytes, raw: bytes) -> ImportRecord:
        """Raises CorruptStore."""
        try:
            document = orjson.loads(raw)
            command = ImportCommand(**document["adopt"])
            return ImportRecord(
                U64.unpack(key)[0], command, _STATES[document["state"]], document["at"], document["reason"]
            )
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptStore(f"not an import: {raw[:200]!r}") from error


class _Rows(Protocol):
    def each(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]: ...
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...


class ImportRecords:
    """The records in one store. `pending`: those neither imported nor refused yet, by offset, in log order."""

    def __init__(self, store: _Rows) -> None:
        self._store = store
        self.pending: dict[int, ImportRecord] = {one.offset: one for one in self.all() if one.state == PENDING}

    def all(self) -> Iterator[ImportRecord]:
        for key, raw in self._store.each(IMPORT):
            yield ImportRecord.decode(key, raw)

    def part(self, after: int, most: int, below: str = "") -> tuple[list[ImportRecord], int | None]:
        """From the next `most` records after the offset `after`, those whose path begins with `below`; and the offset
        of the last of the `most`, or None at the end. Other records are not decoded, which takes a tenth of the
        time."""
        rows = list(islice(self._store.each(IMPORT, U64.pack(after + 1)), most))
        path = b'"path":' + orjson.dumps(below)[:-1]
        records = [ImportRecord.decode(key, raw) for key, raw in rows if path in raw]
        return records, U64.unpack(rows[-1][0])[0] if len(rows) == most else None

    def get(self, offset: int) -> ImportRecord | None:
        key = U64.pack(offset)
        (raw,) = self._store.get_many([IMPORT + key])
        return None if raw is None else ImportRecord.decode(key, raw)

    def contents(self, sums: Sequence[str]) -> list[int | None]:
        """The offsets of the commands that import these contents (SHA-256 in hex); None for new ones."""
        rows = self._store.get_many([CONTENT + bytes.fromhex(one) for one in sums])
        return [None if raw is None else U64.unpack(raw)[0] for raw in rows]

    def changes(self, commands: dict[int, ImportCommand], decisions: Sequence[FileDecision], at: int) -> ImportChanges:
        """The changes made by a cycle committed at `at` ms: files that it requested, imported or refused."""
        new = [ImportRecord.new(offset, import_command, at) for offset, import_command in commands.items()]
        ended = [self.pending[decision.offset].decide(decision, at) for decision in decisions]
        puts = [row for one in new for row in (one.row, one.content)] + [one.row for one in ended]
        return ImportChanges(new, ended, puts, [one.content[0] for one in ended if one.state == REJECTED])

    def record(self, changes: ImportChanges) -> None:
        """Update `pending` with changes that have been written to the store."""
        for one in changes.new:
            self.pending[one.offset] = one
        for one in changes.ended:
            del self.pending[one.offset]


@dataclass(frozen=True, slots=True)
class LocalFile:
    """An imported file that is in the shard's folder, durable and valid. `checksum`: the checksum of its keys.
    `topics`: messages per topic; None if there are too many topics."""

    about: About
    checksum: int
    path: Path
    topics: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class ImportChanges:
    """The changes that a cycle makes to a store's imports. Puts and deletes include their prefixes."""

    new: Sequence[ImportRecord]
    ended: Sequence[ImportRecord]
    puts: list[tuple[bytes, bytes]]
    deletes: list[bytes]
