"""A file from another program. It is opened only once, so that it cannot be replaced while it is read."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from duemq.model.errors import BadDelayFile

_READ_BYTES = 1 << 20
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG}


class SourceFile:
    """An open file. `name`: its name, for people. `path`: opening it opens exactly this file."""

    def __init__(self, name: str, handle: int) -> None:
        self.name, self._handle = name, handle
        self.path = Path(f"/dev/fd/{handle}")

    def link(self, target: Path) -> None:
        """Link exactly this file under another name. Raises OSError."""
        # Without a `src_dir_fd`, Python does not make the kernel follow the descriptor's path.
        os.link(self.path, target, src_dir_fd=self._handle, follow_symlinks=True)

    @staticmethod
    @contextmanager
    def open(path: Path, folders: Sequence[Path] | None = None, name: str | None = None) -> Iterator[SourceFile]:
        """Open a file for the duration of the block. `folders`: the folders that it must be in, after following links;
        None allows any place. `name`: see the class; None: the name in `path`.

        Raises BadDelayFile if the file is missing, not a regular file, or elsewhere. For a pipe, does not wait for a
        writer. `path` is resolved and then opened without following links, so that the file that was checked is the
        file that is read.
        """
        name = path.name if name is None else name
        with readable(name):
            try:
                resolved = path.resolve(strict=True)
            except RuntimeError as error:  # raised by Python up to 3.12 for circular links
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error
            if (reason := outside(path, resolved, folders)) is not None:
                raise BadDelayFile(reason)
            handle = os.open(resolved, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise BadDelayFile(f"{name} is not a regular file")
            if (reason := outside(path, _place_of(handle, resolved), folders)) is not None:
                raise BadDelayFile(reason)
            yield SourceFile(name, handle)
        finally:
            os.close(handle)

    def state(self) -> tuple[int, int, int]:
        """Inode, size in bytes and time of change. If they differ after reading, the file was changed while it was
        read."""
        status = os.fstat(self._handle)
        return status.st_ino, status.st_size, status.st_mtime_ns

    def sha256(self, alive: Callable[[], None]) -> str:
        """The file's SHA-256 in hex. `alive` is called after each part that was read."""
        digest, at = hashlib.sha256(), 0
        while part := os.pread(self._handle, _READ_BYTES, at):
            digest.update(part)
            at += len(part)
            alive()
        return digest.hexdigest()


def outside(path: Path, resolved: Path, folders: Sequence[Path] | None) -> str | None:
    """Why the file may not be imported, as a sentence; None if it may. `folders`: see `SourceFile.open`."""
    if folders is None:
        return None
    if not folders:
        return "no folder is named to import files from (delay_files.import_from)"
    if not any(resolved.is_relative_to(folder) for folder in folders):
        return f"{_short(path)} is not in any folder that files may be imported from (delay_files.import_from)"
    return None


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 120 else f"...{text[-117:]}"


def _place_of(handle: int, resolved: Path) -> Path:
    """The path of an open file. Needed because a folder in its path may have become a link after the path was
    resolved."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{handle}"))
    except FileNotFoundError:  # not Linux
        return resolved.resolve(strict=True)


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Translate errors that concern a path, but not those of a failing disk."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise BadDelayFile(f"{name} cannot be read: {os.strerror(error.errno)}", missing=True) from error
        raise
