"""Measures how fast messages are moved and cancelled by a table of ids, compared with the SDK alone."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from duemq.bench.spark import schedule
from duemq.bench.spark.server import serving
from duemq.client import Client, Draft, EpochMs, Message
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.bulk_change import ChangeClient, ChangeResult, Targets, cancel, move
from duemq.pipeline.cli.command import AsJson, Master, Settings, echo_json, spark_session
from duemq.pipeline.errors import JobFailed
from duemq.pipeline.files.uris import uri_of
from duemq.pipeline.spark.progress import Teller

_DAY_MS: Final = 86_400_000
_SENT_AT_ONCE: Final = 20_000
_ALONE: Final = 40_000  # messages for the measurement of the SDK
_WARM: Final = 2_000
_HOUR_MS: Final = 3_600_000


def mass(
    messages: Annotated[int, typer.Option(help="How many.")] = 200_000,
    scheduled: Annotated[
        int, typer.Option(help="Bulk schedule this many over ten days, and change some of them, in delay files.")
    ] = 0,
    master: Master = None,
    conf: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Move all messages of a table and cancel them, twice, with a separate server: messages/s."""
    folder, total = Path(tempfile.mkdtemp(prefix="duemq-bench-")), messages + _ALONE
    stage = folder / "stage"
    stage.mkdir()
    try:
        with (
            spark_session("bench", master, conf, as_json) as (spark, teller),
            serving(folder / "data", f"delay_files.import_from={stage}") as url,
            Client(url, timeout=60) as client,
        ):
            if scheduled:
                ids = _schedule(spark, scheduled, total, stage, url, teller)
            else:
                teller.step(f"sending {total:,} messages")
                ids = _send(client, total)
            pq.write_table(ids.slice(0, messages), folder / "ids.parquet")
            rows, targets, server = spark.read.parquet(uri_of(folder / "ids.parquet")), Targets("id"), ChangeClient(url)
            figures: dict[str, Any] = {"messages": messages}
            teller.step("moving and cancelling by the SDK alone")
            figures |= _alone(client, ids.slice(messages))
            teller.step("warming up")
            move(rows.limit(_WARM), targets, server, "due_ms", _HOUR_MS)
            for name, status, work in (
                ("move", "moved", lambda: move(rows, targets, server, "due_ms", _HOUR_MS)),
                ("cancel", "cancelled", lambda: cancel(rows, targets, server)),
                ("cancel again", "cancelled", lambda: cancel(rows, targets, server)),
            ):
                teller.step(name)
                figures[f"{name}, messages/s"] = int(messages / _seconds(work, status, messages))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        echo_json(figures)
        return
    for name, value in figures.items():
        typer.echo(f"{name:34}{value:,}")


def _send(client: Client, count: int) -> pa.Table:
    first, ids = int(time.time() * 1000) + _DAY_MS, list[str]()
    for start in range(0, count, _SENT_AT_ONCE):
        some = range(start, min(start + _SENT_AT_ONCE, count))
        results = client.send_batch([Draft("bench", b"x" * 200, deliver_at=EpochMs(first + n)) for n in some])
        ids += [one.id for one in results if isinstance(one, Message)]
    if len(ids) < count:
        raise JobFailed(f"{count - len(ids):,} of {count:,} messages were not accepted")
    return pa.table({"id": ids, "due_ms": pa.array(range(first, first + count), pa.int64())})


def _schedule(spark: SparkSession, count: int, sample_size: int, stage: Path, url: str, teller: Teller) -> pa.Table:
    """Schedule messages; return a random, unordered sample of their ids."""
    start = (int(time.time() * 1000) // WINDOW_MS + 4) * WINDOW_MS
    done = schedule.scheduled(schedule.generated(spark, count, start, 10 * _DAY_MS), "mass", stage, url, teller)
    teller.step("asking for the ids")
    some = done.ids.select("id", "due_ms").sample(fraction=min(1.0, 1.1 * sample_size / count), seed=1)
    return some.orderBy(F.xxhash64("id")).limit(sample_size).toArrow()


def _alone(client: Client, ids: pa.Table) -> dict[str, int]:
    rows, count = ids.to_pylist(), ids.num_rows
    began = time.perf_counter()
    client.reschedule_many((row["id"], {"deliver_at": row["due_ms"] + _HOUR_MS}) for row in rows)
    moved = time.perf_counter()
    client.cancel_many(row["id"] for row in rows)
    ended = time.perf_counter()
    return {
        "move by the SDK, messages/s": int(count / (moved - began)),
        "cancel by the SDK, messages/s": int(count / (ended - moved)),
    }


def _seconds(work: Callable[[], ChangeResult], status: str, messages: int) -> float:
    began = time.perf_counter()
    counts = work().counts
    took = time.perf_counter() - began
    if counts != {status: messages}:
        raise JobFailed(f"not all {messages:,} are {status}: {counts}")
    return took
