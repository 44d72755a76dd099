"""Runs on executors: sends changes to the server in batches until each message has an answer. Does not use Spark.

A command with an unknown outcome is sent again, and so are all commands of a task that Spark repeats. That is harmless:
the answer to a repeated cancel is "cancelled" again, and to a repeated move to the same time it is "moved" again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from duemq.client.http.errors import RejectedError, Unavailable, Unreachable
from duemq.client.http.requests import When
from duemq.client.http.times import EpochMs
from duemq.client.http.values import CancelResult, MoveResult
from duemq.model.timing import why_implausible
from duemq.pipeline.bulk_change.slots import Slots
from duemq.pipeline.columns.instants import why_long_past
from duemq.pipeline.logs import server

T = TypeVar("T")
Result = CancelResult | MoveResult | RejectedError | Unavailable | Unreachable
Batches = Iterator[pa.RecordBatch]

PENDING: Final = "pending"
REFUSED: Final = "refused"
CANCEL_SCHEMA: Final = pa.schema([("id", pa.string())])
MOVE_SCHEMA: Final = pa.schema([("id", pa.string()), ("due_ms", pa.int64()), ("refused", pa.string())])
ANSWERS: Final = pa.schema(
    [("id", pa.string()), ("status", pa.string()), ("at_ms", pa.int64()), ("detail", pa.string())]
)
ANSWERS_DDL: Final = "id string, status string, at_ms bigint, detail string"


@dataclass(frozen=True, slots=True)
class ChangeClient(server.Server):
    """The server, and the size of requests: `batch` ids (at most 10,000). A task sends one request at a time.

    `patience_s`: how long a task repeats requests without getting a new answer. After that, messages without an answer
    are "pending"; if the server did not answer at all, the task fails.
    """

    batch: int = 5_000
    patience_s: float = 300.0


class ChangeAnswer(NamedTuple):
    """The answer about one message. `at_ms`: when the message ended, or its new due time (epoch ms)."""

    status: str
    at_ms: int | None = None
    detail: str | None = None


def answers(
    items: Sequence[T],
    ask: Callable[[Sequence[T]], Sequence[Result]],
    patience_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[ChangeAnswer]:
    """An answer for each item, in order: see `until_answered`."""
    return server.until_answered(items, ask, _answer_of, patience_s, clock, sleep)


def _answer_of(result: Result) -> tuple[ChangeAnswer, bool]:
    if isinstance(result, CancelResult | MoveResult):
        is_final = result.status != PENDING
        return ChangeAnswer(result.status, result.at_ms, None if is_final else "not known yet: ask again"), is_final
    is_final = not isinstance(result, Unreachable)
    return ChangeAnswer(REFUSED if is_final else PENDING, None, str(result)), is_final


def cancelling(server: ChangeClient, slots: Slots) -> Callable[[Batches], Batches]:
    """A function for `mapInArrow` that cancels messages; it turns `CANCEL_SCHEMA` into `ANSWERS`."""

    def cancel(batches: Batches) -> Batches:
        with server.client() as client:

            def ask(some: Sequence[str]) -> Sequence[Result]:
                with slots.one():
                    return client.cancel_many(some, times=True).results

            for ids in _parts(batches, server.batch, "id"):
                yield _answered(ids, answers(ids, ask, server.patience_s))

    return cancel


def moving(server: ChangeClient, slots: Slots, past: bool = False) -> Callable[[Batches], Batches]:
    """A function for `mapInArrow` that moves messages; it turns `MOVE_SCHEMA` into `ANSWERS`. Rows with a value in
    `refused` are not sent. `past`: accept times more than a day ago."""

    def why_not(due: int) -> str | None:
        return why_implausible(due) or (None if past else why_long_past(due, int(time.time() * 1000)))

    def move(batches: Batches) -> Batches:
        with server.client() as client:

            def ask(some: Sequence[tuple[str, int]]) -> Sequence[Result]:
                moves = ((id_, When(deliver_at=EpochMs(due))) for id_, due in some)
                with slots.one():
                    return client.reschedule_many(moves, times=True).results

            for batch in batches:
                for start in range(0, batch.num_rows, server.batch):
                    ids, dues, refused = (column.to_pylist() for column in batch.slice(start, server.batch).columns)
                    refused = [why or why_not(due) for due, why in zip(dues, refused, strict=True)]
                    requests = [(id_, due) for id_, due, why in zip(ids, dues, refused, strict=True) if why is None]
                    replies = iter(answers(requests, ask, server.patience_s))
                    yield _answered(
                        ids, [next(replies) if why is None else ChangeAnswer(REFUSED, None, why) for why in refused]
                    )

    return move


def _parts(batches: Batches, size: int, column: str) -> Iterator[list[str]]:
    for batch in batches:
        values = batch.column(column).to_pylist()
        for start in range(0, len(values), size):
            yield values[start : start + size]


def _answered(ids: Sequence[str], replies: Sequence[ChangeAnswer]) -> pa.RecordBatch:
    columns = zip(*replies, strict=True) if replies else ([], [], [])
    return pa.RecordBatch.from_arrays(
        [pa.array(values, kind.type) for values, kind in zip((ids, *columns), ANSWERS, strict=True)], schema=ANSWERS
    )
