"""`duemq spark cancel` and `duemq spark move`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

import typer

from duemq.pipeline.cli.columns import Past, Where, Zone
from duemq.pipeline.cli.command import AsJson, Master, Settings, Url, duration_of, echo_json, examples, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from duemq.pipeline.bulk_change import Targets
    from duemq.pipeline.spark.progress import Teller

CANCEL_EXAMPLES = examples(
    "duemq spark cancel unsubscribed.csv --id message_id --answers answers/",
    "duemq spark cancel orders.parquet --key order_no --ids /shared/jobs/7/ids --where \"country = 'FR'\"",
    "duemq spark cancel warehouse.refunds --id message_id --dry-run",
)
MOVE_EXAMPLES = examples(
    "duemq spark move late.parquet --id message_id --to new_time",
    "duemq spark move orders.parquet --key order_no --ids /shared/jobs/7/ids --by 2h",
    "duemq spark move flights.csv --id message_id --to departure --by -3h --zone Europe/Berlin --answers answers/",
)
EXIT_OF: Final = {
    "cancelled": 0, "moved": 0, "already_delivered": 3, "already_dead": 3, "unknown": 4, "pending": 5,
    "already_cancelled": 6, "refused": 7,
}  # fmt: skip
_NO_ANSWER = "Finished changes stay; run it again to do the rest: no change is made twice"

Table = Annotated[str, typer.Argument(help="A file or folder (Parquet, CSV, JSON, ORC), or a table of the catalog.")]
Format = Annotated[str | None, typer.Option("--format", help="Of the table: parquet, csv, json or orc.")]
Id = Annotated[str | None, typer.Option("--id", help="The column with ids, or with names that senders chose.")]
Key = Annotated[str | None, typer.Option("--key", help="The column with a business key; needs --ids.")]
Ids = Annotated[str | None, typer.Option("--ids", help="The table with the ids of a key, such as bulk schedule's.")]
IdsKey = Annotated[str, typer.Option("--ids-key", help="The column of that table with the key.")]
Answers = Annotated[
    str | None,
    typer.Option("--answers", help="Write the rows with their answers, as Parquet, to this new folder or URI."),
]
Connections = Annotated[int, typer.Option(min=1, max=256, help="Concurrent requests from each machine of the cluster.")]
Batch = Annotated[int, typer.Option(min=1, max=10_000, help="Messages in one request.")]
Patience = Annotated[float, typer.Option(min=0, help="Seconds to repeat requests without an answer.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count the messages.")]


def cancel(
    table: Table, id_: Id = None, key: Key = None, ids: Ids = None, ids_key: IdsKey = "name", where: Where = None,
    table_format: Format = None, answers: Answers = None, dry_run: DryRun = False, connections: Connections = 8,
    batch: Batch = 5_000, patience: Patience = 300.0, url: Url = None, master: Master = None, conf: Settings = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Cancel all messages that a table names, with a definitive answer for each.

    The exit code is that of `duemq cancel` for many: 0 all cancelled (now or before), 3 some were delivered already,
    4 some are unknown, 5 some have no answer yet: run it again. The highest wins.
    """
    _check(id_, key, ids)
    with spark_session("cancel", master, conf, as_json, and_then=_NO_ANSWER) as (spark, teller):
        from duemq.pipeline.bulk_change import ChangeClient
        from duemq.pipeline.bulk_change import cancel as run

        rows, targets = _rows_and_targets(spark, table, table_format, where, id_ or key or "", ids, ids_key)
        if dry_run:
            _tell_dry(spark, teller, targets.of(rows), as_json)
            return
        server = ChangeClient.at(url, batch=batch, patience_s=patience)
        folder, since = _folder(spark, answers), time.monotonic()
        done = run(rows, targets, server, answers=folder, connections=connections, teller=teller)
    _tell(done.counts, time.monotonic() - since, as_json)


def move(
    table: Table, id_: Id = None, key: Key = None, ids: Ids = None, ids_key: IdsKey = "name",
    to: Annotated[str | None, typer.Option(
        "--to", help="When: a column or SQL expression; epoch ms, a TIMESTAMP, or a date-time as text.",
        show_default="due_ms, with --by")] = None,
    by: Annotated[str | None, typer.Option("--by", help="Shift that time: 2h, 1d12h, -30m.")] = None,
    zone: Zone = None, past: Past = "reject", where: Where = None, table_format: Format = None, answers: Answers = None,
    dry_run: DryRun = False, connections: Connections = 8, batch: Batch = 5_000, patience: Patience = 300.0,
    url: Url = None, master: Master = None, conf: Settings = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Move all messages that a table names, each to the time in its row.

    The new time is absolute: --to, or the time in the column due_ms (of the table, or of --ids) shifted by --by. A
    repeated command does not shift twice. Exit codes as `duemq spark cancel`, and 6 if some had been cancelled, 7 if
    some moves were refused.
    """
    _check(id_, key, ids)
    if to is None and by is None:
        raise typer.BadParameter("say when: --to, or --by to shift from the column due_ms", param_hint="--to")
    by_ms = duration_of((by or "0").removeprefix("-"), "--by") * (-1 if by is not None and by.startswith("-") else 1)
    with spark_session("move", master, conf, as_json, and_then=_NO_ANSWER) as (spark, teller):
        from duemq.pipeline.bulk_change import ChangeClient
        from duemq.pipeline.bulk_change import move as run
        from duemq.pipeline.bulk_change.job import new_times

        rows, targets = _rows_and_targets(spark, table, table_format, where, id_ or key or "", ids, ids_key)
        when = to or "due_ms"
        if dry_run:
            new_times(targets.of(rows), when, by_ms, zone)  # raises BadInput
            _tell_dry(spark, teller, targets.of(rows), as_json)
            return
        server = ChangeClient.at(url, batch=batch, patience_s=patience)
        folder, since = _folder(spark, answers), time.monotonic()
        done = run(
            rows, targets, server, when, by_ms, answers=folder, connections=connections, zone=zone,
            past=past == "send", teller=teller,
        )  # fmt: skip
    _tell(done.counts, time.monotonic() - since, as_json)


def _check(id_: str | None, key: str | None, ids: str | None) -> None:
    if (id_ is None) == (key is None):
        raise typer.BadParameter("say which messages: --id COLUMN, or --key COLUMN with --ids TABLE", param_hint="--id")
    if (key is None) != (ids is None):
        raise typer.BadParameter("--key and --ids go together", param_hint="--ids")


def _rows_and_targets(
    spark: SparkSession, table: str, kind: str | None, where: str | None, column: str, ids: str | None, ids_key: str
) -> tuple[DataFrame, Targets]:
    from duemq.pipeline.bulk_change import Targets
    from duemq.pipeline.logs.tables import read_table

    rows = read_table(spark, table, kind)
    targets = Targets(column) if ids is None else Targets(column, read_table(spark, ids), ids_key)
    return rows if where is None else rows.where(where), targets


def _folder(spark: SparkSession, answers: str | None) -> str | None:
    from duemq.pipeline.files.uris import destination

    return None if answers is None else destination(spark, answers, "--answers", new=True)


def _tell_dry(spark: SparkSession, teller: Teller, target_rows: DataFrame, as_json: bool) -> None:
    from pyspark.sql import functions as F

    from duemq.pipeline.bulk_change.job import TARGET
    from duemq.pipeline.spark.progress import step

    with step(spark, teller, "counting"):
        total = target_rows.agg(F.count("*").alias("rows"), F.countDistinct(TARGET), F.count_if(F.col(TARGET).isNull()))
        rows, messages, no_id_rows = total.first() or (0, 0, 0)
    if as_json:
        echo_json({"rows": rows, "messages": messages, "without_id": no_id_rows})
    else:
        typer.echo(f"{rows:,} rows name {messages:,} messages; {no_id_rows:,} rows have no id. Nothing was asked.")


def _tell(counts: Mapping[str, int], seconds: float, as_json: bool) -> None:
    if as_json:
        echo_json({"counts": counts, "seconds": round(seconds, 3)})
    else:
        parts = [f"{count:,} {status.replace('_', ' ')}" for status, count in counts.items()]
        typer.echo(", ".join(parts) or "The table names no messages.")
    if code := max((EXIT_OF[status] for status in counts), default=0):
        raise typer.Exit(code)
