"""Where the files of a job are: seen by the driver, by every executor, and by the server's nodes.

Two kinds: a folder that all see under the same path (here), and an S3-compatible store (bulk/object_stage.py). What a
job needs of either is little: a document that is written once, a list of files, and each file as a path to read.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from duemq.pipeline.errors import BadInput
from duemq.storage.durable import sync_folder

_NEW = ".new"


class Stage(Protocol):
    """Of one job. A value that goes to executors. Names are those below the stage, with `/` between their parts."""

    @property
    def place(self) -> str:
        """For people."""
        ...

    def uri(self, name: str) -> str:
        """As Spark reads and writes it."""
        ...

    def path(self, name: str) -> str:
        """As the server's nodes take it in."""
        ...

    def make(self) -> None:
        """Before anything is written. Raises BadInput where a stage cannot be here."""
        ...

    def read(self, name: str) -> bytes | None:
        """A small document; None where there is none."""
        ...

    def write_once(self, name: str, content: bytes) -> None:
        """Durably, as a whole, and only where there is none of that name: who comes second changes nothing."""
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

    def remove(self, folder: str) -> None:
        """All of it, as far as that can be done."""
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
        """Tries what `write_once` needs: mounts of object stores and some shares cannot make a file exclusively."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            trial = f".{uuid.uuid4().hex}{_NEW}"
            self.write_once(trial, b"")
            (self.folder / trial).unlink()
        except OSError as error:
            raise BadInput(f"{self.folder} cannot be a stage: {error.strerror or error}") from error

    def read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write_once(self, name: str, content: bytes) -> None:
        temporary = self.folder / f"{uuid.uuid4().hex}{_NEW}"
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            with suppress(FileExistsError):
                os.link(temporary, self.folder / name)
        finally:
            temporary.unlink()
        sync_folder(self.folder)

    def files(self, below: str) -> dict[str, int]:
        found = (path for path in (self.folder / below).rglob("*") if path.is_file())
        return dict(sorted((str(path.relative_to(self.folder)), path.stat().st_size) for path in found))

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        yield self.folder / name

    def folders(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir())

    def remove(self, folder: str) -> None:
        shutil.rmtree(self.folder / folder, ignore_errors=True)

    def tidy(self) -> None:
        for path in self.folder.glob(f"*{_NEW}"):
            path.unlink(missing_ok=True)
