"""Where the files of a job are: seen by the driver, by every executor, and by the server's nodes.

Two kinds: a folder that all see under the same path (here), and an S3-compatible store (bulk/object_stage.py). What a
job needs of either is little: a document that is written once, a list of files, and each file as a path to read.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from duemq.pipeline.errors import BadInput
from duemq.storage.fsync import sync_folder

_NEW = ".new"
_NO_LINKS = (errno.EPERM, errno.EACCES, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


class Stage(Protocol):
    """The stage of one job: a value that goes to executors. Names are below it, with `/` between their parts."""

    @property
    def place(self) -> str:
        """The stage as people name it."""
        ...

    def uri(self, name: str) -> str:
        """The URI by which Spark reads and writes a file."""
        ...

    def path(self, name: str) -> str:
        """The path by which the server's nodes take a file in."""
        ...

    def make(self) -> None:
        """Make the stage, before anything is read. Raises BadInput."""
        ...

    def check(self) -> None:
        """Raise BadInput where documents cannot be written once here, before anything else is written."""
        ...

    def read(self, name: str) -> bytes | None:
        """A small document; None where there is none."""
        ...

    def write_once(self, name: str, content: bytes) -> None:
        """Write a document durably, as a whole, and only where there is none of that name: who comes second changes
        nothing."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write a file as a whole, in place of one that may be there."""
        ...

    def files(self, below: str) -> dict[str, int]:
        """All files below a folder with their sizes in bytes, sorted by name."""
        ...

    def local(self, name: str) -> AbstractContextManager[Path]:
        """A file as one to read on this machine, for the time of the block. Raises FileNotFoundError."""
        ...

    def folders(self) -> list[str]:
        """Names of the folders at the top."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it, as far as that can be done."""
        ...

    def tidy(self) -> None:
        """Remove what processes that died have left of documents."""
        ...


@dataclass(frozen=True, slots=True)
class FolderStage:
    """See `Stage`: a folder that driver, executors and nodes see under the same path."""

    folder: Path

    @property
    def place(self) -> str:
        return str(self.folder)

    def uri(self, name: str) -> str:
        return f"file://{self.folder / name}"  # Hadoop takes it as it is: nothing is quoted

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def make(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"the stage {self.folder.parent} cannot be used: {error}") from error

    def check(self) -> None:
        """Mounts of object stores and some shares can neither link a file nor create it for one writer alone."""
        name = f"{uuid.uuid4().hex}{_NEW}"
        try:
            self.write_once(name, b"{}")
            (self.folder / name).unlink()
        except OSError as error:
            raise BadInput(
                f"the stage {self.folder.parent} cannot be used: a file in it can neither be linked nor created for "
                f"one writer alone ({error})"
            ) from error

    def read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write_once(self, name: str, content: bytes) -> None:
        """Link a synced temporary; where there are no hard links, the file is created for one writer alone (O_EXCL)."""
        temporary, path = self.folder / f"{uuid.uuid4().hex}{_NEW}", self.folder / name
        _write_synced(temporary, content)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with suppress(FileExistsError):
                _write_synced(path, content)
        finally:
            temporary.unlink(missing_ok=True)
        try:
            sync_folder(self.folder)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):  # not every file system syncs folders
                raise

    def write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        temporary = path.with_suffix(f".{uuid.uuid4().hex}{_NEW}")
        temporary.write_bytes(content)
        temporary.replace(path)

    def files(self, below: str) -> dict[str, int]:
        paths = (path for path in (self.folder / below).rglob("*") if path.is_file())
        return dict(sorted((str(path.relative_to(self.folder)), path.stat().st_size) for path in paths))

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        yield self.folder / name

    def folders(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir())

    def remove(self, name: str) -> None:
        path = self.folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def tidy(self) -> None:
        for path in self.folder.glob(f"*{_NEW}"):
            path.unlink(missing_ok=True)


def _write_synced(path: Path, content: bytes) -> None:
    """Create a file that was not there. Raises OSError."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
