"""A folder of backups, each in a folder named by its time, and the creation of new backups:

20261121T100000.000Z/   a backup, see `storage/backup/backup.py`; after removing it with `rm -r`, the others stay intact
.partial/               an unfinished backup: the next one uses its files
.removed/               a backup that is being removed

Everything here blocks. OSErrors are raised as DiskFull or StoreFailed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from duemq.model.errors import CorruptStore, DiskFull, FolderRefused, StoreFailed, Unavailable
from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.model.rocksdb_errors import translate_errors
from duemq.storage.backup.backup import (
    SAFE,
    Backup,
    BackupFile,
    BackupShard,
    Progress,
    ProgressBar,
    names,
    read_backup,
)
from duemq.storage.data_folder import BACKUP, LOG_ID, META, SECRET, FolderInfo
from duemq.storage.fsync import copy_durably, digest, make_folder, sync_folder, write_durably

PARTIAL = ".partial"
_REMOVED = ".removed"
_SHARD = re.compile(r"\d{3}")
_UNCHANGING = (".sst", ".parquet")  # such files never change once they are complete
_OF_A_PROCESS = re.compile(r"LOCK|LOG|LOG\.old\.\d+")  # RocksDB's files that are useless to another process


@dataclass(frozen=True, slots=True)
class NewBackup:
    """A new backup. It shares `linked_files`, with `linked_bytes` in total, with the previous backup."""

    path: Path
    backup: Backup
    linked_bytes: int
    linked_files: int


class Backups:
    """A folder of backups, locked by this process until it is closed."""

    def __init__(self, path: Path, failpoint: Failpoint = no_failpoint) -> None:
        """Creates the folder if it is missing. Raises FolderRefused while another process makes a backup in it."""
        self.path, self._failpoint = path, failpoint
        with translate_errors(path):
            make_folder(path)
            self._lock = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise FolderRefused(f"{path}: another backup into it is running: wait for its end") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def make(self, info: FolderInfo, at_rest: Path, now: int, progress: Progress) -> NewBackup:
        """Back up a data folder, whose log and stores are `at_rest` in a separate folder (or in the data folder
        itself).

        `now` in epoch ms. May be called again after any error or crash: it then reuses the copied files. Raises
        DiskFull or StoreFailed, FolderRefused if the folder has backups of another cluster, and Unavailable if
        `at_rest` vanishes.
        """
        previous = self._newest()
        if previous is not None and previous.backup.cluster != info.cluster:
            raise FolderRefused(
                f"{self.path} has backups of cluster {previous.backup.cluster}, and {info.path} belongs to cluster "
                f"{info.cluster}: choose another folder"
            )
        partial = self.path / PARTIAL
        with _explain_errors(self.path, at_rest):
            partial.mkdir(mode=0o700, exist_ok=True)
            self._failpoint("begun")
            sources = dict(_sources(info.path, at_rest))
            shards = tuple(BackupShard.read(path) for path in _shards(at_rest))
            writer = _BackupWriter(partial, previous, sources, progress)
            for name in sources:
                writer.copy_file(name)
                self._failpoint("file")
            _remove_others(partial, sources)
            self._failpoint("copied")
            for folder in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
                sync_folder(folder)
            self._failpoint("durable")
            backup = Backup(now, info.cluster, shards, tuple(writer.files))
            write_durably(partial / BACKUP, backup.encode())
            self._failpoint("described")
            path = self._free_name(now)
            partial.rename(path)
            sync_folder(self.path)
        self._failpoint("in_place")
        return NewBackup(path, backup, writer.linked_bytes, writer.linked_files)

    def keep(self, most: int) -> list[str]:
        """Remove the oldest backups until at most `most` are left. Returns the names of the removed ones."""
        with translate_errors(self.path):
            oldest = names(self.path)[: -max(most, 1)]
            trash = self.path / _REMOVED
            shutil.rmtree(trash, ignore_errors=True)
            for name in oldest:
                # First rename it, durably: a half-removed folder must not look like a backup.
                (self.path / name).rename(trash)
                sync_folder(self.path)
                self._failpoint("removing")
                shutil.rmtree(trash)
        return oldest

    def _newest(self) -> _Previous | None:
        with translate_errors(self.path):
            backups = names(self.path)
        for name in reversed(backups):
            with suppress(CorruptStore):  # skip a damaged backup, and use an older one
                return _Previous(self.path / name, read_backup(self.path / name))
        return None

    def _free_name(self, now: int) -> Path:
        """A name after those of all other backups, whatever the clock shows, because `keep` removes in the order of
        names."""
        newest = names(self.path)[-1:]
        if newest and name_of(now) <= newest[0]:
            now = _time_of(newest[0]) + 1
        while (path := self.path / name_of(now)).exists():
            now += 1
        return path


@dataclass(frozen=True, slots=True)
class _Previous:
    path: Path
    backup: Backup


class _BackupWriter:
    """Writes files into a new backup, one after another."""

    def __init__(
        self, partial: Path, previous: _Previous | None, sources: Mapping[str, Path], progress: Progress
    ) -> None:
        self.files: list[BackupFile] = []
        self.linked_bytes = self.linked_files = 0
        self._partial, self._sources = partial, sources
        self._previous = previous.path if previous else partial
        self._previous_files = {file.name: file for file in previous.backup.files} if previous else {}
        self._bar = ProgressBar(progress, sum(path.stat().st_size for path in sources.values()))

    def copy_file(self, name: str) -> None:
        source, into = self._sources[name], self._partial / name
        stat = source.stat()
        into.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        sha256 = self._from_previous(name, source, stat) or self._from_partial(into, source, stat.st_size)
        if sha256 is None:
            into.unlink(missing_ok=True)  # never write into it: it may be a link to a file of another backup
            sha256 = copy_durably(source, into, self._bar.reading)
        self.files.append(BackupFile(name, stat.st_size, sha256, stat.st_mtime_ns, stat.st_ino))
        self._bar.finish_file(stat.st_size)

    def _from_previous(self, name: str, source: Path, stat: os.stat_result) -> str | None:
        """Link the previous backup's file, if it is the same. Returns the checksum; None if the file must be copied."""
        file = self._previous_files.get(name)
        if file is None or file.size != stat.st_size:
            return None
        untouched = (file.mtime_ns, file.inode) == (stat.st_mtime_ns, stat.st_ino)
        if not (untouched and name.endswith(_UNCHANGING)) and digest(source, self._bar.reading) != file.sha256:
            return None
        original, into = self._previous / name, self._partial / name
        with suppress(OSError):  # the file was removed, or the disk does not support links: copy
            if original.stat().st_size != file.size:
                return None
            into.unlink(missing_ok=True)
            os.link(original, into)
            self.linked_bytes += file.size
            self.linked_files += 1
            return file.sha256
        return None

    def _from_partial(self, into: Path, source: Path, size: int) -> str | None:
        """Use the copy from an earlier attempt, if it is the same. Returns the checksum; None if the file must be
        copied."""
        if not into.is_file() or into.stat().st_size != size:
            return None
        sha256 = digest(source, self._bar.reading)
        if digest(into, self._bar.reading) != sha256:
            return None
        sync_folder(into)  # works for a file, too
        return sha256


@contextmanager
def _explain_errors(into: Path, at_rest: Path) -> Iterator[None]:
    try:
        with translate_errors(into):
            yield
    except DiskFull as error:
        raise DiskFull(
            f"{error}. Copied files are in {into / PARTIAL}: the next backup uses them; remove it to free its space."
        ) from error
    except StoreFailed as error:
        if at_rest.exists():
            raise
        raise Unavailable(f"{at_rest} is gone: the server was stopped during the backup. Run it again.") from error


def name_of(ms: int) -> str:
    """The name of a backup made at this time (epoch ms)."""
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y%m%dT%H%M%S}.{ms % 1000:03d}Z"


def _time_of(name: str) -> int:
    return round(datetime.strptime(name, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC).timestamp() * 1000)


def _shards(at_rest: Path) -> list[Path]:
    return sorted(path for path in at_rest.glob("shards/*") if _SHARD.fullmatch(path.name))


def _sources(data: Path, at_rest: Path) -> Iterator[tuple[str, Path]]:
    """Every file that belongs in a backup, with its name there."""
    yield from ((name, data / name) for name in (META, SECRET))
    for folder in (at_rest / "bus", *_shards(at_rest)):
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(at_rest))
            if path.name == LOG_ID or _OF_A_PROCESS.fullmatch(path.name):
                continue
            if path.is_file() and SAFE.fullmatch(name):
                yield name, path


def _remove_others(folder: Path, sources: Mapping[str, object]) -> None:
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if str(path.relative_to(folder)) not in sources:
            path.unlink()
