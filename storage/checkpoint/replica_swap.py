"""Fetches a checkpoint from a peer and replaces a replica with it.

The replica is in a folder such as `003`. During a replacement, and after a crash, there may be next to it:

003.partial/manifest.json   the manifest of the checkpoint that is being fetched
003.partial/parts/          fetched parts, each file named by its checksum; the next attempt resumes them
003.partial/files/          links to the complete files, under the names in the manifest
003.ready/                  the complete, verified and durable replica: once it has this name, it is the replica
003.old/                    the replaced replica, which will be deleted

Everything here blocks, so run it in a thread. OSErrors are raised as DiskFull or StoreFailed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import defaultdict
from pathlib import Path

from duemq.model.errors import CorruptStore
from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.model.rocksdb_errors import translate_errors
from duemq.storage.checkpoint.checkpoint import CheckpointManifest, read_position, sha256_of
from duemq.storage.delay_files.catalog import FOLDER
from duemq.storage.fsync import sync_folder, write_durably
from duemq.storage.manifest import ListedFile

_READ_BYTES = 1 << 20


class PartialFile:
    """A file that is being fetched. `size`: the number of bytes that have arrived."""

    def __init__(self, path: Path, expected: ListedFile, link: Path | None = None) -> None:
        """`link`: a second name for the complete file."""
        self.path, self.expected, self.size, self._link = path, expected, 0, link
        self._sha256 = hashlib.sha256()
        with translate_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
            try:
                self._file.seek(0)
                while part := self._file.read(_READ_BYTES):
                    self._sha256.update(part)
                    self.size += len(part)
            except BaseException:
                self._file.close()
                raise

    def add(self, part: bytes) -> None:
        with translate_errors(self.path):
            self._file.write(part)
        self._sha256.update(part)
        self.size += len(part)

    def finish(self) -> bool:
        """Make the file durable if it is the expected one. Otherwise remove it and return False."""
        with translate_errors(self.path), self._file:
            if self.size == self.expected.size and self._sha256.hexdigest() == self.expected.sha256:
                self._file.flush()
                os.fsync(self._file.fileno())
                if self._link is not None:
                    _link(self.path, self._link)
                return True
            self.path.unlink()
            return False

    def close(self) -> None:
        """Close the file. The fetched bytes remain for the next attempt."""
        with translate_errors(self.path):
            self._file.close()


class PartialReplica:
    """The files fetched for the replica in the folder `into`. The replica must not be open."""

    def __init__(self, into: Path, failpoint: Failpoint = no_failpoint) -> None:
        self.into, self._failpoint = into, failpoint
        self.folder = _beside(into, ".partial")
        self._manifest, self._files, self._parts = (
            self.folder / "manifest.json", self.folder / "files", self.folder / "parts",
        )  # fmt: skip
        self._local_files: defaultdict[int, list[Path]] | None = None  # delay files of the current replica, by size

    def manifest(self) -> CheckpointManifest | None:
        """The manifest of an earlier attempt; None if it is missing or cannot be read."""
        try:
            with translate_errors(self.folder):
                return CheckpointManifest.decode(self._manifest.read_bytes()) if self._manifest.exists() else None
        except CorruptStore:
            return None

    def begin(self, manifest: CheckpointManifest) -> None:
        """Prepare for this manifest. Parts fetched for another manifest are reused if both have the file."""
        with translate_errors(self.folder):
            _remove(self._files)
            for folder in (self._files, self._parts):
                folder.mkdir(parents=True, exist_ok=True)
            write_durably(self._manifest, manifest.encode())
            sync_folder(self.into.parent)
        self._failpoint("begun")

    def missing_bytes(self, manifest: CheckpointManifest) -> int:
        """How many bytes must be fetched. A delay file counts as present if a local one has the same size."""
        previous = self.manifest()
        with translate_errors(self.folder):
            there = 0
            if previous is not None and previous.id == manifest.id and self._parts.exists():
                there = sum(part.stat().st_size for part in self._parts.iterdir())
            taken = sum(file.size for file in manifest.files if self._alike(file))
        return max(manifest.total_bytes - taken - there, 0)

    def link(self, file: ListedFile) -> bool:
        """Link a delay file instead of fetching it, if the current replica has a file with the same content."""
        path = self._files / file.name
        with translate_errors(path):
            for local_file in self._alike(file):
                if sha256_of(local_file) == file.sha256:
                    _link(local_file, path)
                    return True
        return False

    def _alike(self, file: ListedFile) -> list[Path]:
        """The current replica's delay files with the same size, among which this file may be."""
        if not file.name.startswith(f"{FOLDER}/"):
            return []
        if self._local_files is None:
            self._local_files = defaultdict(list)
            for local_file in (self.into / FOLDER).glob("*/*"):
                self._local_files[local_file.stat().st_size].append(local_file)
        return self._local_files[file.size]

    def open(self, file: ListedFile) -> PartialFile:
        return PartialFile(self._parts / file.sha256, file, self._files / file.name)

    def complete(self, manifest: CheckpointManifest) -> None:
        """Replace the replica. Every file in the manifest must be on this disk and durable.

        Raises CorruptStore if the store's state differs from the manifest, or if no replica could be opened on it. The
        old replica is then unchanged.
        """
        try:
            position = read_position(self._files)
        except CorruptStore:
            self.discard()
            raise
        state = (position.entry.number, position.entry.applied, position.entry.cursor, position.ledger_offset)
        if state != (manifest.entry, manifest.applied, manifest.cursor, manifest.ledger_offset):
            self.discard()
            raise CorruptStore(
                f"{self.folder}: the snapshot holds ledger entry {position.entry.number}, "
                f"its manifest says {manifest.entry}"
            )
        with translate_errors(self.folder):
            for folder in (self._files, *(path for path in self._files.rglob("*") if path.is_dir())):
                sync_folder(folder)
            self._failpoint("durable")
            self._files.rename(_beside(self.into, ".ready"))
            sync_folder(self.into.parent)
        self._failpoint("ready")
        finish_replacement(self.into, self._failpoint)

    def discard(self) -> None:
        """Drop everything fetched so far."""
        _remove(self.folder)


def finish_replacement(into: Path, failpoint: Failpoint = no_failpoint) -> None:
    """Finish a replacement that a crash interrupted. Call it before the replica in `into` is opened."""
    ready, old = _beside(into, ".ready"), _beside(into, ".old")
    with translate_errors(into):
        if ready.exists():
            _remove(_beside(into, ".partial"))
            failpoint("emptied")
            if into.exists():
                _remove(old)
                into.rename(old)
                failpoint("aside")
            ready.rename(into)
            sync_folder(into.parent)
            failpoint("in_place")
        elif old.exists() and not into.exists():
            old.rename(into)
        _remove(old)


def finish_replacements(shards: Path) -> None:
    """Finish the interrupted replacements in a data folder. `shards`: the folder that contains the replicas."""
    with translate_errors(shards):
        replicas = {path.stem for path in shards.glob("*.*") if path.suffix in (".ready", ".old")}
    for name in sorted(replicas):
        finish_replacement(shards / name)


def _link(file: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.link(file, path)


def _beside(into: Path, suffix: str) -> Path:
    return into.with_name(into.name + suffix)


def _remove(folder: Path) -> None:
    with translate_errors(folder):
        if folder.exists():
            shutil.rmtree(folder)
