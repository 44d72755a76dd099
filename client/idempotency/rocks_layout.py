"""The layout of a RocksDB store on disk, and how its folder is opened.

    b"k" key                            -> session (u64), since, until, expires (u64, ms), length of owner (u32),
                                           whether done (u8), owner, result
    b"x" minute of expiry (u64) key     -> nothing
    b"v"                                -> version of this layout (u16), session (u64)

Every row has an entry `x` for the minute in which it expires; the entries for past minutes are removed as one range.
The session is a number that grows each time a process opens the folder. RocksDB allows only one process at a time, so
the owners of unfinished work from other sessions no longer exist, however long their leases are.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from struct import Struct
from struct import error as StructError

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options, Rdict, WriteBatch

from duemq.client.idempotency.states import KeyRow
from duemq.model.errors import CorruptStore, FolderRefused
from duemq.model.rocksdb_errors import translate, translate_errors
from duemq.storage.fsync import make_folder

VERSION = 1
MINUTE_MS = 60_000
_VERSION_KEY = b"v"
_HEAD = Struct(">HQ")
_ROW = Struct(">QQQQIB")
_MINUTE = Struct(">Q")


class SessionOver(FolderRefused):
    """Another process has opened the folder since, and may have begun the work of our session again."""


def open_folder(folder: Path) -> tuple[Rdict, int]:
    """Open the database for a new session. Returns it with the session's number. Raises FolderRefused, CorruptStore,
    DiskFull or StoreFailed."""
    with translate_errors(f"opening the store of idempotency keys in {folder}"):
        make_folder(folder)  # private: it contains the results of handlers
        db = Rdict(str(folder), _options())
        try:
            session = _last_session(db, folder) + 1
            _write_session(db, session)
        except BaseException:
            db.close()
            raise
        return db, session


def reopen_folder(folder: Path, session: int) -> Rdict:
    """Reopen the database for the same session. Raises SessionOver, and the errors that `open_folder` raises."""
    with translate_errors(f"opening the store of idempotency keys in {folder} again"):
        options = _options()
        options.create_if_missing(False)  # if a disk is unmounted, its mount point is an empty folder
        db = Rdict(str(folder), options)
        try:
            if (last := _last_session(db, folder)) != session:
                raise SessionOver(
                    f"{folder} is at session {last} and not at {session}: another process opened it, or it was put in "
                    "the place of the one that failed. Restart this process, alone"
                )
            _write_session(db, session)  # raises an error if the database accepts no writes yet
        except BaseException:
            db.close()
            raise
        return db


def _last_session(db: Rdict, folder: Path) -> int:
    """The number of the last session; 0 in a new folder."""
    head = db.get(_VERSION_KEY)
    if head is None or len(head) != _HEAD.size:
        rows = db.iter()
        rows.seek_to_first()
        if rows.valid():
            raise FolderRefused(f"{folder} contains something else than idempotency keys; use another folder")
        return 0
    version, session = _HEAD.unpack(head)
    if version != VERSION:
        raise FolderRefused(
            f"the store of idempotency keys in {folder} has layout {version}, this duemq reads layout {VERSION}: "
            "start the version that wrote it"
        )
    return int(session)


def _write_session(db: Rdict, session: int) -> None:
    db.put(_VERSION_KEY, _HEAD.pack(VERSION, session))
    db.flush_wal(True)


def read_row(db: Rdict, key: bytes, session: int) -> KeyRow | None:
    """The row for a key. Raises CorruptStore if this key is damaged, and RocksDB's errors."""
    try:
        stored = db.get(b"k" + key)
        if stored is None:
            return None
        of, since, until, expires, length, done = _ROW.unpack_from(stored)
        at = _ROW.size + length
        row = KeyRow(stored[_ROW.size : at].decode(), since, until, expires, stored[at:] if done else None)
    except (StructError, UnicodeDecodeError) as error:
        raise CorruptStore(f"the row of idempotency key {key!r} is damaged: {error}") from error
    except Exception as error:
        failure = translate(f"reading idempotency key {key!r}", error)
        if isinstance(failure, CorruptStore):
            raise failure from error
        raise
    return row if of == session else replace(row, until_ms=since)


def stage_row(batch: WriteBatch, key: bytes, row: KeyRow | None, session: int) -> None:
    if row is None:
        batch.delete(b"k" + key)
        return
    owner, done = row.owner.encode(), row.result is not None
    head = _ROW.pack(session, row.since_ms, row.until_ms, row.expires_ms, len(owner), done)
    batch.put(b"k" + key, head + owner + (row.result or b""))
    batch.put(expiry_key(row.expires_ms) + key, b"")


def expiry_key(ms: int) -> bytes:
    """The prefix of the entries for rows that expire in the same minute as `ms`."""
    return b"x" + _MINUTE.pack(ms // MINUTE_MS)


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_paranoid_checks(True)
    # By default, RocksDB stops at the first bad record in the WAL, and silently drops acknowledged records after it.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(16 << 20)
    options.set_max_total_wal_size(64 << 20)
    options.set_max_background_jobs(2)
    options.set_max_open_files(128)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_level_compaction_dynamic_level_bytes(True)
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)  # most keys that are looked up do not exist yet
    table.set_block_cache(Cache(16 << 20))
    options.set_block_based_table_factory(table)
    return options
