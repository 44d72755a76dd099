"""The stage: the place where the driver, every executor and the server's nodes see the files of a job.

It is a folder with the same path on all of them, or an S3-compatible store (`object_stage.py`).
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

from pyspark.sql import SparkSession

from duemq.pipeline.bulk_schedule.object_stage import ObjectStage
from duemq.pipeline.errors import BadInput
from duemq.pipeline.files.uris import local_path, scheme_of, uri_of
from duemq.storage.fsync import sync_folder

_NEW = ".new"
_NO_LINKS = (errno.EPERM, errno.EACCES, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


class Stage(Protocol):
    """The stage of one job. It is pickled for executors. Names are relative paths, with `/` between their parts."""

    @property
    def place(self) -> str:
        """The location of the stage, for a sentence."""

    def uri(self, name: str) -> str:
        """Spark's URI for a file."""

    def path(self, name: str) -> str:
        """The server's path for a file."""

    def make(self) -> None:
        """Create the stage. Raises BadInput."""

    def check(self) -> None:
        """Raise BadInput if documents cannot be written exactly once here. Call it before writing anything else."""

    def read(self, name: str) -> bytes | None:
        """The content of a small document, or None if it does not exist."""

    def write_once(self, name: str, content: bytes) -> None:
        """Write a document durably and atomically, unless it exists."""

    def write(self, name: str, content: bytes) -> None:
        """Write or replace a file atomically."""

    def files(self, below: str) -> dict[str, int]:
        """All files below a folder with their sizes in bytes, sorted by name."""

    def local(self, name: str) -> AbstractContextManager[Path]:
        """A local file with the same content, for use inside the block. Raises FileNotFoundError."""

    def folders(self) -> list[str]:
        """The names of the top-level folders."""

    def remove(self, name: str) -> None:
        """Try to remove a file, or a folder with its content."""

    def tidy(self) -> None:
        """Remove temporary files that killed processes left."""


@dataclass(frozen=True, slots=True)
class FolderStage:
    """See `Stage`: a folder that driver, executors and nodes see under the same path."""

    folder: Path

    @property
    def place(self) -> str:
        return str(self.folder)

    def uri(self, name: str) -> str:
        return f"file://{self.folder / name}"  # Hadoop expects an unquoted path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def make(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"the stage {self.folder.parent} cannot be used: {error}") from error

    def check(self) -> None:
        """Write a file as a test: mounted object stores and some network shares have neither hard links nor O_EXCL."""
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
        """Link a synced temporary file; without hard links, create the file with O_EXCL."""
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
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):  # not all file systems sync folders
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


def stage_of(spark: SparkSession, place: str | Path, job: str) -> Stage:
    """The stage of a job below a folder or `s3a://BUCKET/PREFIX`. It is not created. Raises BadInput."""
    uri = uri_of(place)
    if (folder := local_path(uri)) is not None:
        return FolderStage(folder / job)
    if (scheme := scheme_of(uri)) in ("s3a", "s3"):
        return ObjectStage.of(spark, uri, job)
    raise BadInput(
        f"{place} cannot be a stage: nodes cannot import files from {scheme}:. Name a folder that driver, executors "
        "and nodes see under one path, or s3a://BUCKET/PREFIX. Without either: duemq spark send, "
        "docs/guides/pipeline/send.md"
    )


def _write_synced(path: Path, content: bytes) -> None:
    """Create a new file. Raises OSError."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
