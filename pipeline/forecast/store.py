"""Reads the store of a stopped shard: the number of pending rows, and the rows in delay files that are not pending.

Stores are opened read-only, so that a backup stays unchanged. All functions except `describe` run on Spark's executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rocksdict import AccessType, Options, Rdict

from duemq.model.errors import CorruptStore
from duemq.model.messages.key import KEY_BYTES, KEY_DTYPE, first_key_at
from duemq.model.messages.row import topic_of
from duemq.model.rocksdb_errors import translate_errors
from duemq.model.timing import WINDOW_MS
from duemq.storage.delay_files.about import About
from duemq.storage.delay_files.catalog import CatalogFile
from duemq.storage.keyspace import DELAY_FILE, DROPPED, DROPS, LOADING, POSITION, ROW, U32, U64, LedgerPosition

COUNTED: Final = pa.schema([("shard", pa.int32()), ("topic", pa.string()), ("second_ms", pa.int64()),
                            ("messages", pa.int64())])  # fmt: skip
KEYS: Final = pa.schema([("shard", pa.int32()), ("due_ms", pa.int64()), ("offset", pa.int64()),
                         ("row", pa.int64())])  # fmt: skip
SECOND_MS: Final = 1_000
_PART: Final = 50_000
_TOPIC_SHIFT: Final = 44  # bits for the number of a second: more than due times need

Columns = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """A stopped shard. `pending`: its number of pending messages at `at` (epoch ms; 0: it never had any).

    `files`: its delay files. `dropped`: whether any of their rows are no longer pending, or are in RocksDB as well.
    """

    shard: int
    path: Path
    at: int
    pending: int
    files: tuple[CatalogFile, ...]
    dropped: bool


def describe(path: Path) -> StoreFiles:
    """The store in this folder. Raises CorruptStore or StoreFailed."""
    with _opened(path) as database:
        raw = database.get(POSITION)
        entry = (LedgerPosition() if raw is None else LedgerPosition.decode(raw)).entry
        files = tuple(
            CatalogFile(About.decode(about), U32.unpack_from(key, 1 + U64.size)[0])
            for key, about in _each(database, DELAY_FILE)
        )
        dropped = any(U64.unpack(count)[0] for _, count in _each(database, DROPS)) or bool(_loading(database))
    return StoreFiles(int(path.name), path, entry.at, entry.pending, files, dropped)


def count(shard: int, path: Path) -> Iterator[pa.RecordBatch]:
    """The pending messages in RocksDB, as `COUNTED`; a second may be split over two batches. Raises CorruptStore."""
    with _opened(path) as database:
        raw = database.get(POSITION)
        if raw is None:
            return
        cursor = LedgerPosition.decode(raw).entry.cursor
        loading, dropped_keys = _loading(database), _dropped_while_loading(database)
        for keys, rows in _parts(database, ROW, ROW + cursor + b"\x00"):
            dues = _fields(keys)["due"].astype(np.int64)
            topics = pa.array(map(topic_of, rows), pa.binary()).dictionary_encode()
            codes = topics.indices.to_numpy().astype(np.int64)
            if dropped_keys:
                places = _not_in(keys, dues, dropped_keys, loading)
                dues, codes = dues[places], codes[places]
            pairs, counts = np.unique((codes << _TOPIC_SHIFT) | dues // SECOND_MS, return_counts=True)
            yield pa.record_batch(
                [
                    pa.array(np.full(len(pairs), shard, np.int32)),
                    topics.dictionary.cast(pa.string()).take(pa.array(pairs >> _TOPIC_SHIFT)),
                    pa.array((pairs & ((1 << _TOPIC_SHIFT) - 1)) * SECOND_MS),
                    pa.array(counts.astype(np.int64)),
                ],
                schema=COUNTED,
            )


def not_in_files(shard: int, path: Path) -> Iterator[pa.RecordBatch]:
    """The keys of the rows in delay files that must not be counted, as `KEYS`; some keys appear twice.

    These messages were cancelled, moved or dead-lettered, or are in RocksDB already because their window is being
    loaded.
    """
    with _opened(path) as database:
        ranges = [(DROPPED, DROPPED, DROPPED + b"\xff")]
        ranges += [
            (ROW, ROW + first_key_at(window), ROW + first_key_at(window + WINDOW_MS)) for window in _loading(database)
        ]
        for prefix, start, end in ranges:
            for keys, _ in _parts(database, prefix, start, end):
                fields = _fields(keys)
                columns = [fields[name].astype(np.int64) for name in ("due", "offset", "row")]
                yield pa.record_batch(
                    [pa.array(np.full(len(keys), shard, np.int32)), *map(pa.array, columns)], schema=KEYS
                )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with translate_errors(path), TemporaryDirectory(prefix="duemq-") as logs:
        if not (path / "CURRENT").is_file():
            raise CorruptStore(f"{path} is no store: it has no file CURRENT")
        options = Options(raw_mode=True)
        options.set_db_log_dir(logs)  # RocksDB writes a log even when it only reads, and a backup must not change
        database = Rdict(str(path), options, access_type=AccessType.read_only())
        try:
            yield database
        finally:
            database.close()


def _each(database: Any, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    for key, value in database.items(from_key=prefix):
        if key[:1] != prefix:
            return
        yield key, value


def _loading(database: Any) -> set[int]:
    return {U64.unpack(key[1:])[0] for key, _ in _each(database, LOADING)}


def _dropped_while_loading(database: Any) -> frozenset[bytes]:
    """Keys of rows that may be in RocksDB although they are not pending, because loading a file restores old rows."""
    return frozenset(
        key[1:]
        for window in _loading(database)
        for keys, _ in _parts(
            database, DROPPED, DROPPED + first_key_at(window), DROPPED + first_key_at(window + WINDOW_MS)
        )
        for key in keys
    )


def _not_in(keys: list[bytes], dues: Columns, dropped_keys: frozenset[bytes], loading: set[int]) -> Columns:
    """The positions of the keys that are pending. Few windows are loaded at a time, so few keys need a check."""
    mask = np.ones(len(keys), np.bool_)
    for at in np.flatnonzero(np.isin(dues - dues % WINDOW_MS, list(loading))).tolist():
        mask[at] = keys[at][1:] not in dropped_keys
    return np.flatnonzero(mask)


def _parts(
    database: Any, prefix: bytes, start: bytes, end: bytes | None = None
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """The rows with this prefix, in parts; the keys include it. Raises CorruptStore for a damaged block."""
    last = end or prefix + b"\xff" * (KEY_BYTES + 1)
    rows = database.iter()
    rows.seek(start)

    def each() -> Iterator[tuple[bytes, bytes]]:
        while rows.valid() and (key := rows.key()) < last:
            yield key, rows.value()
            rows.next()
        rows.status()  # raises for a damaged block, which ends the iteration silently

    pairs = each()
    while part := list(islice(pairs, _PART)):
        yield [key for key, _ in part], [row for _, row in part]


def _fields(keys: list[bytes]) -> Columns:
    """The fields of `KEY_DTYPE` in keys with a prefix."""
    dtype = np.dtype([("prefix", "S1"), *((name, KEY_DTYPE[name]) for name in KEY_DTYPE.names or ())])
    return np.frombuffer(b"".join(keys), dtype)
