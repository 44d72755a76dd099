"""Restores a backup as a data folder on which a server can start.

During a restore the folder has a `restore.json`, and no server starts on it; `duemq.json` is written last. Everything
here blocks. OSErrors are raised as DiskFull or StoreFailed.
"""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from duemq.model.errors import CorruptStore, FolderRefused
from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.model.messages.ids import RESTORED
from duemq.model.rocksdb_errors import translate_errors
from duemq.storage.backup.backup import Backup, BackupFile, BackupShard, Progress, ProgressBar, damage, read_backup
from duemq.storage.data_folder import LOCK, META, RESTORE, take_lock
from duemq.storage.fsync import copy_durably, make_folder, sync_folder, write_durably

_LAST = META  # a folder without this file is not a data folder
_LOG = "bus"


def restore(path: Path, data: Path, progress: Progress, failpoint: Failpoint = no_failpoint) -> Backup:
    """Restore the backup at `path` into the folder `data`, which must be new, empty or left by an interrupted restore.

    Every file is checked while it is copied. May be called again after any error or crash, also with another backup.
    Raises FolderRefused, CorruptStore naming the damaged file, DiskFull or StoreFailed.
    """
    backup = read_backup(path)
    with translate_errors(data):
        make_folder(data)
        _refuse_full(data)
        lock = take_lock(data)
        try:
            _refuse_full(data)  # again, because a server may have started on the folder before the lock was taken
            write_durably(data / RESTORE, orjson.dumps({"backup": path.name, "made_at": backup.made_at}))
            failpoint("begun")
            bar = ProgressBar(progress, backup.total_bytes)
            for file in backup.files:
                if file.name != _LAST:
                    _put(path, data, file, bar)
                    failpoint("file")
            _remove_others(data, backup)
            for folder in (data, *(path for path in data.rglob("*") if path.is_dir())):
                sync_folder(folder)
            failpoint("durable")
            _refuse_other_state(data, backup)
            for file in backup.files:
                if file.name == _LAST:
                    _put(path, data, file, bar)
            sync_folder(data)
            failpoint("named")
            if (data / _LOG).is_dir():
                (data / RESTORE).rename(data / _LOG / RESTORED)
                sync_folder(data / _LOG)
            else:
                (data / RESTORE).unlink()
            sync_folder(data)
        finally:
            os.close(lock)
    failpoint("in_place")
    return backup


def _refuse_full(data: Path) -> None:
    if not (data / RESTORE).exists() and set(os.listdir(data)) - {LOCK}:
        raise FolderRefused(
            f"{data} is not empty: restore into an empty folder, or stop its server and move its files away"
        )


def _put(path: Path, data: Path, file: BackupFile, bar: ProgressBar) -> None:
    source, into = path / file.name, data / file.name
    into.parent.mkdir(parents=True, exist_ok=True)
    if damage(into, file, bar.reading) is None:
        sync_folder(into)  # the file was copied by an earlier attempt; the function works for a file, too
    else:
        into.unlink(missing_ok=True)
        if not source.is_file() or copy_durably(source, into, bar.reading) != file.sha256:
            into.unlink(missing_ok=True)
            wrong = damage(source, file, bar.reading) or f"{source} was read with errors"
            raise CorruptStore(
                f"{wrong}: restore another backup. One that shares the file with this one has the same damage."
            )
    bar.finish_file(file.size)


def _remove_others(data: Path, backup: Backup) -> None:
    """Remove files from another backup whose restore was interrupted."""
    names = {file.name for file in backup.files} | {LOCK, RESTORE}
    for path in [path for path in data.rglob("*") if path.is_file()]:
        if str(path.relative_to(data)) not in names:
            path.unlink()


def _refuse_other_state(data: Path, backup: Backup) -> None:
    for expected in backup.shards:
        path = data / "shards" / f"{expected.shard:03d}"
        actual = BackupShard.read(path)
        if actual != expected:
            raise CorruptStore(
                f"{path} is at ledger entry {actual.entry}, the backup says {expected.entry}: restore another backup"
            )
