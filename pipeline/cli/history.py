"""`duemq spark history`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duemq.pipeline.cli import command as common

if TYPE_CHECKING:
    from duemq.pipeline.history.table import HistoryTable
    from duemq.pipeline.spark.progress import Teller

EXAMPLES = common.examples(
    "duemq spark history --kafka kafka:9092 --into /srv/history            # goes on until Ctrl-C",
    "duemq spark history --kafka kafka:9092 --into /srv/history --once     # up to now, for cron",
    "duemq spark history --kafka kafka:9092 --into hdfs:///history --topics 'orders|mail[.].*'",
    "duemq spark history --kafka kafka:9092 --into s3a://bucket/history --format delta",
    "duemq spark history --into /srv/history --compact                     # merge small files",
)


def history(
    into: Annotated[str, typer.Option(metavar="DIR", help="The table: a folder, or a URI that Spark knows.")],
    kafka: common.Bootstrap = "localhost:9092",
    kafka_set: common.KafkaSettings = None,
    topics: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Whole names of target topics; * includes dlq.*.", show_default="no dlq.*"),
    ] = None,
    dead_letters: common.DeadLetters = "duemq.dlq",
    table_format: Annotated[
        str | None,
        typer.Option("--format", help="Of a new table: parquet, delta or iceberg.", show_default="parquet"),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when all present records are in the table.")] = False,
    every: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="Seconds until a batch smaller than --most.")
    ] = 600.0,
    most: Annotated[int, typer.Option(min=1, help="Records in a batch, at most.")] = 1_000_000,
    compact: Annotated[
        bool, typer.Option("--compact", help="Join the files of small batches, and end. Reads no Kafka.")
    ] = False,
    below: Annotated[
        int, typer.Option("--compact-below", metavar="MIB", min=1, help="How large joined files or folders may become.")
    ] = 1_024,
    as_json: common.AsJson = False,
    master: common.Master = None,
    conf: common.Settings = None,
) -> None:
    """Keep the outcome of every message in a table: a row per delivery, and per outcome in the ledger.

    Every record is in the table once, even after a crash: run it again with the same DIR to continue. Ctrl-C and
    SIGTERM end it after the current batch.
    """
    settings = with_jars(conf) if compact else conf
    session = common.spark_session("history", master, settings, as_json, kafka=not compact)
    with session as (spark, teller), stopped() as stop:
        from duemq.pipeline.history.stream import LogSource, run
        from duemq.pipeline.history.table import HistoryTable

        table = HistoryTable(spark, into, format=table_format)
        if compact:
            counts = join(table, below << 20, teller)
        else:
            teller.step(f"following {kafka} into {table.path}")
            source = LogSource(common.reached(kafka, kafka_set), topics, most, dead_letters)
            done = run(spark, table, source, teller, stop, once=once, every_s=every)
            counts = {"batches": done.batches, "deliveries": done.deliveries, "outcomes": done.outcomes}
    if as_json:
        common.echo_json({"table": table.path, "format": table.format} | counts)
    elif not compact:
        typer.echo(
            f"{counts['deliveries']:,} deliveries and {counts['outcomes']:,} outcomes in {counts['batches']:,} batches"
        )


def join(table: HistoryTable, below_bytes: int, teller: Teller) -> dict[str, int]:
    """Join small files. Returns the number of files of each kind before and after."""
    counts: dict[str, int] = {}
    for kind in ("deliveries", "outcomes"):
        teller.step(f"joining files of {kind}")
        before, after = table.compact(kind, below_bytes)
        counts |= {f"{kind}_before": before, f"{kind}_after": after}
        what = "batches" if table.format == "parquet" else "files"
        teller.says(f"{kind}: {before:,} {what} became {after:,}" if before else f"{kind}: nothing to join")
    return counts


def with_jars(conf: list[str] | None) -> list[str]:
    """The settings, with the jars in `DUEMQ_SPARK_JARS`, which a session without Kafka does not add."""
    from duemq.pipeline.spark.connector import JARS_VARIABLE

    settings = common.settings_of(conf)
    jars = sorted(Path(os.environ.get(JARS_VARIABLE) or os.devnull).glob("*.jar"))
    if jars:
        settings["spark.jars"] = ",".join([*filter(None, [settings.get("spark.jars")]), *map(str, jars)])
    return [f"{name}={value}" for name, value in settings.items()]


@contextmanager
def stopped() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; a second signal ends the process. Spark's own handler would cancel jobs."""
    event = threading.Event()

    def ask(number: int, _: object) -> None:
        if event.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        event.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
