"""Checks the data folder and its disk without taking the lock: the server may be running."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from duemq.cli.doctor.finding import Finding, error, ok, warning
from duemq.delay.core.disk_watermarks import Watermark, Watermarks
from duemq.model.disk_use import DiskUse
from duemq.model.errors import DuemqError
from duemq.storage.data_folder import BACKUP, LOCK, META, RESTORE, disk_use, read_info

_MOUNTS = Path("/proc/self/mounts")
_REMOTE = frozenset(("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "ceph", "glusterfs"))
_VOLATILE = frozenset(("tmpfs", "ramfs"))


def check_folder(path: Path, marks: Watermarks) -> Iterator[Finding]:
    """Check the data folder `path`. A node with workers has one folder per worker below it."""
    workers = sorted(path.glob("worker-*")) if not (path / META).exists() else []
    for folder in workers or [path]:
        yield from _one(folder)
    there = next((part for part in (path, *path.absolute().parents) if part.exists()), Path("/"))
    yield from _file_system(there)
    try:
        yield judge_disk(path, disk_use(there), marks)
    except DuemqError as failed:
        yield error("disk", str(failed), "check the disk and its mount")


def _one(path: Path) -> Iterator[Finding]:
    subject = "data folder"
    if not path.exists():
        yield ok(subject, f"{path} does not exist yet: the first start creates it")
        return
    if not os.access(path, os.R_OK | os.X_OK):
        yield error(subject, f"{path} may not be read by this user", "run this as the user of the server")
        return
    if not os.access(path, os.W_OK):
        yield error(subject, f"{path} may not be written by this user", "run server and doctor as the folder's owner")
    if (path / BACKUP).exists() or (path / RESTORE).exists():
        what = "a backup" if (path / BACKUP).exists() else "an interrupted restore"
        yield error(subject, f"{path} is {what}: no server starts on it", "run `duemq restore` into an empty folder")
        return
    if not (path / META).exists():
        if any(path.iterdir()):
            yield error(subject, f"{path} has files, but no {META}: it is not duemq's", "choose another folder")
        else:
            yield ok(subject, f"{path} is empty: the first start fills it")
        return
    try:
        info = read_info(path)
    except DuemqError as refused:
        yield error(subject, str(refused), "CHANGELOG.md says how to convert a format; or restore a backup")
        return
    if path.stat().st_mode & 0o007:
        yield warning(subject, f"{path} is open to all users: it holds every payload", f"chmod o= {path}")
    yield ok(subject, f"{path}: cluster {info.cluster}, {info.shards} shards, {_holder(path)}")


def _holder(path: Path) -> str:
    try:
        number = (path / LOCK).read_text().strip()
        os.kill(int(number), 0)
    except (OSError, ValueError):
        return "not in use"
    return f"last used by process {number}, which runs"


def _file_system(path: Path) -> Iterator[Finding]:
    kind = file_system_of(path.absolute(), _MOUNTS.read_text() if _MOUNTS.exists() else "")
    if kind in _VOLATILE:
        yield error("disk", f"{path} is on {kind}: a restart of the machine loses all messages", "use a local disk")
    elif kind in _REMOTE:
        yield warning(
            "disk", f"{path} is on {kind}: a lost connection stops the server, and fsync may not hold",
            "use a local disk",
        )  # fmt: skip


def file_system_of(path: Path, mounts: str) -> str:
    """The type of the file system that contains an absolute path, from the lines of /proc/mounts; empty if unknown."""
    best = ("", "")
    for line in mounts.splitlines():
        fields = line.split(" ")
        where = fields[1].replace("\\040", " ") if len(fields) > 2 else ""
        if where and path.is_relative_to(where) and len(where) >= len(best[0]):
            best = (where, fields[2])
    return best[1]


def judge_disk(path: Path, use: DiskUse, marks: Watermarks) -> Finding:
    level = marks.level(use, Watermark.FREE)
    detail = f"{use.percent:.0f} % of the disk of {path} is used, {use.free >> 20:,} MiB are free"
    if level is Watermark.REFUSE:
        return error("disk", f"{detail}: new messages are refused", "make space: docs/operate/operations.md#disk-space")
    if level is not Watermark.FREE:
        return warning(
            "disk", f"{detail}: history is purged early", "make space: docs/operate/operations.md#disk-space"
        )
    return ok("disk", detail)
