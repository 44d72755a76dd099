"""`duemq spark history`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from duemq.pipeline.cli.command import (
    AsJson,
    Bootstrap,
    KafkaSettings,
    Master,
    Settings,
    echo_json,
    examples,
    reached,
    spark_session,
)

if TYPE_CHECKING:
    from duemq.pipeline.history.table import HistoryTable
    from duemq.pipeline.progress import Teller

EXAMPLES = examples(
    "duemq spark history --kafka kafka:9092 --into /srv/history            # goes on until Ctrl-C",
    "duemq spark history --kafka kafka:9092 --into /srv/history --once     # up to now, for cron",
    "duemq spark history --kafka kafka:9092 --into hdfs:///history --topics 'orders|mail[.].*'",
    "duemq spark history --into /srv/history --compact                     # merge small files",
)


def history(
    into: Annotated[str, typer.Option("--into", metavar="DIR", help="The table: a folder, or a URI that Spark knows.")],
    kafka: Bootstrap = "localhost:9092",
    kafka_set: KafkaSettings = None,
    topics: Annotated[
        str, typer.Option("--topics", metavar="REGEX", help="Target topics, by their whole names; those to come too.")
    ] = ".*",
    once: Annotated[bool, typer.Option("--once", help="End when all that is there now is in the table.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="S", min=0.1, help="Seconds from batch to batch.")] = 10.0,
    most: Annotated[int, typer.Option("--most", min=1, help="Records in a batch, at most.")] = 1_000_000,
    compact: Annotated[
        bool, typer.Option("--compact", help="Merge the files of small batches, and end. Reads no Kafka.")
    ] = False,
    below: Annotated[
        int, typer.Option("--compact-below", metavar="MIB", min=1, help="How large merged folders may become.")
    ] = 1_024,
    as_json: AsJson = False,
    master: Master = None,
    conf: Settings = None,
) -> None:
    """Keep what became of every message in a table: one row per delivery, one per fate that the ledger tells.

    Every record is in the table once, whatever is killed when: run it again with the same DIR, and it goes on where it
    was. Ctrl-C and SIGTERM end it after the batch that is under way.
    """
    with spark_session("history", master, conf, as_json, kafka=not compact) as (spark, teller), stopped() as stop:
        from duemq.pipeline.history.stream import Source, run
        from duemq.pipeline.history.table import HistoryTable

        table = HistoryTable(spark, into)
        if compact:
            said = merge(table, below << 20, teller)
        else:
            teller.step(f"following {kafka} into {table.path}")
            source = Source(reached(kafka, kafka_set), topics, most)
            done = run(spark, table, source, teller, stop, once=once, every_s=every)
            said = {"batches": done.batches, "deliveries": done.deliveries, "fates": done.fates}
    if as_json:
        echo_json({"table": table.path} | said)
    elif not compact:
        typer.echo(f"{said['deliveries']:,} deliveries and {said['fates']:,} fates in {said['batches']:,} batches")


def merge(table: HistoryTable, below_bytes: int, teller: Teller) -> dict[str, int]:
    """Merge small batches; what was merged of each kind."""
    said: dict[str, int] = {}
    for kind in ("deliveries", "fates"):
        teller.step(f"merging {kind}")
        before, after = table.merge(kind, below_bytes)
        said |= {f"{kind}_before": before, f"{kind}_after": after}
        teller.says(f"{kind}: {before:,} batches became {after:,}" if before else f"{kind}: nothing to merge")
    return said


@contextmanager
def stopped() -> Iterator[threading.Event]:
    """Is set by SIGTERM and Ctrl-C; a second one ends the process at once. Spark's own handler cancels jobs instead."""
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
