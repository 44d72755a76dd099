"""The messages of imported files: row `i` of a file is the message `due | offset of the command | i`.

The rows are read from the file, where it is still what was imported. Where it is gone, so many messages are known by
their numbers: they were due in the file's window, and nobody can say more. Files are looked at and read by executors,
which see them under the names that duemq saw them under: a path, or an object (`s3://`) that each executor reads from
its store, by pyarrow, which is on every executor anyway.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.model.log.ledger import Answer
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.files.s3a import store_of
from duemq.pipeline.logs.envelopes import packed_hash
from duemq.pipeline.logs.plain_records import metadata
from duemq.pipeline.spark.parallel import tasks_for
from duemq.storage.object_store import SCHEME, ObjectStore, bucket_of, is_object

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

_PART: Final = 4 << 20
_BATCH: Final = 16_384  # rows
_ATTEMPTS: Final = 4  # an audit does not come again later, as a node does
_MAX_WORDS: Final = 200  # characters
_NO_NETWORK: Final = "NETWORK_CONNECTION"  # the AWS SDK's name for a store that does not answer
ROWS: Final = (
    "shard int, offset bigint, row bigint, due bigint, at bigint, topic string, counted boolean, expires bigint, "
    "content bigint, metadata bigint"
)
_FILES: Final = (
    "shard int, offset bigint, rows bigint, at bigint, path string, window bigint, size bigint, sha256 string, "
    "why_not string"
)
_READ: Final = (
    "shard int, offset bigint, row bigint, due bigint, at bigint, topic string, expires bigint, payload binary, "
    "metadata binary"
)
_COLUMNS: Final = ("due_ms", "expires_ms", "topic", "payload", "key", "headers", "labels")
_READ_SCHEMA: Final = pa.schema([
    ("shard", pa.int32()), ("offset", pa.int64()), ("row", pa.int64()), ("due", pa.int64()), ("at", pa.int64()),
    ("topic", pa.string()), ("expires", pa.int64()), ("payload", pa.binary()), ("metadata", pa.binary()),
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class AuditedFile:
    """`offset`: of its command; `at`: when its messages were accepted; `why_not`: why its rows cannot be read."""

    shard: int
    offset: int
    rows: int
    at: int
    path: str
    window: int
    size: int
    sha256: str
    why_not: str = ""


Stores = Mapping[str, ObjectStore]
"""Object stores by bucket."""


def imported_files(commands: DataFrame, answers: DataFrame, entries: DataFrame) -> list[AuditedFile]:
    """The files that were imported in the range by commands of the range."""
    imports = entries.select("shard", F.col("at").alias("taken_at"), F.explode("imported").alias("one")).where(
        "one.reason = ''"
    )
    row_counts = imports.select("shard", "taken_at", "one.offset", F.col("one.rows").alias("taken"))
    import_commands = commands.where("kind = 'import'").join(
        answers.where(F.col("answer") == int(Answer.FILE_PENDING)), ["shard", "offset"]
    )
    rows = import_commands.join(row_counts, ["shard", "offset"]).orderBy("shard", "offset").collect()
    return [
        AuditedFile(one.shard, one.offset, one.taken, one.taken_at, one.path, one.window, one["size"], one.sha256)
        for one in rows
    ]


def looked_at(spark: SparkSession, files: Sequence[AuditedFile]) -> list[AuditedFile]:
    """The same files with `why_not`, each read for its checksum by an executor."""
    stores = _stores(spark, files)
    # Each request to a store that does not answer waits for a time-out: ask it once, however many files it has.
    first = {bucket_of(file.path): file for file in files if is_object(file.path)}
    why = _reasons(spark, list(first.values()), stores)
    silent = {bucket: why[_command(file)] for bucket, file in first.items() if _NO_NETWORK in why[_command(file)]}
    why |= {_command(file): silent[bucket_of(file.path)] for file in files
            if is_object(file.path) and bucket_of(file.path) in silent}  # fmt: skip
    why |= _reasons(spark, [file for file in files if _command(file) not in why], stores)
    return [replace(file, why_not=why[_command(file)]) for file in files]


def _command(file: AuditedFile) -> tuple[int, int]:
    return file.shard, file.offset


def _stores(spark: SparkSession, files: Iterable[AuditedFile]) -> dict[str, ObjectStore]:
    buckets = {bucket_of(file.path) for file in files if is_object(file.path)}
    return {bucket: store_of(spark, bucket) for bucket in sorted(buckets)}


def _reasons(spark: SparkSession, files: Sequence[AuditedFile], stores: Stores) -> dict[tuple[int, int], str]:
    """`why_not` of each file, by shard and offset of its command."""
    if not files:
        return {}
    reasons = _frame(spark, files).mapInArrow(partial(_look, stores), "shard int, offset bigint, why_not string")
    return {(row.shard, row.offset): row.why_not for row in reasons.collect()}


def _frame(spark: SparkSession, files: Sequence[AuditedFile]) -> DataFrame:
    """A row per file, spread over tasks."""
    rows = spark.createDataFrame([astuple(file) for file in files], _FILES)
    return rows.repartition(tasks_for(spark, len(files)))


def _files_in(batches: Iterable[pa.RecordBatch]) -> Iterator[AuditedFile]:
    names = [one.name for one in fields(AuditedFile)]
    for batch in batches:
        for row in batch.to_pylist():
            yield AuditedFile(**{name: row[name] for name in names})


def _look(stores: Stores, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([("shard", pa.int32()), ("offset", pa.int64()), ("why_not", pa.string())])
    for file in _files_in(batches):
        why = {"shard": file.shard, "offset": file.offset, "why_not": why_unreadable(file, stores)}
        yield pa.RecordBatch.from_pylist([why], schema)


def why_unreadable(file: AuditedFile, stores: Stores) -> str:
    """Why the rows of a file cannot be taken from where it was, in a few words; empty where they can."""
    try:
        with _opened(file.path, stores) as content:
            if content.size() != file.size:
                return "it has another size now"
            digest = hashlib.sha256()
            while part := content.read(_PART):
                digest.update(part)
    except OSError as error:
        return _in_words(file.path, error)
    return "" if digest.hexdigest() == file.sha256 else "it has other content now"


def _in_words(path: str, error: OSError) -> str:
    if not is_object(path):
        return os.strerror(error.errno) if error.errno else str(error)
    if isinstance(error, FileNotFoundError):
        return "no such object"
    return f"its store does not serve it: {' '.join(str(error).rpartition('AWS Error ')[2].split())[:_MAX_WORDS]}"


def _opened(path: str, stores: Stores) -> pa.NativeFile:
    """A file or object, to be read in any order. Raises OSError."""
    if is_object(path):
        return _connected(stores[bucket_of(path)]).open_input_file(path.removeprefix(SCHEME))
    return pa.OSFile(path)


@lru_cache(maxsize=8)
def _connected(store: ObjectStore) -> S3FileSystem:
    """One client for all files that a worker reads."""
    return store.connect(_ATTEMPTS)


def rows_of(spark: SparkSession, files: Iterable[AuditedFile]) -> DataFrame:
    """One row per message: `shard`, `offset`, `row`, `due`, `at`, `topic`, and `counted` where it is known by its
    number alone: `due` is then the last millisecond of its window. `expires`, `content`, `metadata`: see
    `logs.commands`; null where it is known by its number."""
    files = list(files)
    whole = [file for file in files if not file.why_not]
    unreadable = [file for file in files if file.why_not and file.rows > 0]
    rows = spark.createDataFrame([], ROWS)
    if unreadable:
        rows = rows.unionByName(_counted(spark, unreadable))
    if whole:
        rows = rows.unionByName(_read(spark, whole))
    return rows


def _counted(spark: SparkSession, files: Sequence[AuditedFile]) -> DataFrame:
    none = F.lit(None)
    return _frame(spark, files).select(
        "shard", "offset", F.explode(F.sequence(F.lit(0).cast("bigint"), F.col("rows") - 1)).alias("row"),
        (F.col("window") + (WINDOW_MS - 1)).alias("due"), "at", none.cast("string").alias("topic"),
        F.lit(True).alias("counted"),
        *(none.cast("bigint").alias(name) for name in ("expires", "content", "metadata")),
    )  # fmt: skip


def _read(spark: SparkSession, files: Sequence[AuditedFile]) -> DataFrame:
    # By Python's Parquet: a path is a path there, while Spark takes it for a pattern and gives it back quoted, and
    # columns may have several types.
    read = _frame(spark, files).mapInArrow(partial(_rows, _stores(spark, files)), _READ)
    return read.select(
        "shard", "offset", "row", "due", "at", "topic", F.lit(False).alias("counted"), "expires",
        F.xxhash64(F.coalesce("payload", F.lit(b""))).alias("content"), packed_hash("metadata").alias("metadata"),
    )  # fmt: skip


def _rows(stores: Stores, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for file in _files_in(batches):
        first = 0
        with _opened(file.path, stores) as opened, pq.ParquetFile(opened) as content:
            columns = [name for name in content.schema_arrow.names if name in _COLUMNS]
            for part in content.iter_batches(_BATCH, columns=columns):
                yield _messages(file, first, part)
                first += part.num_rows


def _messages(file: AuditedFile, first: int, part: pa.RecordBatch) -> pa.RecordBatch:
    size = part.num_rows
    never = pa.repeat(pa.scalar(0, pa.int64()), size)
    expires = part["expires_ms"].cast(pa.int64()).fill_null(0) if "expires_ms" in part.schema.names else never
    columns = [
        pa.repeat(pa.scalar(file.shard, pa.int32()), size), pa.repeat(pa.scalar(file.offset, pa.int64()), size),
        pa.array(range(first, first + size), pa.int64()), part["due_ms"].cast(pa.int64()),
        pa.repeat(pa.scalar(file.at, pa.int64()), size), _plain_type(part["topic"]).cast(pa.string()),
        expires,
        _plain_type(part["payload"]).cast(pa.binary()), _metadata(part),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=_READ_SCHEMA)


def _plain_type(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _metadata(part: pa.RecordBatch) -> pa.Array:
    """Key, labels and headers of each row in one piece (`envelopes.packed_hash`)."""
    keys, headers, labels = (
        part[name].to_pylist() if name in part.schema.names else [None] * part.num_rows
        for name in ("key", "headers", "labels")
    )
    nulls = part["payload"].is_null().to_pylist()
    packed = (_packed(*row) for row in zip(keys, headers, labels, nulls, strict=True))
    return pa.array(list(packed), pa.binary())


def _packed(key: Any, headers: Any, labels: Any, is_null: bool) -> bytes:
    pairs = ((one["name"], one["value"]) if isinstance(one, dict) else one for one in headers or ())
    own = tuple((_raw(name).decode(errors="replace"), None if value is None else _raw(value)) for name, value in pairs)
    return metadata(None if key is None else _raw(key), "\n".join(labels or ()).encode(), own, is_null)


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
