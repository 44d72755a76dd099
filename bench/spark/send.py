"""Measures how fast rows are sent through Kafka, and how soon a row in a stream is delivered if it is due at once.

    python -m duemq.bench.spark send --kafka HOST:PORT --rows 1000000

The Kafka must be empty. Rows are sent while duemq is not running. Then duemq is started and reads them, so sending and
reading are measured separately.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.bench.spark import schedule
from duemq.bench.spark.server import serving
from duemq.client import Admin
from duemq.pipeline.cli.command import AsJson, Master, Settings, echo_json, spark_session
from duemq.pipeline.columns import Columns
from duemq.pipeline.errors import JobFailed
from duemq.pipeline.files.uris import uri_of
from duemq.pipeline.send import send as run
from duemq.pipeline.send import send_stream
from duemq.pipeline.spark.progress import Teller

_COLUMNS: Final = Columns("due", "body", topic="topic", key="key", name="name")
_DAY_MS: Final = 86_400_000
_WARM_ROWS: Final = 50_000
_LOOK_S: Final = 0.2
_TAKE_IN_S: Final = 600.0


def send(
    kafka: Annotated[str, typer.Option("--kafka", help="Bootstrap servers of an empty Kafka.")],
    rows: Annotated[int, typer.Option(help="How many.")] = 1_000_000,
    shards: Annotated[int, typer.Option(help="Shards of the started duemq.")] = 4,
    seconds: Annotated[int, typer.Option(help="Duration of the stream.")] = 30,
    rate: Annotated[int, typer.Option(help="Rows per second of the stream.")] = 200,
    master: Master = None,
    conf: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Send generated rows in a batch, and a stream of rows that are due at once: rows/s, and s until delivered."""
    folder = Path(tempfile.mkdtemp(prefix="duemq-bench-"))
    settings = ("bus=kafka", f"kafka.bootstrap={kafka}", f"shards={shards}")
    try:
        with spark_session("bench", master, conf, as_json, kafka=True) as (spark, teller):
            figures = _batch(spark, teller, folder, rows, kafka, settings)
            with serving(folder / "data", *settings) as url:
                teller.step("waiting until all is taken in")
                began = time.monotonic()
                commands = 2 * rows + _WARM_ROWS
                _wait_for(url, commands, rows + _WARM_ROWS)
                figures["taken in by a server, rows and repeats/s"] = int(commands / (time.monotonic() - began))
                teller.step(f"sending a stream for {seconds} s")
                figures |= _stream(spark, folder, kafka, url, seconds, rate)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        echo_json(figures)
        return
    for name, value in figures.items():
        typer.echo(f"{name:44}{value:,.2f}" if isinstance(value, float) else f"{name:44}{value:,}")


def _batch(
    spark: SparkSession, teller: Teller, folder: Path, rows: int, kafka: str, settings: tuple[str, ...]
) -> dict[str, Any]:
    with serving(folder / "data", *settings):
        teller.step(f"making a table of {rows:,} rows")  # also creates the topics
        source = schedule.generated(spark, rows, int(time.time() * 1000) + _DAY_MS, _DAY_MS)
        named = source.withColumn("name", F.concat(F.lit("bench-"), F.monotonically_increasing_id().cast("string")))
        named.write.parquet(uri_of(folder / "table"))
    table = spark.read.parquet(uri_of(folder / "table"))
    warm = table.limit(_WARM_ROWS).withColumn("name", F.concat(F.lit("warm-"), "name"))
    run(warm, _COLUMNS, kafka, teller=teller)
    figures: dict[str, Any] = {"rows": rows}
    for name, compared in (("with names compared", True), ("names not compared, again", False)):
        began = time.monotonic()
        done = run(table, _COLUMNS, kafka, compare_names=compared, teller=teller)
        if done.sent != rows:
            raise JobFailed(f"{done.sent:,} of {rows:,} rows were sent")
        figures[f"into Kafka, {name}, rows/s"] = int(rows / (time.monotonic() - began))
    return figures


def _wait_for(url: str, commands: int, pending: int) -> None:
    """Wait until all commands are applied, including repeats, because unapplied commands would delay the stream."""
    deadline = time.monotonic() + _TAKE_IN_S
    with Admin(url, timeout=60) as client:
        while True:
            shards = client.cluster().shards
            if sum(shard.applied or 0 for shard in shards) == commands:
                break
            if time.monotonic() > deadline:
                raise JobFailed(f"not all {commands:,} commands are applied: {shards}")
            time.sleep(_LOOK_S)
    actual = sum(shard.pending or 0 for shard in shards)
    if actual != pending:
        raise JobFailed(f"{actual:,} messages are pending, not {pending:,}")


def _stream(spark: SparkSession, folder: Path, kafka: str, url: str, seconds: int, rate: int) -> dict[str, Any]:
    """Measure the time from a row's creation until its record is in its topic. The first seconds are a warm-up."""
    columns = Columns("timestamp", "at", to="bench-stream", name="value")
    rows: DataFrame = spark.readStream.format("rate").option("rowsPerSecond", rate).load()
    stream = rows.withColumn("at", F.unix_millis("timestamp").cast("string"))
    query = send_stream(stream, columns, kafka, uri_of(folder / "checkpoint"), rejects=None)
    time.sleep(seconds)
    query.processAllAvailable()
    query.stop()
    late: list[int] = []
    with Admin(url, timeout=60) as client:
        cursor = None
        while (page := client.records("bench-stream", after=cursor, max=10_000, wait=timedelta(seconds=5))).records:
            late += [record.timestamp_ms - int(record.payload) for record in page.records]
            cursor = page.cursor
    if len(late) < rate * seconds // 2:
        raise JobFailed(f"only {len(late):,} rows of the stream were delivered")
    late = sorted(late[len(late) // 4 :])
    return {
        "streamed rows": len(late), "until delivered p50, s": late[len(late) // 2] / 1000,
        "until delivered p99, s": late[len(late) * 99 // 100] / 1000, "until delivered max, s": late[-1] / 1000,
    }  # fmt: skip
