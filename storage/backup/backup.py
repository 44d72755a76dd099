"""One backup: a data folder at rest, with a `backup.json` that lists every file with its checksum.

A folder with a `backup.json` is complete. Files that did not change since the previous backup are hard links to its
files, so nothing may ever write into a backup: a server refuses to run on it, and a restore copies. To raise `FORMAT`,
document in CHANGELOG.md which version restores old backups, or keep a reader for them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from duemq.model.errors import CorruptStore, FolderRefused
from duemq.model.rocksdb_errors import translate_errors
from duemq.storage.checkpoint.checkpoint import read_position
from duemq.storage.data_folder import BACKUP
from duemq.storage.fsync import Report, digest
from duemq.storage.manifest import ListedFile, check_files, other_format

FORMAT = 1
NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z")
"""Names of backup folders: the time of the backup, UTC, so that they sort by time."""
SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
"""File names that do not lead outside the backup's folder."""

Progress = Callable[[int, int], None]
"""Called with the bytes done and the total."""


@dataclass(frozen=True, slots=True)
class BackupFile(ListedFile):
    """`mtime_ns` and `inode` are those of the file that it was copied from."""

    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class BackupShard:
    """A shard after ledger entry `entry` (-1: none): V, T as a key, and the number of pending messages."""

    shard: int
    entry: int
    applied: int
    cursor: bytes
    pending: int
    ledger_offset: int

    @staticmethod
    def read(path: Path) -> BackupShard:
        """Read a store that is not open. Blocks. Raises CorruptStore or StoreFailed if it cannot be read."""
        position = read_position(path)
        entry = position.entry
        return BackupShard(
            int(path.name), entry.number, entry.applied, entry.cursor, entry.pending, position.ledger_offset
        )


@dataclass(frozen=True, slots=True)
class Backup:
    """The content of a backup. `made_at`: when it began, epoch ms. It contains everything accepted before that."""

    made_at: int
    cluster: str
    shards: tuple[BackupShard, ...]
    files: tuple[BackupFile, ...]

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """Encode the manifest as JSON, with a checksum."""
        shards = [asdict(shard) | {"cursor": shard.cursor.hex()} for shard in self.shards]
        document = {"format": FORMAT, **asdict(self), "shards": shards}
        return orjson.dumps(document | {"sha256": _checksum(document)}, option=orjson.OPT_INDENT_2)

    @staticmethod
    def decode(raw: bytes, path: Path) -> Backup:
        """`path`: the manifest's file. Raises CorruptStore, or FolderRefused for another format."""
        try:
            document = orjson.loads(raw)
            if document["format"] != FORMAT:
                refusal = other_format(path, document["format"], FORMAT)
                raise FolderRefused(f"{refusal}: restore it with the version that made it")
            if document.pop("sha256") != _checksum(document):
                raise ValueError("sha256")
            shards = tuple(
                BackupShard(**shard | {"cursor": bytes.fromhex(shard["cursor"])}) for shard in document["shards"]
            )
            files = tuple(BackupFile(**file) for file in document["files"])
            check_files(files, SAFE)
            return Backup(document["made_at"], document["cluster"], shards, files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptStore(f"{path} is damaged: restore another backup") from error


def _checksum(document: object) -> str:
    return hashlib.sha256(orjson.dumps(document)).hexdigest()


def read_backup(path: Path) -> Backup:
    """The content of the backup in this folder. Raises FolderRefused if it is not a complete backup, or
    CorruptStore."""
    with translate_errors(path):
        if (path / BACKUP).is_file():
            return Backup.decode((path / BACKUP).read_bytes(), path / BACKUP)
        backups = names(path) if path.is_dir() else []
    if backups:
        raise FolderRefused(
            f"{path} is a folder of backups: name one of them, such as the newest, {path / backups[-1]}"
        )
    raise FolderRefused(f"{path} is not a complete backup: it has no {BACKUP}")


def names(into: Path) -> list[str]:
    """The complete backups in a folder of backups, the oldest first. Raises OSError."""
    return sorted(path.parent.name for path in into.glob(f"*/{BACKUP}") if NAME.fullmatch(path.parent.name))


class ProgressBar:
    """Progress over many files."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def reading(self, size: int) -> None:
        """Report how many bytes of the current file have been read."""
        self._progress(self._done + size, self._total)

    def finish_file(self, size: int) -> None:
        """Count the current file, which has this size, as finished."""
        self._done += size
        self._progress(self._done, self._total)


def damage(path: Path, expected: BackupFile, report: Report) -> str | None:
    """How a file differs from `expected`, as a sentence; None if it does not. Raises StoreFailed."""
    with translate_errors(path):
        if not path.is_file():
            return f"{path} is missing"
        size = path.stat().st_size
        if size != expected.size:
            return f"{path} has {size} bytes, {expected.size} were backed up"
        return None if digest(path, report) == expected.sha256 else f"{path} does not have its checksum"


def check(path: Path, progress: Progress) -> tuple[Backup, list[str]]:
    """Read every file of a backup. Returns the faults, one sentence per damaged file. Raises the errors of
    `read_backup`."""
    backup = read_backup(path)
    bar, wrong = ProgressBar(progress, backup.total_bytes), []
    for file in backup.files:
        problem = damage(path / file.name, file, bar.reading)
        if problem is not None:
            wrong.append(problem)
        bar.finish_file(file.size)
    return backup, wrong
