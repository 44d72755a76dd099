"""Small files and renames that survive a power failure."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

_PART_BYTES = 1 << 20

Report = Callable[[int], None]
"""Called with the number of bytes of a file that have been read so far."""


def digest(path: Path, report: Report) -> str:
    """The SHA-256 of a file's content, in hex. Raises OSError."""
    sha256, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while part := file.read(_PART_BYTES):
            sha256.update(part)
            done += len(part)
            report(done)
    return sha256.hexdigest()


def copy_durably(source: Path, into: Path, report: Report) -> str:
    """Copy a file with its mode to a new path, and sync the copy. Returns the copy's SHA-256, in hex.

    A crash may leave part of the copy. Raises OSError.
    """
    sha256, done = hashlib.sha256(), 0
    with source.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
        with open(os.open(into, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as copy:
            while part := file.read(_PART_BYTES):
                sha256.update(part)
                copy.write(part)
                done += len(part)
                report(done)
            copy.flush()
            os.fsync(copy.fileno())
    return sha256.hexdigest()


def write_durably(path: Path, content: bytes) -> None:
    """Create or replace a private file. After a crash it has either the old or the new content. Raises OSError."""
    temporary = path.with_suffix(".new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Create a private folder and its missing parents, unless it exists. Raises OSError.

    Afterwards the folder's name is durable, even if an earlier process created it without syncing.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in (path, *missing):
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Make creations, renames and removals in a folder durable. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
