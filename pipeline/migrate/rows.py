"""The shape that every import has: the columns of bulk schedule, and beside them what was rejected and why.

A reader of documents is a plain function from one JSON document to messages; it raises `RejectedRow` for what it cannot
read, which becomes a row of the rejects. It runs in executors, a batch of lines or files at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from duemq.model.errors import Rejected
from duemq.model.messages.message import is_topic
from duemq.model.timing import parse_duration, why_implausible
from duemq.model.topics.rules import is_name

COLUMNS: Final = ("due_ms", "topic", "payload", "key", "headers", "labels", "expires_ms", "name")
REJECTS: Final = ("source", "reason", "raw")
DDL: Final = (
    "due_ms bigint, topic string, payload binary, key binary, headers map<string,binary>, labels array<string>, "
    "expires_ms bigint, name string, source string, reason string, raw string, twin string, ends string"
)
SCHEMA: Final = pa.schema([
    ("due_ms", pa.int64()), ("topic", pa.string()), ("payload", pa.binary()), ("key", pa.binary()),
    ("headers", pa.map_(pa.string(), pa.binary())), ("labels", pa.list_(pa.string())), ("expires_ms", pa.int64()),
    ("name", pa.string()), ("source", pa.string()), ("reason", pa.string()), ("raw", pa.string()),
    ("twin", pa.string()), ("ends", pa.string()),
])  # fmt: skip
_RAW_CHARACTERS = 10_000


class RejectedRow(Exception):
    """This document is no message that can be imported; the sentence says why."""


class PendingRow(NamedTuple):
    """A message that waits elsewhere. Times in epoch ms.

    `twin`: of messages with the same one only one counts; `ends`: this is no message, but takes back the one whose
    `twin` it names.
    """

    due_ms: int
    topic: str
    payload: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    labels: tuple[str, ...] = ()
    expires_ms: int | None = None
    name: str | None = None
    twin: str | None = None
    ends: str | None = None


class Imported(NamedTuple):
    """`messages`: the columns of bulk schedule; `rejects`: `source`, `reason` and the document as it came (`raw`)."""

    messages: DataFrame
    rejects: DataFrame


Read = Callable[[Any], PendingRow]


def from_documents(documents: DataFrame, read: Read, *, single: bool = False) -> DataFrame:
    """Rows of `DDL` from rows with `source` and `value`: a JSON document, a list of them, or one on each line.

    `single`: each value is one document, even if it is a list. See `divided` for what to do with them.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sources, values = batch.column("source").to_pylist(), batch.column("value").to_pylist()
            rows = [
                row for source, text in zip(sources, values, strict=True) for row in _rows(source, text, read, single)
            ]
            yield pa.RecordBatch.from_pylist(rows, SCHEMA)

    return documents.select("source", "value").mapInArrow(run, DDL)


def reject_repeats(rows: DataFrame) -> DataFrame:
    """Reject all but the latest of messages that stand there more than once (see `PendingRow`), and all that were taken
    back.

    Rejected rows get the reason why they are not. A message without a `twin` is like no other.
    """
    ended = (
        rows.where(F.col("ends").isNotNull()).select(F.col("ends").alias("twin"), F.lit(True).alias("over")).distinct()
    )
    good = F.col("reason").isNull() & F.col("ends").isNull()
    twin = F.col("twin")
    # By its source a row without a twin is a group of its own, so that they are not all sorted by one task.
    group = (twin, F.when(twin.isNull(), F.col("source")), good)
    order = Window.partitionBy(*group).orderBy(F.col("due_ms").desc(), F.col("source").desc())
    reason = (
        F.when(F.col("reason").isNotNull(), F.col("reason"))
        .when(F.col("ends").isNotNull(), "no message: it takes back another one")
        .when(F.col("over"), "it was taken back")
        .when(twin.isNotNull() & (F.col("nth") > 1), "the same message stands there again")
    )
    counted = rows.withColumn("nth", F.row_number().over(order)).join(ended, "twin", "left")
    return counted.withColumn("reason", reason).select(*rows.columns)


def divided(rows: DataFrame) -> Imported:
    """Good rows and rejected ones. The rows are computed twice, unless they are cached."""
    good = rows.where(F.col("reason").isNull()).select(*COLUMNS)
    return Imported(good, rows.where(F.col("reason").isNotNull()).select(*REJECTS))


def _rows(source: str, text: str, read: Read, single: bool = False) -> Iterator[dict[str, Any]]:
    for where, document in [(source, text)] if single else _documents(source, text):
        try:
            message = checked(read(_parsed(document)))
            yield message._asdict() | {"source": where}
        except RejectedRow as error:
            raw = document if isinstance(document, str) else orjson.dumps(document).decode()
            yield {"source": where, "reason": str(error), "raw": raw[:_RAW_CHARACTERS]}


def _parsed(document: Any) -> Any:
    try:
        return orjson.loads(document) if isinstance(document, str) else document
    except orjson.JSONDecodeError as error:
        raise RejectedRow(f"not JSON: {error}") from error


def _documents(source: str, text: str) -> Iterable[tuple[str, Any]]:
    """The documents in a text, each with where it is: parsed, or as the text that it is."""
    try:
        whole = orjson.loads(text)
    except orjson.JSONDecodeError:
        lines = text.splitlines()
        if len(lines) < 2:
            return [(source, text)] if text.strip() else []
        return [pair for number, line in enumerate(lines, 1) for pair in _documents(f"{source}:{number}", line)]
    if isinstance(whole, list):
        return [(f"{source}[{at}]", document) for at, document in enumerate(whole)]
    return [(source, whole)]


def checked(message: PendingRow) -> PendingRow:
    """The message, if duemq can hold it."""
    if not is_topic(message.topic.encode(errors="replace")):
        raise RejectedRow(f"{message.topic!r} is not the name of a topic (A-Z a-z 0-9 . _ -): say --to")
    if (wrong := why_implausible(message.due_ms)) is not None:
        raise RejectedRow(f"due_ms: {wrong}")
    name = message.name
    return message if name is None or is_name(name) else message._replace(name=None)


def header_bytes(value: Any) -> bytes:
    """The value of a header, which may be of any type elsewhere, as text: numbers as digits, the rest as JSON."""
    if isinstance(value, str):
        return value.encode()
    return orjson.dumps(value)


def whole_ms(value: Any, what: str) -> int:
    """An instant in ms, or another whole number, that may come as text."""
    try:
        return int(str(value))
    except ValueError as error:
        raise RejectedRow(f"{what} is no whole number: {value!r}") from error


def delay_ms(value: Any, what: str) -> int:
    """A delay in ms that may have a fraction, which is rounded up, and may come as text."""
    try:
        return parse_duration(value, what, text=True)
    except Rejected as error:
        raise RejectedRow(error.detail) from error
