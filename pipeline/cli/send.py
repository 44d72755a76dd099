"""`duemq spark send`: the rows of a table become messages under their names, through Kafka."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duemq.pipeline.cli.columns import (
    Due,
    Expires,
    Headers,
    Key,
    Labels,
    Nulls,
    Past,
    Payload,
    PayloadBase64,
    ReaderOptions,
    Select,
    TableFormat,
    To,
    Topic,
    Unit,
    Where,
    Zone,
    chosen,
    columns_of,
    print_look,
)
from duemq.pipeline.cli.command import (
    REFUSED,
    AsJson,
    Bootstrap,
    KafkaSettings,
    Master,
    Settings,
    echo_json,
    examples,
    reached,
    settings_of,
    spark_session,
)

if TYPE_CHECKING:
    from duemq.pipeline.send import SendResult

EXAMPLES = examples(
    "duemq spark send /data/reminders.parquet --due at --to reminders --payload body --name id --kafka broker:9092",
    "duemq spark send orders.csv --due due --topic topic --payload id,amount --name id --key customer --rejects "
    "/data/rejects",
    "duemq spark send /data/reminders.parquet --due at --to reminders --payload body --name id --dry-run",
)
_NOT_SENT = "What was sent stands; run the same again: nothing is delivered twice."


def send(
    source: Annotated[
        str, typer.Argument(metavar="TABLE", help="A path (Parquet, CSV, JSON, ORC) or a name in the catalog.")
    ],
    name: Annotated[str, typer.Option(help="The column of names: what has one name is accepted once.")],
    due: Due = "due",
    payload: Payload = None,
    payload_base64: PayloadBase64 = None,
    topic: Topic = None,
    to: To = None,
    key: Key = None,
    headers: Headers = None,
    nulls: Nulls = False,
    labels: Labels = None,
    expires: Expires = None,
    zone: Zone = None,
    unit: Unit = "ms",
    past: Past = "reject",
    rejects: Annotated[
        str | None, typer.Option(help="A folder for the rows that cannot be sent.", show_default="they are counted")
    ] = None,
    kind: TableFormat = None,
    option: ReaderOptions = None,
    where: Where = None,
    select: Select = None,
    compare_names: Annotated[bool, typer.Option(help="Reject rows that have one name and differ.")] = True,
    strict: Annotated[
        bool, typer.Option("--strict", help="Send nothing where a row is rejected (exit code 7).")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count what would be sent, and rejected why.")
    ] = False,
    kafka: Bootstrap = "localhost:9092",
    kafka_set: KafkaSettings = None,
    master: Master = None,
    conf: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Send all rows of a table, due soon or later, each once under its name however often the command is run or ended.

    A message can be looked up, moved and cancelled by its name as soon as it is sent. Rows that break a rule are
    counted and written to --rejects with the reason; the others are sent all the same unless --strict is given.
    """
    with spark_session("send", master, conf, as_json, kafka=not dry_run) as (spark, teller):
        from duemq.pipeline.bulk_schedule.job import RowsRejected
        from duemq.pipeline.files.uris import destination
        from duemq.pipeline.logs.tables import read_table
        from duemq.pipeline.send import send as run
        from duemq.pipeline.send import sendable
        from duemq.pipeline.send.job import looked_at
        from duemq.pipeline.spark.failures import failures_told

        columns = columns_of(
            due=due, payload=payload, payload_base64=payload_base64, topic=topic, to=to, key=key, headers=headers,
            labels=labels, expires=expires, name=name, zone=zone, unit=unit, nulls=nulls,
        )  # fmt: skip
        table = read_table(spark, source, kind, settings_of(option, "--option"), corrupt=True)
        frame = chosen(table, where, select)
        if dry_run:
            now = int(time.time() * 1000)
            judged_rows = sendable(frame, columns, now=now, past=past == "send")
            judged_rows, _ = looked_at(judged_rows, columns, compare_names, now)
            print_look(judged_rows, "sent", as_json)
            return
        try:
            with failures_told(_NOT_SENT):
                done = run(
                    frame, columns, reached(kafka, kafka_set),
                    rejects=None if rejects is None else destination(spark, rejects, "--rejects"), strict=strict,
                    compare_names=compare_names, past=past == "send", teller=teller,
                )  # fmt: skip
        except RowsRejected as error:
            typer.secho(f"duemq: {error}", err=True, fg=typer.colors.RED)
            raise typer.Exit(REFUSED) from error
        except KeyboardInterrupt:
            typer.secho(f"duemq: stopped. {_NOT_SENT}", err=True, fg=typer.colors.YELLOW)
            raise typer.Exit(130) from None
        _tell(done, as_json)


def _tell(done: SendResult, as_json: bool) -> None:
    document: dict[str, Any] = {
        "rows": done.rows, "sent": done.sent, "rejected": done.rejected, "rejects": done.rejects, "shards": done.shards,
        "overdue": done.overdue,
    }  # fmt: skip
    if as_json:
        echo_json(document)
        return
    typer.echo(f"{done.sent:,} of {done.rows:,} rows are sent to {done.shards} shards")
    if done.overdue:
        typer.echo(f"{done.overdue:,} of them were due already")
    if done.rejected:
        where = done.rejects or "say --rejects to see them"
        typer.secho(f"{done.rejected:,} rows were rejected: {where}", fg=typer.colors.YELLOW)
