"""The store of one shard in RocksDB: reads by key, scans in delivery order, and one atomic write per cycle."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from itertools import islice
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from rocksdict import IngestExternalFileOptions, WriteBatch

from duemq.model.errors import CorruptStore, StoreFailed
from duemq.model.messages.ended import EndedMessage
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import due_of, dues_of, first_key_at, last_key_at
from duemq.model.messages.row import topic_of
from duemq.model.rocksdb_errors import translate_errors
from duemq.model.timing import WINDOW_MS, window_of
from duemq.storage.delay_files.catalog import DelayFileCatalog
from duemq.storage.keyspace import (
    APPLIED,
    CURSOR,
    DELAY_FILE,
    DROPPED,
    DROPS,
    ENDED,
    LAST_END,
    LOADING,
    MOVED,
    NAME,
    POSITION,
    ROW,
    ROWLESS,
    ROWLESS_COUNT,
    U64,
    WHEN,
    WINDOW,
    LedgerPosition,
)
from duemq.storage.message_index.index import MessageIndex
from duemq.storage.rocksdb import Memory, open_store, without_log
from duemq.storage.shard.change_journal import Journal
from duemq.storage.shard.records import ImportRecords
from duemq.storage.shard.topic_counts import TopicCounts

Puts = list[tuple[bytes, bytes]]
ROWS_TOGETHER = 8
"""How many rows are read at once while their sizes are unknown: each may have up to a MiB."""
_NO_TOPICS: Mapping[bytes, int] = MappingProxyType({})
_NONE_KNOWN: Mapping[bytes, bytes | None] = MappingProxyType({})


class KeyScan:
    """The keys in a range, read in parts, as of the creation of the scan: later writes are invisible."""

    def __init__(self, database: Any, after: bytes, before: bytes) -> None:
        self._keys = database.keys(from_key=ROW + after + b"\x00")
        self._before = ROW + before
        self.done = False

    def part(self, count: int) -> npt.NDArray[np.int64]:
        """The due times (ms) of up to `count` more keys. `done` is set after the last one."""
        keys: list[bytes] = list(islice(self._keys, count))
        if len(keys) < count or keys[-1] >= self._before:
            self.done = True
            keys = [key for key in keys if key < self._before]
        return dues_of([key[1:] for key in keys])


class ShardStore:
    """One shard's database. Not thread-safe, except that `flush` and `compact` may run in a thread."""

    def __init__(self, path: Path, memory: Memory, ids: IdCodec | None = None) -> None:
        """`ids`: issues the ids of imported messages; not needed if there are none."""
        self.path = path
        self.db: Any = open_store(path, memory)  # Any, because rocksdict's types do not fit raw mode: all data is bytes
        self._options = without_log()
        self.unflushed_bytes = 0
        raw = self._get(POSITION)
        self.position = LedgerPosition() if raw is None else LedgerPosition.decode(raw)
        dropped = ((U64.unpack(key)[0], U64.unpack(count)[0]) for key, count in self.each(DROPS))
        self.imports = ImportRecords(self)
        self.last_ends = {U64.unpack(window)[0]: U64.unpack(at)[0] for window, at in self.each(LAST_END)}
        """When (ms) the last message due in a window ended, for windows that are not forgotten."""
        loading = (U64.unpack(key)[0] for key, _ in self.each(LOADING))
        rowless = ((U64.unpack(key)[0], U64.unpack(count)[0]) for key, count in self.each(ROWLESS_COUNT))
        self.delay_files = DelayFileCatalog(
            path, self.each(DELAY_FILE), dropped, loading, ids, self._may_be_imported, rowless
        )
        self.index = MessageIndex(self)
        entry = self.position.entry
        self.topic_counts = TopicCounts(self, entry.number, entry.pending, self.delay_files.unread)
        self._journals: list[Journal] = []
        self._compacting = threading.Lock()
        self._closing = False

    def _may_be_imported(self, offset: int) -> bool:
        """Whether a file that is not in the catalog may still be needed, because replaying the logs will reach its
        import command."""
        return offset >= self.position.entry.applied or offset in self.imports.pending

    def _get(self, key: bytes) -> bytes | None:
        with translate_errors(self.path):
            value: bytes | None = self.db.get(key)
            return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of full keys, which include their prefixes."""
        if not keys:
            return []
        with translate_errors(self.path):
            values: list[bytes | None] = self.db.get(list(keys))
            return values

    # --- by key ---------------------------------------------------------------------------------------------------

    def rows(self, keys: Sequence[bytes], known: Mapping[bytes, bytes | None] = _NONE_KNOWN) -> list[bytes | None]:
        """The rows of messages, including those in delay files, which take milliseconds each to read.

        `known`: earlier results from those files; None for a key that is in none of them.
        """
        rows = self.get_many([ROW + key for key in keys])
        if self.delay_files and (covered := [key for key in keys if self.delay_files.covers(key)]):
            dropped_keys = self._dropped_keys(covered)
            near = {key: row for key, row in zip(keys, rows, strict=True) if row is not None}
            file_keys = [key for key in covered if key not in near and key not in dropped_keys]
            unknown = [key for key in file_keys if key not in known]
            file_rows = self.delay_files.reader.rows(self.delay_files.by_file(unknown)) if unknown else {}
            rows_by_key = near | {key: known[key] if key in known else file_rows.get(key) for key in file_keys}
            rows = [None if key in dropped_keys else rows_by_key.get(key) for key in keys]
        return rows

    def near(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The rows of those messages that are in RocksDB."""
        rows = self.get_many([ROW + key for key in keys])
        # While a window is being loaded, its rows, including dropped ones, are both in RocksDB and in files.
        if self.delay_files.loading and (
            dropped_keys := self._dropped_keys([key for key in keys if self.delay_files.covers(key)])
        ):
            rows = [None if key in dropped_keys else row for key, row in zip(keys, rows, strict=True)]
        return rows

    def sealed_keys(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those of the keys whose message may be pending in a delay file."""
        undropped_keys = self.undropped_keys(keys)
        near_keys = self._near(undropped_keys)
        return [key for key in undropped_keys if key not in near_keys]

    def undropped_keys(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those of the keys whose message is pending if it is in a delay file."""
        covered_keys = [key for key in keys if self.delay_files.covers(key)] if self.delay_files else []
        dropped_keys = self._dropped_keys(covered_keys)
        return [key for key in covered_keys if key not in dropped_keys]

    def near_rows(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """The rows in RocksDB with their keys, including dropped messages if a window is being loaded. Reads a few at a
        time, because rows may be large."""
        for start in range(0, len(keys), ROWS_TOGETHER):
            some = keys[start : start + ROWS_TOGETHER]
            for key, row in zip(some, self.get_many([ROW + key for key in some]), strict=True):
                if row is not None:
                    yield key, row

    def has_row(self, key: bytes) -> bool:
        """Whether RocksDB has the row of a message. Does not read the row."""
        with translate_errors(self.path):
            return next(iter(self.db.keys(from_key=ROW + key)), None) == ROW + key

    def _near(self, keys: Sequence[bytes]) -> set[bytes]:
        """Those of the keys that have a row in RocksDB."""
        return {key for key, _ in self.near_rows(keys)}

    def _dropped_keys(self, keys: Sequence[bytes]) -> set[bytes]:
        marks = self.get_many([DROPPED + key for key in keys])
        return {key for key, mark in zip(keys, marks, strict=True) if mark is not None}

    def endings(self, keys: Sequence[bytes]) -> list[EndedMessage | None]:
        return [
            None if raw is None else EndedMessage.decode(raw) for raw in self.get_many([ENDED + key for key in keys])
        ]

    def current_keys(self, first_keys: Sequence[bytes]) -> list[bytes | None]:
        """The current keys of messages that were moved; None for messages that were not."""
        return self.get_many([MOVED + key for key in first_keys])

    def names(self, names: Sequence[bytes]) -> list[bytes | None]:
        """First key and fingerprint for each name that is in use; None for the others."""
        return self.get_many([NAME + name for name in names])

    def contents(self, sums: Sequence[str]) -> list[int | None]:
        """The offsets of the commands that import these contents (SHA-256 in hex); None for new ones."""
        return self.imports.contents(sums)

    def delivered_at(self, key: bytes, offset: int) -> int:
        """When the message under `key`, placed by the command at `offset`, was delivered (ms); 0 if that is forgotten.

        It was delivered in the later one of two cycles: the first cycle whose cursor reached the key, and the cycle
        that applied the command.
        """
        cycles = [self._first_at_or_after(CURSOR, key), self._first_at_or_after(APPLIED, U64.pack(offset + 1))]
        return 0 if None in cycles else max(when for when in cycles if when)[1]

    def _first_at_or_after(self, prefix: bytes, key: bytes) -> tuple[int, int] | None:
        with translate_errors(self.path):
            for row_key, raw in islice(self.db.items(from_key=prefix + key), 1):
                if row_key[:1] == prefix:
                    number, at = WHEN.unpack(raw)
                    return number, at
        return None

    # --- in order -------------------------------------------------------------------------------------------------

    def scan(
        self, after: bytes, through: bytes, max_count: int, max_bytes: int, prefix: bytes = ROW
    ) -> tuple[list[bytes], list[bytes]]:
        """Keys and rows above `after` up to `through`, bounded by count and bytes, but at least one if there is any."""
        keys: list[bytes] = []
        rows: list[bytes] = []
        last, size = prefix + through, 0
        with translate_errors(self.path):
            for key, row in islice(self.db.items(from_key=prefix + after + b"\x00"), max_count):
                if key > last:
                    break
                keys.append(key[1:])
                rows.append(row)
                size += len(row)
                if size >= max_bytes:
                    break
        return keys, rows

    def scan_all(self, after: bytes, through: bytes, max_count: int, max_bytes: int) -> tuple[list[bytes], list[bytes]]:
        """Like `scan`, but including the messages in delay files."""
        start: bytes | None = after
        while start is not None:
            keys, rows, start = self.scan_part(start, through, max_count, max_bytes)
            if keys:
                return keys, rows
        return [], []

    def scan_part(
        self, after: bytes, through: bytes, max_count: int, max_bytes: int
    ) -> tuple[list[bytes], list[bytes], bytes | None]:
        """A step of `scan_all`, which may find nothing. Also returns the key up to which it searched, None at the end.

        It scans either RocksDB up to the next window with files, or a part of one such window.
        """
        window = self.delay_files.next_after(after)
        if window is None or first_key_at(window) > through:
            keys, rows = self.scan(after, through, max_count, max_bytes)
            return keys, rows, keys[-1] if keys else None
        start = last_key_at(window - 1)
        if after < start:
            keys, rows = self.scan(after, start, max_count, max_bytes)
            return keys, rows, keys[-1] if keys else start
        through_window = min(last_key_at(window + WINDOW_MS - 1), through)
        keys, rows, end_key = self._merge(window, after, through_window, max_count, max_bytes)
        return keys, rows, end_key if end_key < through else None

    def _merge(
        self, window: int, after: bytes, through: bytes, max_count: int, max_bytes: int
    ) -> tuple[list[bytes], list[bytes], bytes]:
        """The merged keys and rows from RocksDB and from one window's files, and the key up to which it searched."""
        reads = (self.delay_files.reader.part(file, after, max_count) for file in self.delay_files.of(window))
        parts = [part for part in reads if part is not None]
        end_key = min([through, *(keys[-1] for keys, _ in parts)])
        near_keys, near_rows = self.scan(after, end_key, max_count, max_bytes)
        if len(near_keys) == max_count or sum(map(len, near_rows)) >= max_bytes:
            end_key = near_keys[-1]
        rows_by_key = dict(zip(near_keys, near_rows, strict=True))
        for keys, rows in parts:
            rows_by_key.update((key, row) for key, row in zip(keys, rows, strict=True) if key <= end_key)
        for key, _ in self.range(DROPPED + after, DROPPED + end_key + b"\x00"):
            rows_by_key.pop(key, None)
        keys = sorted(rows_by_key)
        if len(keys) > max_count:
            keys = keys[:max_count]
            end_key = keys[-1]
        return keys, [rows_by_key[key] for key in keys], end_key

    def scan_keys(self, after: bytes, before_ms: int) -> KeyScan:
        """The keys above `after` that are due before `before_ms`, to be read in parts."""
        with translate_errors(self.path):
            return KeyScan(self.db, after, first_key_at(before_ms))

    def each(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """All rows of one kind, in order, from `start` on, for housekeeping and verification."""
        with translate_errors(self.path):
            for key, value in self.db.items(from_key=prefix + start):
                if key[:1] != prefix:
                    return
                yield key[1:], value

    def range(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All rows from `start`, a key with its prefix, to below `end`."""
        with translate_errors(self.path):
            for key, value in self.db.items(from_key=start):
                if key >= end:
                    return
                yield key[1:], value

    def cursor(self) -> Any:
        """A RocksDB iterator over the current rows. While it exists, the store cannot be closed."""
        with translate_errors(self.path):
            return self.db.iter()

    def windows(self) -> dict[int, int]:
        """How many messages are pending in each 30-minute window (start in ms)."""
        return {U64.unpack(key)[0]: U64.unpack(value)[0] for key, value in self.each(WINDOW)}

    def holds(self, prefix: bytes, start_ms: int, end_ms: int) -> bool:
        """Whether there are rows of a kind whose keys are due in this period, excluding its end."""
        first, end = prefix + first_key_at(start_ms), prefix + first_key_at(end_ms)
        return next(self.range(first, end), None) is not None

    def check(self, after: bytes, before_ms: int) -> None:
        """Read a range block by block. Raises CorruptStore with RocksDB's error message if that fails."""
        last = ROW + first_key_at(before_ms)
        with translate_errors(self.path):
            rows = self.db.iter()
            rows.seek(ROW + after)
            while rows.valid() and rows.key() < last:
                rows.next()
            rows.status()

    # --- writing --------------------------------------------------------------------------------------------------

    def write(
        self,
        puts: Puts,
        deletes: Sequence[bytes],
        position: LedgerPosition,
        windows: dict[int, int],
        rowless: Collection[bytes] = (),
        topics: Mapping[bytes, int] | None = _NO_TOPICS,
    ) -> None:
        """Write one atomic batch. `puts` and `deletes` include their prefixes. Not durable until the next `flush`.

        `rowless`: the keys of messages in delay files that are cancelled without their rows. `topics`: how the number
        of pending messages changes per topic; None if that is unknown.
        """
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for key, value in sorted(puts, key=itemgetter(0)):  # RocksDB takes half the time if the keys are in order
            put(key, value)
        dropped_keys = self._in_files(deletes, frozenset(rowless)) if self.delay_files else set()
        if not dropped_keys.issuperset(rowless):
            raise CorruptStore(f"{self.path}: a message was cancelled whose row is neither here nor in a delay file")
        for key in dropped_keys:
            put(DROPPED + key, b"")
        for key in rowless:
            put(DROPPED + key, ROWLESS)
        for count_key, number in self.delay_files.drop(dropped_keys, rowless):
            put(count_key, number)
        for journal in self._journals:
            journal.record(puts, deletes, dropped_keys, rowless)
        for key in deletes:
            batch.delete(key)
        for start, count in windows.items():
            if count:
                put(WINDOW + U64.pack(start), U64.pack(count))
            else:
                batch.delete(WINDOW + U64.pack(start))
        self.topic_counts.move(batch, topics, position.entry.number, position.entry.pending)
        put(POSITION, position.encode())
        self.change(batch)
        self.position = position

    def _in_files(self, deletes: Sequence[bytes], rowless: Set[bytes]) -> set[bytes]:
        """Keys of deleted rows whose pending messages are in a delay file (during a load, they are in RocksDB, too).

        `rowless`: keys that are known to have no row in RocksDB.
        """
        keys = [key[1:] for key in deletes if key[:1] == ROW and self.delay_files.covers(key[1:])]
        near, loading = self._near([key for key in keys if key not in rowless]), self.delay_files.loading
        return {key for key in keys if key not in near or window_of(due_of(key)) in loading}

    def rowless_keys(self, window: int, after: bytes, limit: int) -> tuple[list[bytes], bytes]:
        """The keys of cancelled messages in a window's delay files whose endings have no rows yet.

        Reads the `limit` marks that follow the key `after`. Also returns the key of the last one; b"" at the end.
        """
        start = after + b"\0" if after else first_key_at(window)
        marks = list(islice(self.range(DROPPED + start, DROPPED + first_key_at(window + WINDOW_MS)), limit))
        return [key for key, mark in marks if mark == ROWLESS], marks[-1][0] if len(marks) == limit else b""

    def complete_endings(self, rows: Mapping[bytes, bytes]) -> None:
        """Add these rows, without payloads, to endings without rows. Forgotten endings stay forgotten."""
        keys = self.unread_keys(list(rows))
        batch = WriteBatch(raw_mode=True)
        for key, ended in zip(keys, self.endings(keys), strict=True):
            if ended is not None:
                batch.put(ENDED + key, ended._replace(row=rows[key]).encode())
            batch.put(DROPPED + key, b"")
        for count_key, number in self.delay_files.complete(keys):
            batch.put(count_key, number)
        through = self.topic_counts.through
        read = Counter(topic_of(rows[key]) for key in keys if key <= through)
        self.topic_counts.change(batch, {topic: -count for topic, count in read.items()})
        self.change(batch)

    def unread_keys(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those of the keys whose messages were cancelled in delay files and whose rows have not been read yet."""
        marks = self.get_many([DROPPED + key for key in keys])
        return [key for key, mark in zip(keys, marks, strict=True) if mark == ROWLESS]

    def count_topics(self, changes: Mapping[bytes, int], through: bytes) -> None:
        """Count by topic the messages, up to the key `through`, that were not counted yet."""
        batch = WriteBatch(raw_mode=True)
        self.topic_counts.change(batch, changes, through)
        self.change(batch)

    def change(self, batch: WriteBatch) -> None:
        """Write a batch that does not change the position."""
        size = batch.size_in_bytes()
        with translate_errors(self.path):
            self.db.write(batch, self._options)
        self.unflushed_bytes += size

    def watch(self, windows: Collection[int]) -> Journal:
        """Record changes to windows until `end`."""
        journal = Journal(windows)
        self._journals.append(journal)
        return journal

    def end(self, journal: Journal) -> None:
        self._journals.remove(journal)

    def ingest(self, sst: Path) -> None:
        """Ingest a sorted file by moving it. Blocks; run it in a thread."""
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        with translate_errors(self.path):
            self.db.ingest_external_file([str(sst)], options)

    def drop(self, prefix: bytes, start: bytes, end: bytes) -> None:
        """Drop a range of rows of one kind, excluding `end`."""
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(prefix + start, prefix + end)
        with translate_errors(self.path):
            self.db.write(batch, self._options)

    def purge_ends(self, before_ms: int) -> None:
        """Forget when the last messages ended in windows that start before this time."""
        self.drop(LAST_END, b"", U64.pack(before_ms))
        self.last_ends = {window: at for window, at in self.last_ends.items() if window >= before_ms}

    def delete(self, keys: Sequence[bytes]) -> None:
        batch = WriteBatch(raw_mode=True)
        for key in keys:
            batch.delete(key)
        with translate_errors(self.path):
            self.db.write(batch, self._options)

    def flush(self) -> None:
        """Make everything written so far durable. Blocks; run it in a thread."""
        self.unflushed_bytes = 0
        with translate_errors(self.path):
            self.db.flush(True)

    def compact(self, start: bytes | None = None, end: bytes | None = None) -> None:
        """Free the space of dropped ranges. Blocks; run it in a thread. `close` interrupts it."""
        with self._compacting, translate_errors(self.path):
            try:
                if not self._closing:
                    self.db.compact_range(start, end)
            except Exception:
                if not self._closing:
                    raise

    def close(self) -> None:
        """Close the database. A running compaction is stopped; then the last flush is left out: the logs have its
        changes."""
        self._closing = True
        self.delay_files.reader.close()
        if stopped := self._compacting.locked():  # stop it, because rocksdict cannot close a database that is in use
            self.db.cancel_all_background(True)
        with self._compacting:
            try:
                with translate_errors(self.path):
                    self.db.close()
            except StoreFailed:
                if not stopped:
                    raise
