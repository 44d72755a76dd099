"""Shows how many files a bulk job creates if it is far too large for this machine: sizes are scaled down, rows are
not."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from duemq.bench.spark.schedule import generated
from duemq.model.timing import WINDOW_MS
from duemq.pipeline.bulk_schedule import files as bulk
from duemq.pipeline.bulk_schedule.rules import BulkRules, judged
from duemq.pipeline.cli.command import AsJson, Master, Settings, echo_json, spark_session
from duemq.pipeline.columns import Columns
from duemq.pipeline.files.uris import uri_of
from duemq.pipeline.spark.progress import step

_TASK_BYTES = 64 << 20  # Spark's default size per task


def files(
    rows: Annotated[int, typer.Option(help="Rows to write.")] = 1_000_000,
    windows: Annotated[int, typer.Option(help="Half hours that the due times span: a year has 17,520.")] = 17_520,
    as_rows: Annotated[int, typer.Option(help="Rows to simulate.")] = 1_000_000_000,
    master: Master = None,
    conf: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Count the files per window of generated rows, with tasks as small relative to them as a larger job's."""
    folder = Path(tempfile.mkdtemp(prefix="duemq-bench-"))
    start = (int(time.time() * 1000) // WINDOW_MS + 4) * WINDOW_MS
    columns = Columns("due", "body", topic="topic", key="key")
    try:
        with spark_session("bench", master, conf, as_json) as (spark, teller):
            scaled = max(_TASK_BYTES * rows // as_rows, 1)
            spark.conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", str(scaled))
            table = judged(
                generated(spark, rows, start, windows * WINDOW_MS), columns, BulkRules(), start - 3 * WINDOW_MS
            )
            began = time.monotonic()
            with step(spark, teller, "sorting and writing delay files"):
                bulk.write(bulk.messages(table, columns, "bench"), uri_of(folder / "files"))
            took = time.monotonic() - began
        file_counts = Counter(path.parent.name for path in (folder / "files").glob("window=*/*.parquet"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = {
        "rows": rows, "bytes per task": scaled, "windows": len(file_counts), "files": sum(file_counts.values()),
        "files per window": sum(file_counts.values()) / len(file_counts),
        "most of one window": max(file_counts.values()),
        "write, s": took,
    }  # fmt: skip
    if as_json:
        echo_json(figures)
        return
    for name, value in figures.items():
        typer.echo(f"{name:28}{value:,.2f}" if isinstance(value, float) else f"{name:28}{value:,}")
