"""Measures how fast a table is scheduled, compared with plainly writing the same rows as sorted Parquet."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.bench.spark.server import serving
from duemq.client import Admin
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.bulk_schedule.job import Options, ScheduleResult
from duemq.pipeline.bulk_schedule.job import schedule as run
from duemq.pipeline.bulk_schedule.rules import BulkRules
from duemq.pipeline.cli.command import AsJson, Master, Settings, echo_json, spark_session
from duemq.pipeline.columns import Columns
from duemq.pipeline.files.uris import uri_of
from duemq.pipeline.logs.server import Server
from duemq.pipeline.spark.progress import Teller

_COLUMNS = Columns("due", "body", topic="topic", key="key")
_WARM_ROWS = 100_000
_SAMPLE = 200
_LEAD_MS = 125_000  # the minimum time from the job to a window for --deliver; the server requires two minutes


def schedule(
    rows: Annotated[int, typer.Option(help="How many.")] = 10_000_000,
    days: Annotated[float, typer.Option(help="Days that the due times span.")] = 10.0,
    deliver: Annotated[
        int, typer.Option(help="Also schedule this many for the next window, and wait (up to 35 minutes).")
    ] = 0,
    work: Annotated[Path | None, typer.Option(help="A folder for all files; None: a temporary one.")] = None,
    master: Master = None,
    conf: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Schedule generated rows with a separate server, and write the same rows plainly: both in rows/s."""
    folder = Path(work or tempfile.mkdtemp(prefix="duemq-bench-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with spark_session("bench", master, conf, as_json) as (spark, teller):
            figures = _measure(spark, teller, folder, rows, days, deliver)
    finally:
        if work is None:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        echo_json(figures)
        return
    for name, value in figures.items():
        typer.echo(f"{name:28}{value:,.2f}" if isinstance(value, float) else f"{name:28}{value:,}")


def _measure(spark: SparkSession, teller: Teller, folder: Path, rows: int, days: float, deliver: int) -> dict[str, Any]:
    teller.step(f"making a table of {rows:,} rows")
    start = (int(time.time() * 1000) // WINDOW_MS + 4) * WINDOW_MS
    generated(spark, rows, start, int(days * 86_400_000)).write.mode("overwrite").parquet(uri_of(folder / "table"))
    table = spark.read.parquet(uri_of(folder / "table"))
    stage = folder / "stage"
    stage.mkdir(exist_ok=True)
    with serving(folder / "data", f"delay_files.import_from={stage}") as url:
        teller.step("warming up")
        plain(table.limit(_WARM_ROWS), folder / "warm")
        scheduled(table.limit(_WARM_ROWS), f"warm-{start}", stage, url, teller)
        teller.step("writing plainly")
        plain_s = _time(lambda: plain(table, folder / "plain"))
        teller.step("scheduling")
        began = time.monotonic()
        done = scheduled(table, f"bench-{start}", stage, url, teller)
        job_s = time.monotonic() - began
        teller.step("looking a sample up")
        lookups = _sample(done, rows, url)
        figures = {
            "rows": rows, "files": len(done.manifest.files),
            "plain write, rows/s": int(rows / plain_s), "schedule, rows/s": int(rows / job_s),
            "plain write, s": plain_s, "schedule, s": job_s, "ratio": plain_s / job_s,
            "ids looked up": lookups,
        }  # fmt: skip
        if deliver:
            figures |= _measure_delivery(spark, teller, folder, deliver, url)
    return figures


def generated(spark: SparkSession, rows: int, start: int, span_ms: int) -> DataFrame:
    """Rows with JSON payloads of about 150 bytes, due at random times within `span_ms` from `start` (epoch ms) on."""
    customer = F.pmod(F.xxhash64("id"), F.lit(1_000_000)).cast("string")
    return spark.range(0, rows, 1, 8).select(
        (F.lit(start) + F.pmod(F.xxhash64("id", F.lit(7)), F.lit(span_ms))).alias("due"),
        F.concat(F.lit("orders-"), (F.col("id") % 8).cast("string")).alias("topic"),
        F.concat(F.lit("customer-"), customer).alias("key"),
        F.concat(
            F.lit('{"order":'), "id", F.lit(',"customer":"'), customer, F.lit('","amount":'),
            F.pmod(F.hash("id"), F.lit(10_000)), F.lit(',"currency":"EUR","kind":"reminder","note":"'),
            F.sha1(F.col("id").cast("string")), F.lit('"}'),
        ).alias("body"),
    )  # fmt: skip


def plain(table: DataFrame, folder: Path) -> None:
    """Write the rows in the obvious way: one folder per window, sorted by due time."""
    with_window = table.withColumn("window", F.col("due") - F.col("due") % WINDOW_MS)
    sorted_rows = with_window.repartition("window").sortWithinPartitions("window", "due")
    sorted_rows.write.mode("overwrite").partitionBy("window").parquet(uri_of(folder))


def scheduled(
    table: DataFrame, job: str, stage: Path, url: str, teller: Teller, lead_ms: int = 600_000
) -> ScheduleResult:
    rules = BulkRules(lead_ms=lead_ms)
    return run(table, _COLUMNS, job, Options(stage), Server(url), rules=rules, source=job, teller=teller)


def _time(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _sample(done: ScheduleResult, rows: int, url: str) -> int:
    """Check the total number of pending messages; then return how many messages in a sample are found by id."""
    sample = done.ids.limit(_SAMPLE).collect()
    with Admin(url) as client:
        states = [client.get(row.id).state for row in sample]
        pending = sum(shard.pending or 0 for shard in client.cluster().shards)
    assert pending == rows + min(rows, _WARM_ROWS), f"{pending:,} messages are pending"
    assert all(state.deliver_at_ms == row.due_ms for state, row in zip(states, sample, strict=True))
    return len(states)


def _measure_delivery(spark: SparkSession, teller: Teller, folder: Path, count: int, url: str) -> dict[str, Any]:
    """The lateness (ms) of messages that are due some minutes after the start of the next window."""
    now = int(time.time() * 1000)
    window = -(-(now + _LEAD_MS + 30_000) // WINDOW_MS) * WINDOW_MS
    soon = generated(spark, count, window, 60_000).withColumn("topic", F.lit("soon"))
    scheduled(soon, f"soon-{window}", folder / "stage", url, teller, _LEAD_MS)
    teller.step(f"waiting {(window - now) / 60_000:.0f} minutes for {count:,} messages to be due")
    time.sleep(max(window + 60_000 - time.time() * 1000, 0) / 1000 + 5)
    late: list[int] = []
    with Admin(url) as client:
        cursor = None
        while (page := client.records("soon", after=cursor, max=10_000)).records:
            late += [record.lateness_ms or 0 for record in page.records]
            cursor = page.cursor
    late.sort()
    return {
        "delivered": len(late), "of": count, "early": sum(one < 0 for one in late),
        "lateness p50, ms": late[len(late) // 2], "lateness p99, ms": late[len(late) * 99 // 100],
        "lateness max, ms": late[-1],
    }  # fmt: skip
