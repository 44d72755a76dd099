"""Opens the log's RocksDB."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from duemq.bus.embedded import layout
from duemq.bus.embedded.wal import cut_torn_end
from duemq.model.errors import CorruptStore, FolderRefused
from duemq.model.messages.names import group_cursor
from duemq.model.rocksdb_errors import translate_errors

log = logging.getLogger(__name__)


def log_options() -> Options:
    """Options for large values that are written and mostly read in order, and soon dropped."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_paranoid_checks(True)
    # By default, recovery stops at the first bad record in the WAL and silently drops the acknowledged records after
    # it.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_compression_type(DBCompressionType.lz4())
    # `write` holds the GIL, so a stalled write would stop the whole process. Buffers and level 0 therefore have room to
    # spare.
    options.set_write_buffer_size(16 << 20)
    options.set_max_write_buffer_number(6)
    options.set_level_zero_file_num_compaction_trigger(6)
    options.set_level_zero_slowdown_writes_trigger(60)
    options.set_level_zero_stop_writes_trigger(100)
    options.set_max_bytes_for_level_base(512 << 20)
    options.set_max_total_wal_size(256 << 20)
    options.set_max_background_jobs(2)
    options.set_max_open_files(256)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 << 20)
    options.set_stats_dump_period_sec(0)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(16 << 20))
    table.set_block_size(32 << 10)
    options.set_block_based_table_factory(table)
    return options


def scan_options() -> ReadOptions:
    """Options for sequential reads, which must not evict everything else from the block cache."""
    options = ReadOptions()
    options.set_verify_checksums(True)
    options.set_readahead_size(1 << 20)
    return options


def open_log(folder: Path) -> Rdict:
    """Raises FolderRefused (in use, or of another version), CorruptStore, DiskFull or StoreFailed."""
    with translate_errors(f"opening the log in {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        # RocksDB syncs the content of its folder, but not the folder's entry in the parent folder.
        parent = os.open(folder.parent, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
        db = _open(folder)
        raw_version = db.get(layout.VERSION_KEY)
        if raw_version is None and not _is_empty(db):
            db.close()
            raise FolderRefused(f"{folder} holds something that is not a log of duemq; name another folder")
        version = layout.VERSION if raw_version is None else int.from_bytes(raw_version, "big")
        if version == 1:
            _separate_cursors(db)
        elif version != layout.VERSION:
            db.close()
            raise FolderRefused(
                f"the log in {folder} has layout {version}, this duemq reads layout {layout.VERSION}: "
                "start the version that wrote it"
            )
        if raw_version is None:
            db.put(layout.VERSION_KEY, version.to_bytes(2, "big"))
            db.flush_wal(True)  # sync each write before the next one: `cut_torn_end` relies on this
        return db


def _separate_cursors(db: Rdict) -> None:
    """Convert layout 1 to 2: copy destinations' cursors to names that no client can use. The former names stay, because
    a client's consumer may use one of them."""
    batch, rows = WriteBatch(raw_mode=True), db.iter()
    rows.seek(layout.CURSORS)
    while rows.valid() and rows.key().startswith(layout.CURSORS):
        topic, name = layout.read_cursor_key(rows.key())
        if name.startswith(layout.FORMER_GROUPS):
            batch.put(layout.cursor_key(topic, group_cursor(name)), rows.value())
        rows.next()
    rows.status()
    batch.put(layout.VERSION_KEY, layout.VERSION.to_bytes(2, "big"))
    db.write(batch)
    db.flush_wal(True)


def _open(folder: Path) -> Rdict:
    try:
        with translate_errors(folder):
            return Rdict(str(folder), log_options())
    except CorruptStore:
        cut = cut_torn_end(folder)
        if not cut:
            raise
    log.warning(
        "log: cut off the torn end of the last write before a power cut, %d bytes: it was never acknowledged", cut,
        extra={"action": "log_torn", "bytes": cut},
    )  # fmt: skip
    return Rdict(str(folder), log_options())


def link_log(db: Rdict, into: Path) -> None:
    """Make a checkpoint of the log in a new folder, with hard links. It blocks: run it in a thread.

    The log may be written to concurrently: everything synced before the call is included. Raises DiskFull or
    StoreFailed.
    """
    with translate_errors(into):
        into.parent.mkdir(parents=True, exist_ok=True)
        # A checkpoint would hold the GIL while it flushes, so flush first.
        db.flush(True)
        Checkpoint(db).create_checkpoint(str(into))


def _is_empty(db: Rdict) -> bool:
    rows = db.iter()
    rows.seek_to_first()
    rows.status()
    return not rows.valid()


def folder_bytes(folder: Path) -> int:
    """The disk space, in bytes, that a folder's files take."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                total += entry.stat().st_blocks * 512
            except FileNotFoundError:
                continue  # RocksDB deleted it concurrently
    return total
