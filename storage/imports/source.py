"""A file that somebody hands over, opened once: nobody can put another one in its place while it is read."""

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
    """Open for as long as it is needed. `name`: for people; `path`: what to open in order to read this very file."""

    def __init__(self, name: str, handle: int) -> None:
        self.name, self._handle = name, handle
        self.path = Path(f"/dev/fd/{handle}")

    def link(self, target: Path) -> None:
        """Give this very file another name. Raises OSError."""
        # Without a `src_dir_fd` Python does not ask the kernel to follow the path of the descriptor.
        os.link(self.path, target, src_dir_fd=self._handle, follow_symlinks=True)

    @staticmethod
    @contextmanager
    def open(path: Path, folders: Sequence[Path] | None = None, name: str | None = None) -> Iterator[SourceFile]:
        """`folders`: where it must lie, links followed; None allows any place. `name`: see the class; None: the path's.

        Raises BadDelayFile for what is not there, is no regular file, or lies elsewhere. Does not wait for a writer of
        a pipe. `path` is resolved and opened without following links: what was checked is what is read.
        """
        name = path.name if name is None else name
        with readable(name):
            try:
                resolved = path.resolve(strict=True)
            except RuntimeError as error:  # of Python up to 3.12, for links that lead in a circle
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error
            if (reason := outside(path, resolved, folders)) is not None:
                raise BadDelayFile(reason)
            handle = os.open(resolved, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise BadDelayFile(f"{name} is no regular file")
            if (reason := outside(path, _place_of(handle, resolved), folders)) is not None:
                raise BadDelayFile(reason)
            yield SourceFile(name, handle)
        finally:
            os.close(handle)

    def state(self) -> tuple[int, int, int]:
        """Inode, size in bytes and time of change: another one after reading means that it was changed meanwhile."""
        status = os.fstat(self._handle)
        return status.st_ino, status.st_size, status.st_mtime_ns

    def sha256(self, alive: Callable[[], None]) -> str:
        """The file's SHA-256 in hex. `alive` is called after every part that was read."""
        digest, at = hashlib.sha256(), 0
        while part := os.pread(self._handle, _READ_BYTES, at):
            digest.update(part)
            at += len(part)
            alive()
        return digest.hexdigest()


def outside(path: Path, resolved: Path, folders: Sequence[Path] | None) -> str | None:
    """Why no file may be taken from there, in a sentence; None where it may. `folders`: see `SourceFile.open`."""
    if folders is None:
        return None
    if not folders:
        return "no folder is named to import files from (delay_files.import_from)"
    if not any(resolved.is_relative_to(folder) for folder in folders):
        return f"{_short(path)} is in none of the folders that files may be imported from (delay_files.import_from)"
    return None


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 120 else f"...{text[-117:]}"


def _place_of(handle: int, resolved: Path) -> Path:
    """Where an open file lies: a folder on the way may have become a link after it was resolved."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{handle}"))
    except FileNotFoundError:  # not Linux
        return resolved.resolve(strict=True)


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Errors of a path that say something about it, and not about a disk that fails."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise BadDelayFile(f"{name} cannot be read: {os.strerror(error.errno)}", missing=True) from error
        raise
