"""Writes rows as named messages in batches over HTTP: a row that is written twice is one message."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from duemq.client import ABSENT, Draft, Message
from duemq.client.http.blocking.message import BatchResult
from duemq.client.http.errors import RejectedError
from duemq.model.timing import why_implausible
from duemq.pipeline.columns.instants import why_long_past
from duemq.pipeline.errors import JobFailed
from duemq.pipeline.logs.server import Clock, Sleep, until_answered
from duemq.pipeline.spark_source.options import WriteOptions
from duemq.pipeline.spark_source.refused import RefusedRows

_BYTES: Final = 8 << 20  # of payloads and keys in one request, and in our copy in memory
_MAX_REASONS: Final = 5  # listed in an error
ANSWERS: Final = pa.schema([("name", pa.string()), ("status", pa.string()), ("detail", pa.string())])
ANSWERS_DDL: Final = "name string, status string, detail string"
Send = Callable[[Sequence[Draft]], Sequence[BatchResult]]
log = logging.getLogger("duemq.pipeline")
ACCEPTED, REPEATED, REFUSED = "accepted", "repeated", "refused"


class PostResult(NamedTuple):
    """The outcome of a message: accepted, repeated (accepted before), or refused with the reason."""

    status: str
    detail: str | None = None


@dataclass
class WriteResult(WriterCommitMessage):
    """The result of a task. `reasons`: the reasons for some of the refused rows."""

    accepted: int = 0
    repeated: int = 0
    refused: int = 0
    reasons: tuple[str, ...] = ()

    def plus(self, name: bytes | None, answer: PostResult) -> None:
        if answer.status == ACCEPTED:
            self.accepted += 1
        elif answer.status == REPEATED:
            self.repeated += 1
        else:
            self.refused += 1
            if len(self.reasons) < _MAX_REASONS:
                shown = None if name is None else name.decode(errors="replace")
                self.reasons = (*self.reasons, f"{shown}: {answer.detail}")


def write(batches: Iterable[pa.RecordBatch], writing: WriteOptions) -> WriteResult:
    """Write the rows of one task. Raises the client's errors."""
    done, refused = WriteResult(), None if writing.refused is None else RefusedRows.of_task(writing.refused)
    with writing.server.client() as client:
        for row, answer in _answered_rows(batches, client.send_batch, writing):
            done.plus(row["name"], answer)
            if refused is not None and answer.status == REFUSED:
                refused.add(row, str(answer.detail))
    if refused is not None:
        refused.flush()
    return done


def posting(writing: WriteOptions) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow` that writes rows and returns `ANSWERS`, one for each row, in order."""

    def post(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with writing.server.client() as client:
            for batch in batches:
                rows = [(name, *answer) for name, answer in answered([batch], client.send_batch, writing)]
                columns = zip(*rows, strict=True) if rows else ([], [], [])
                yield pa.RecordBatch.from_arrays([pa.array(each, pa.string()) for each in columns], schema=ANSWERS)

    return post


def sum_up(messages: Iterable[Any], writing: WriteOptions) -> None:
    """Add up the results of all tasks on the driver. Raises JobFailed for refused rows, unless they are in a folder or
    skipped."""
    done = [one for one in messages if isinstance(one, WriteResult)]
    refused, total = sum(one.refused for one in done), sum(one.accepted + one.repeated + one.refused for one in done)
    if not refused:
        return
    reasons = "; ".join([reason for one in done for reason in one.reasons][:_MAX_REASONS])
    sentence = f"{refused:,} of {total:,} rows were refused, the others are scheduled ({reasons})"
    if not writing.skip and writing.refused is None:
        raise JobFailed(sentence)
    log.warning("%s", sentence)


class MessageWriter(DataSourceArrowWriter):
    """Writes a table. A failed task is repeated with the same names."""

    def __init__(self, writing: WriteOptions) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteResult:
        return write(iterator, self._writing)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        sum_up(messages, self._writing)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream. An interrupted batch is repeated with the same names."""

    def __init__(self, writing: WriteOptions) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteResult:
        return write(iterator, self._writing)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        sum_up(messages, self._writing)


def answered(
    batches: Iterable[pa.RecordBatch], send: Send, writing: WriteOptions
) -> Iterator[tuple[str | None, PostResult]]:
    """The name of each row and its outcome, in order."""
    for row, answer in _answered_rows(batches, send, writing):
        yield row["name"].decode(errors="replace") if row["name"] is not None else None, answer


def _answered_rows(
    batches: Iterable[pa.RecordBatch], send: Send, writing: WriteOptions
) -> Iterator[tuple[dict[str, Any], PostResult]]:
    for rows in _parts(batches, writing.batch):
        now = int(time.time() * 1000)
        drafts = [_draft(row, None if writing.past else now) for row in rows]
        sent = [draft for draft in drafts if isinstance(draft, Draft)]
        answers = iter(posted(sent, send, writing.patience_s))
        for row, draft in zip(rows, drafts, strict=True):
            yield row, next(answers) if isinstance(draft, Draft) else PostResult(REFUSED, draft)


def posted(
    drafts: Sequence[Draft],
    send: Callable[[Sequence[Draft]], Sequence[BatchResult]],
    patience_s: float,
    clock: Clock = time.monotonic,
    sleep: Sleep = time.sleep,
) -> list[PostResult]:
    """An answer for each draft, in order. All drafts have names, so the drafts without an answer can be sent again.

    Raises `Unavailable` and `Unreachable` after `patience_s` seconds without an answer, and the errors that refuse a
    whole request.
    """
    answers: list[PostResult] = []
    for result in until_answered(drafts, send, _outcome_of, patience_s, clock, sleep):
        if isinstance(result, Exception):
            raise result
        answers.append(result)
    return answers


def _outcome_of(result: BatchResult) -> tuple[PostResult | Exception, bool]:
    if isinstance(result, Message):
        return PostResult(REPEATED if result.state.duplicate else ACCEPTED), True
    return (PostResult(REFUSED, str(result)), True) if isinstance(result, RejectedError) else (result, False)


def _parts(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    size = 0
    for batch in batches:
        for row in _bytes(batch).to_pylist():
            rows.append(row)
            size += len(row["payload"] or b"") + len(row.get("key") or b"")
            if len(rows) == most or size > _BYTES:
                yield rows
                rows, size = [], 0
    if rows:
        yield rows


def _bytes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with texts as bytes, so that invalid UTF-8 only affects its own row."""
    bytes_of = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    columns = [column.cast(bytes_of[column.type]) if column.type in bytes_of else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _draft(row: dict[str, Any], now: int | None) -> Draft | str:
    """The message, or why it cannot be sent. `now`: epoch ms; None: long past times are accepted."""
    what = "a column"
    try:
        for what in ("name", "topic", "due_ms", "payload"):
            if row[what] is None:
                return f"{what}: is null; every message needs one"
        what = "name"
        name = row["name"].decode()
        what = "topic"
        topic = row["topic"].decode()
        what = "key"
        key = None if row.get("key") is None else row["key"].decode()
    except UnicodeDecodeError:
        return f"{what}: is not UTF-8, which HTTP cannot carry: send it through Kafka (docs/guides/pipeline/send.md)"
    headers, labels = _headers(row.get("headers")), row.get("labels") or None
    if isinstance(headers, str):
        return headers
    if labels is not None and None in labels:
        return "labels: a label is null"
    for what in ("due_ms", "expires_ms"):
        if (ms := row.get(what)) is not None and (wrong := why_implausible(ms)) is not None:
            return f"{what}: {wrong}"
    if now is not None and (wrong := why_long_past(row["due_ms"], now)) is not None:
        return f"due_ms: {wrong}"
    return Draft(
        topic, row["payload"], key, headers, labels, deliver_at=row["due_ms"], name=name,
        expires_at=ABSENT if (expires := row.get("expires_ms")) is None else expires,
    )  # fmt: skip


def _headers(pairs: Any) -> list[tuple[str, bytes]] | str | None:
    """The headers in a map, which Arrow returns as pairs, or in structs of name and value; a text is the problem."""
    if not pairs:
        return None
    headers: list[tuple[str, bytes]] = []
    for one in pairs:
        name, value = (one["name"], one["value"]) if isinstance(one, dict) else one
        if name is None or value is None:
            return "headers: the name or the value of a header is null"
        headers.append((name, value))
    return headers
