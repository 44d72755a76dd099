"""`duemq spark cancel` and `duemq spark move`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from duemq.pipeline.cli.columns import Past, Where, Zone
from duemq.pipeline.cli.command import AsJson, Master, Settings, Url, duration_of, echo_json, examples, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from duemq.pipeline.bulk_change import ChangeClient, Targets
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
_NO_ANSWER = "What was decided before stands; run the same again: nothing is done twice."

Table = Annotated[str, typer.Argument(help="A file or folder (Parquet, CSV, JSON, ORC), or a table of the catalog.")]
Format = Annotated[str | None, typer.Option("--format", help="Of the table: parquet, csv, json or orc.")]
Id = Annotated[str | None, typer.Option("--id", help="The column with ids, or with names that senders chose.")]
Key = Annotated[str | None, typer.Option("--key", help="The column with a business key; needs --ids.")]
Ids = Annotated[str | None, typer.Option("--ids", help="The table that has the ids of a key, such as bulk schedule's.")]
IdsKey = Annotated[str, typer.Option("--ids-key", help="The column of that table with the key.")]
Answers = Annotated[
    str | None,
    typer.Option("--answers", help="Write the rows with their answers, as Parquet, to this new folder or URI."),
]
Connections = Annotated[
    int, typer.Option(min=1, max=256, help="Requests under way at the same time, from each machine of the cluster.")
]
Batch = Annotated[int, typer.Option(min=1, max=10_000, help="Messages in one request.")]
Patience = Annotated[float, typer.Option(min=0, help="Seconds to ask again for an answer that does not come.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell how many messages that would be.")]


def cancel(
    table: Table, id_: Id = None, key: Key = None, ids: Ids = None, ids_key: IdsKey = "name", where: Where = None,
    table_format: Format = None, answers: Answers = None, dry_run: DryRun = False, connections: Connections = 8,
    batch: Batch = 5_000, patience: Patience = 300.0, url: Url = None, master: Master = None, conf: Settings = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Cancel all messages that a table names, and tell truthfully what became of each.

    The exit code is that of `duemq cancel` for many: 0 all cancelled (now or before), 3 some were delivered already,
    4 some are unknown, 5 some are not known yet: run it again. The highest wins.
    """
    _check(id_, key, ids)
    with _session("cancel", master, conf, as_json) as (spark, teller):
        from duemq.pipeline.bulk_change import cancel as run

        rows, targets = _rows(spark, table, table_format, where), _destinations(spark, id_, key, ids, ids_key)
        if dry_run:
            _tell_dry(spark, teller, targets.of(rows), as_json)
            return
        server, folder, since = _server(url, batch, patience), _folder(spark, answers), time.monotonic()
        done = run(rows, targets, server, answers=folder, connections=connections, teller=teller)
    _tell(done.counts, time.monotonic() - since, as_json)


def move(
    table: Table, id_: Id = None, key: Key = None, ids: Ids = None, ids_key: IdsKey = "name",
    to: Annotated[str | None, typer.Option(
        "--to", help="When: a column or SQL expression; epoch ms, a TIMESTAMP, or a date-time as text.",
        show_default="due_ms, where --by is given")] = None,
    by: Annotated[str | None, typer.Option("--by", help="Shift that by so much: 2h, 1d12h, -30m.")] = None,
    zone: Zone = None, past: Past = "reject", where: Where = None, table_format: Format = None, answers: Answers = None,
    dry_run: DryRun = False, connections: Connections = 8, batch: Batch = 5_000, patience: Patience = 300.0,
    url: Url = None, master: Master = None, conf: Settings = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Move all messages that a table names, each to a time of its own.

    The new time is absolute: --to, or the time in the column due_ms (of the table, or of --ids) shifted by --by. So the
    command can be run again, and does not shift twice. Exit codes as `duemq spark cancel`, and 6 where some had been
    cancelled, 7 where some moves were refused.
    """
    _check(id_, key, ids)
    if to is None and by is None:
        raise typer.BadParameter("say when: --to, or --by to shift from the column due_ms", param_hint="--to")
    by_ms = _shift(by)
    with _session("move", master, conf, as_json) as (spark, teller):
        from duemq.pipeline.bulk_change import move as run
        from duemq.pipeline.bulk_change.job import new_times

        rows, targets = _rows(spark, table, table_format, where), _destinations(spark, id_, key, ids, ids_key)
        when = to or "due_ms"
        if dry_run:
            new_times(targets.of(rows), when, by_ms, zone)  # raises BadInput
            _tell_dry(spark, teller, targets.of(rows), as_json)
            return
        server, folder, since = _server(url, batch, patience), _folder(spark, answers), time.monotonic()
        done = run(
            rows, targets, server, when, by_ms, answers=folder, connections=connections, zone=zone,
            past=past == "send", teller=teller,
        )  # fmt: skip
    _tell(done.counts, time.monotonic() - since, as_json)


@contextmanager
def _session(
    name: str, master: str | None, conf: list[str] | None, as_json: bool
) -> Iterator[tuple[SparkSession, Teller]]:
    with spark_session(name, master, conf, as_json) as (spark, teller):
        from duemq.pipeline.spark.failures import failures_told

        with failures_told(_NO_ANSWER):
            yield spark, teller


def _check(id_: str | None, key: str | None, ids: str | None) -> None:
    if (id_ is None) == (key is None):
        raise typer.BadParameter("say which messages: --id COLUMN, or --key COLUMN with --ids TABLE", param_hint="--id")
    if (key is None) != (ids is None):
        raise typer.BadParameter("--key and --ids go together", param_hint="--ids")


def _shift(by: str | None) -> int:
    ms = duration_of((by or "0").removeprefix("-"), "--by")
    return -ms if by is not None and by.startswith("-") else ms


def _rows(spark: SparkSession, table: str, kind: str | None, where: str | None) -> DataFrame:
    from duemq.pipeline.logs.tables import read_table

    rows = read_table(spark, table, kind)
    return rows if where is None else rows.where(where)


def _destinations(spark: SparkSession, id_: str | None, key: str | None, ids: str | None, ids_key: str) -> Targets:
    from duemq.pipeline.bulk_change import Targets
    from duemq.pipeline.logs.tables import read_table

    if ids is None:
        return Targets(id_ or "")
    return Targets(key or "", read_table(spark, ids), ids_key)


def _folder(spark: SparkSession, answers: str | None) -> str | None:
    from duemq.pipeline.files.uris import destination

    return None if answers is None else destination(spark, answers, "--answers", new=True)


def _server(url: str | None, batch: int, patience_s: float) -> ChangeClient:
    """What executors connect to: with what this process's environment says, for they may have another."""
    import os

    from duemq.client.http.connection import http_options, tls_files
    from duemq.pipeline.bulk_change import ChangeClient

    base = http_options(url, None, 1.0)["base_url"]
    return ChangeClient(base, os.environ.get("DUEMQ_API_KEY"), tls=tls_files(), batch=batch, patience_s=patience_s)


def _tell_dry(spark: SparkSession, teller: Teller, target_rows: DataFrame, as_json: bool) -> None:
    from pyspark.sql import functions as F

    from duemq.pipeline.bulk_change.messages import TARGET
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
        typer.echo(", ".join(parts) or "There was nothing to do.")
    if code := max((EXIT_OF[status] for status in counts), default=0):
        raise typer.Exit(code)
