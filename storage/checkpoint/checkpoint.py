"""A checkpoint of a shard's store: its files as they were at one position, for a peer to copy.

It consists of hard links, so it takes no extra space until the store drops those files. Its manifest lists its content.
To raise `FORMAT`, keep reading the old format as long as upgrades from it are allowed: during an upgrade both versions
run side by side, and a node refuses a manifest with another format.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import orjson
from rocksdict import AccessType, Checkpoint, Options, Rdict

from duemq.model.errors import CorruptStore, DamagedFile
from duemq.model.rocksdb_errors import translate_errors
from duemq.storage.delay_files.catalog import FOLDER
from duemq.storage.keyspace import POSITION, U64, WINDOW, LedgerPosition
from duemq.storage.manifest import ListedFile, check_files, other_format
from duemq.storage.shard.store import ShardStore

FORMAT = 1
# File names come from a peer, so they must not lead outside the folder. Delay files are in one folder per window.
_SAFE_NAME = re.compile(r"(?:far/\d{1,20}/)?[A-Za-z0-9_][A-Za-z0-9._-]*")
_NO_SHA256 = "0" * 64


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """The content of a checkpoint: a shard after ledger entry `entry`, and its files. The other numbers and the cursor
    are those of the `LedgerPosition` in the store.

    A file may lack its checksum (`sha256` is empty). Then the checksum is requested from the peer when the file is
    fetched.
    """

    id: str
    shard: int
    entry: int
    applied: int
    cursor: bytes
    ledger_offset: int
    files: tuple[ListedFile, ...]

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """Encode the manifest as JSON."""
        return orjson.dumps(asdict(self) | {"format": FORMAT, "cursor": self.cursor.hex()})

    @staticmethod
    def decode(raw: bytes) -> CheckpointManifest:
        """Raises CorruptStore if it is not a manifest in this format, or names files outside of its folder."""
        try:
            document = orjson.loads(raw)
            if document["format"] != FORMAT:
                raise CorruptStore(other_format("the manifest of a snapshot", document["format"], FORMAT))
            files = tuple(ListedFile(str(f["name"]), int(f["size"]), str(f["sha256"])) for f in document["files"])
            check_files([replace(file, sha256=file.sha256 or _NO_SHA256) for file in files], _SAFE_NAME)
            return CheckpointManifest(
                str(document["id"]), int(document["shard"]), int(document["entry"]), int(document["applied"]),
                bytes.fromhex(document["cursor"]), int(document["ledger_offset"]), files,
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptStore(f"not the manifest of a snapshot: {raw[:200]!r}") from error


def make_checkpoint(store: ShardStore, into: Path, *, delay_files: bool = True) -> None:
    """Link the store's files, and its delay files unless `delay_files` is False, into a new folder on the same disk.

    Blocks; run it in a thread. The store may be written at the same time: the checkpoint then has its state at some
    moment after the call. No window may be sealed or loaded at the same time. Raises DiskFull or StoreFailed, and
    DamagedFile if a delay file is missing.
    """
    # Flush nearly everything first: the checkpoint flushes the rest itself, without releasing the GIL.
    store.flush()
    with translate_errors(into):
        into.parent.mkdir(parents=True, exist_ok=True)
        Checkpoint(store.db).create_checkpoint(str(into))
        for name in store.delay_files.names() if delay_files else ():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(store.path / name, into / name)
            except FileNotFoundError as error:
                raise DamagedFile(f"delay file {store.path / name} is missing", str(store.path / name)) from error


def link_imported(store: ShardStore, into: Path) -> None:
    """Link into a checkpoint those imported files in the shard's folder that it lacks. Blocks; run it in a thread.

    A later ledger entry may import a file whose import the checkpoint lists as pending, or does not list at all.
    """
    with translate_errors(into):
        for path in (store.path / FOLDER).glob("*/a*.parquet"):
            target = into / path.relative_to(store.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError, FileNotFoundError):  # it is already linked, or was removed in the meantime
                os.link(path, target)


def describe(checkpoint: Path, shard: int, *, sums: bool = True) -> CheckpointManifest:
    """The manifest of a checkpoint. Its folder's name becomes the id. Blocks: reads every byte for the checksums.

    With `sums` False the manifest has no checksums, and only the position is read.
    """
    position = read_position(checkpoint)
    entry = position.entry
    with translate_errors(checkpoint):
        paths = sorted(path for path in checkpoint.rglob("*") if path.is_file())
        files = tuple(
            ListedFile(str(path.relative_to(checkpoint)), path.stat().st_size, sha256_of(path) if sums else "")
            for path in paths
        )
    return CheckpointManifest(
        checkpoint.name, shard, entry.number, entry.applied, entry.cursor, position.ledger_offset, files
    )


def with_sum(file: ListedFile, sha256: str) -> ListedFile:
    """A file from a manifest without checksums, with this checksum added. Raises CorruptStore if the text is not
    one."""
    summed = replace(file, sha256=sha256)
    try:
        check_files((summed,), _SAFE_NAME)
    except ValueError as error:
        raise CorruptStore(f"not the checksum of a file: {sha256[:100]!r}") from error
    return summed


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hex. Blocks. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_position(path: Path) -> LedgerPosition:
    """The position of a store that is not open. Blocks.

    Raises StoreFailed if it cannot be opened. Raises CorruptStore if it is corrupt, and also if the counts of its
    windows differ from its entry, because then no replica could be opened on it.
    """
    with translate_errors(path):
        # Opened only for reading: compactions would change the files, which a manifest lists.
        database: Any = Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only())
        try:
            raw = database.get(POSITION)
            windows = takewhile(lambda row: row[0][:1] == WINDOW, database.items(from_key=WINDOW))
            counted = sum(U64.unpack(count)[0] for _, count in windows)
        finally:
            database.close()
    position = LedgerPosition() if raw is None else LedgerPosition.decode(raw)
    if counted != position.entry.pending:
        raise CorruptStore(
            f"{path}: its windows count {counted} pending messages, its ledger entry {position.entry.number} says "
            f"{position.entry.pending}"
        )
    return position
