"""`duemq spark send`: the rows of a table become messages, sent under their names through Kafka."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duemq.pipeline.cli import columns as table
from duemq.pipeline.cli import command as common

if TYPE_CHECKING:
    from duemq.pipeline.send import SendResult

EXAMPLES = common.examples(
    "duemq spark send /data/reminders.parquet --due at --to reminders --payload body --name id --kafka broker:9092",
    "duemq spark send orders.csv --due due --topic topic --payload id,amount --name id --key customer --rejects "
    "/data/rejects",
    "duemq spark send /data/reminders.parquet --due at --to reminders --payload body --name id --dry-run",
)


def send(
    source: Annotated[
        str, typer.Argument(metavar="TABLE", help="A path (Parquet, CSV, JSON, ORC) or a name in the catalog.")
    ],
    name: Annotated[str, typer.Option(help="The column of names: each name is accepted once.")],
    due: table.Due = "due",
    payload: table.Payload = None,
    payload_base64: table.PayloadBase64 = None,
    topic: table.Topic = None,
    to: table.To = None,
    key: table.Key = None,
    headers: table.Headers = None,
    nulls: table.Nulls = False,
    labels: table.Labels = None,
    expires: table.Expires = None,
    zone: table.Zone = None,
    unit: table.Unit = "ms",
    past: table.Past = "reject",
    rejects: Annotated[
        str | None, typer.Option(help="A folder for the rows that cannot be sent.", show_default="they are counted")
    ] = None,
    kind: table.TableFormat = None,
    option: table.ReaderOptions = None,
    where: table.Where = None,
    select: table.Select = None,
    compare_names: Annotated[bool, typer.Option(help="Reject rows that have one name and differ.")] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Send nothing if a row is rejected (exit 7).")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count rows, rejected ones by field.")] = False,
    kafka: common.Bootstrap = "localhost:9092",
    kafka_set: common.KafkaSettings = None,
    master: common.Master = None,
    conf: common.Settings = None,
    as_json: common.AsJson = False,
) -> None:
    """Send all rows of a table, each once under its name however often the command is run or interrupted.

    A message can be looked up, moved and cancelled by its name as soon as it is sent. Rows that break a rule are
    counted and written to --rejects with the reason; the others are sent, unless --strict is given.
    """
    again = "Sent rows stay sent; run it again to send the rest: no row is delivered twice"
    session = common.spark_session("send", master, conf, as_json, kafka=not dry_run, and_then=again)
    with session as (spark, teller):
        from duemq.pipeline.files.uris import destination
        from duemq.pipeline.logs.tables import read_table
        from duemq.pipeline.send import send as run
        from duemq.pipeline.send import sendable
        from duemq.pipeline.send.job import looked_at

        columns = table.columns_of(
            due=due, payload=payload, payload_base64=payload_base64, topic=topic, to=to, key=key, headers=headers,
            labels=labels, expires=expires, name=name, zone=zone, unit=unit, nulls=nulls,
        )  # fmt: skip
        rows = read_table(spark, source, kind, common.settings_of(option, "--option"), corrupt=True)
        frame = table.chosen(rows, where, select)
        if dry_run:
            now = int(time.time() * 1000)
            judged_rows = sendable(frame, columns, now=now, past=past == "send")
            judged_rows, _ = looked_at(judged_rows, columns, compare_names, now)
            table.print_look(judged_rows, "sent", as_json)
            return
        done = run(
            frame, columns, common.reached(kafka, kafka_set),
            rejects=None if rejects is None else destination(spark, rejects, "--rejects"), strict=strict,
            compare_names=compare_names, past=past == "send", teller=teller,
        )  # fmt: skip
        _tell(done, as_json)


def _tell(done: SendResult, as_json: bool) -> None:
    document: dict[str, Any] = {
        "rows": done.rows, "sent": done.sent, "rejected": done.rejected, "rejects": done.rejects, "shards": done.shards,
        "overdue": done.overdue,
    }  # fmt: skip
    if as_json:
        common.echo_json(document)
        return
    typer.echo(f"{done.sent:,} of {done.rows:,} rows are sent to {done.shards} shards")
    if done.overdue:
        typer.echo(f"{done.overdue:,} of them were due already")
    if done.rejected:
        where = done.rejects or "say --rejects to see them"
        typer.secho(f"{done.rejected:,} rows were rejected: {where}", fg=typer.colors.YELLOW)
