"""A checkpoint on its way from a peer into the place of a replica.

Beside the replica's folder `003` there may be, and a crash may leave:

003.partial/manifest.json   what is being fetched
003.partial/files/          as much of it as there is; fetching goes on from here
003.ready/                  complete, verified and durable: from this rename on, this is the replica
003.old/                    the replica it replaces, about to be deleted

Everything here blocks: run it in a thread. OSErrors come out as DiskFull or StoreFailed.
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
from duemq.storage.backup.checkpoint import CheckpointManifest, read_position
from duemq.storage.delay_files.catalog import FOLDER
from duemq.storage.fsync import sync_folder, write_durably
from duemq.storage.manifest import ListedFile

_READ_BYTES = 1 << 20


class PartialFile:
    """One file that is being fetched. `size`: how many bytes of it are there."""

    def __init__(self, path: Path, expected: ListedFile) -> None:
        self.path, self.expected, self.size = path, expected, 0
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
        """Make the file durable if it is what was wanted, or remove it: False."""
        with translate_errors(self.path), self._file:
            if self.size == self.expected.size and self._sha256.hexdigest() == self.expected.sha256:
                self._file.flush()
                os.fsync(self._file.fileno())
                return True
            self.path.unlink()
            return False

    def close(self) -> None:
        """Leave what is there for the next attempt."""
        with translate_errors(self.path):
            self._file.close()


class Partial:
    """What has been fetched for the replica in the folder `into`, which nobody may have open."""

    def __init__(self, into: Path, failpoint: Failpoint = no_failpoint) -> None:
        self.into, self._failpoint = into, failpoint
        self.folder = _beside(into, ".partial")
        self._manifest, self._files = self.folder / "manifest.json", self.folder / "files"
        self._files_by_size: defaultdict[int, list[Path]] | None = None  # delay files of the replica in place, by size

    def manifest(self) -> CheckpointManifest | None:
        """What an earlier attempt was fetching, if that can be read."""
        try:
            with translate_errors(self.folder):
                return CheckpointManifest.decode(self._manifest.read_bytes()) if self._manifest.exists() else None
        except CorruptStore:
            return None

    def begin(self, manifest: CheckpointManifest) -> None:
        """Prepare for this manifest. Of what is there only files that it has too are kept, however much of them."""
        previous = self.manifest()
        useful = set(manifest.files) & set(previous.files) if previous else set()
        keep = {file.name: file.size for file in useful}
        with translate_errors(self.folder):
            self._files.mkdir(parents=True, exist_ok=True)
            for path in [path for path in self._files.rglob("*") if path.is_file()]:
                if path.stat().st_size > keep.get(str(path.relative_to(self._files)), -1):
                    path.unlink()
            # Only now: under the new manifest, the files of the old one would be taken for parts of the new ones.
            sync_folder(self._files)
            write_durably(self._manifest, manifest.encode())
            sync_folder(self.into.parent)
        self._failpoint("begun")

    def take(self, file: ListedFile) -> bool:
        """Link a delay file that the replica in place has as well, under whatever name, rather than fetch it."""
        if not file.name.startswith(f"{FOLDER}/"):
            return False
        path = self._files / file.name
        with translate_errors(path):
            if self._files_by_size is None:
                self._files_by_size = defaultdict(list)
                for local_file in (self.into / FOLDER).glob("*/*"):
                    self._files_by_size[local_file.stat().st_size].append(local_file)
            for local_file in self._files_by_size[file.size]:
                if _sha256_of(local_file) == file.sha256:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.unlink(missing_ok=True)
                    os.link(local_file, path)
                    return True
        return False

    def open(self, file: ListedFile) -> PartialFile:
        return PartialFile(self._files / file.name, file)

    def complete(self, manifest: CheckpointManifest) -> None:
        """Put it in the replica's place; every file of the manifest must be there and durable.

        Raises CorruptStore, with the old replica untouched, if it holds another state than the manifest says.
        """
        position = read_position(self._files)
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
        settle(self.into, self._failpoint)

    def discard(self) -> None:
        """Forget what was fetched so far."""
        _remove(self.folder)


def settle(into: Path, failpoint: Failpoint = no_failpoint) -> None:
    """Bring a replacement to its end that a crash cut short; to be called before the replica in `into` is opened."""
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


def settle_all(shards: Path) -> None:
    """Settle every replica of a data folder. `shards`: the folder of their folders."""
    with translate_errors(shards):
        replicas = {path.stem for path in shards.glob("*.*") if path.suffix in (".ready", ".old")}
    for name in sorted(replicas):
        settle(shards / name)


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _beside(into: Path, suffix: str) -> Path:
    return into.with_name(into.name + suffix)


def _remove(folder: Path) -> None:
    with translate_errors(folder):
        if folder.exists():
            shutil.rmtree(folder)
