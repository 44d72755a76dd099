"""`duemq spark schedule`: the rows of a table become messages."""

from __future__ import annotations

import time
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from duemq.pipeline.cli import columns as table
from duemq.pipeline.cli import command as common

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from duemq.pipeline.bulk_schedule.job import ScheduleResult
    from duemq.pipeline.bulk_schedule.rules import BulkRules
    from duemq.pipeline.columns import Columns
    from duemq.pipeline.logs.server import Server
    from duemq.pipeline.send.soon import SoonResult
    from duemq.pipeline.spark.progress import Teller

EXAMPLES = common.examples(
    "duemq spark schedule /data/reminders.parquet --due at --to reminders --payload body --stage /shared/jobs",
    "duemq spark schedule orders.csv --due due --topic topic --payload id,amount --name id --stage /shared/jobs "
    "--ids /data/ids",
    "duemq spark schedule --jdbc jdbc:postgresql://db/shop --table invoices --due due_at --to dunning --payload text "
    "--zone Europe/Berlin --job dunning-2027-01 --stage /shared/jobs --conf spark.jars=/opt/postgresql.jar",
    "duemq spark schedule /data/reminders.parquet --due at --to reminders --payload body --dry-run",
)


def schedule(
    source: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="A path (Parquet, CSV, JSON, ORC) or a name in the catalog.")
    ] = None,
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
    name: table.Name = None,
    order: table.Order = None,
    zone: table.Zone = None,
    unit: table.Unit = "ms",
    job: Annotated[
        str | None,
        typer.Option(help="The job's id, to continue it.", show_default="from its files and columns"),
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="A folder or s3a:// below the server's delay_files.import_from. Required.")
    ] = None,
    rejects: Annotated[str | None, typer.Option(help="A folder or URI for the rows that cannot be scheduled.")] = None,
    ids: Annotated[str | None, typer.Option(help="Write a table of the ids to this folder or URI (Parquet).")] = None,
    kind: table.TableFormat = None,
    jdbc: Annotated[str | None, typer.Option(help="The URL of a database, instead of TABLE.")] = None,
    jdbc_name: Annotated[str | None, typer.Option("--table", help="The table in that database.")] = None,
    option: table.ReaderOptions = None,
    where: table.Where = None,
    select: table.Select = None,
    lead: Annotated[
        str, typer.Option(help="How far ahead a window must begin; at least 2m plus the time to write the files.")
    ] = "10m",
    link: Annotated[bool, typer.Option(help="Let the server link the files instead of copying them.")] = True,
    soon: Annotated[
        Literal["reject", "send"], typer.Option(help="Reject rows due too soon for a file, or send them by name.")
    ] = "reject",
    strict: Annotated[bool, typer.Option("--strict", help="Schedule nothing if a row is rejected (exit 7).")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count rows, rejected ones by field.")] = False,
    url: common.Url = None,
    master: common.Master = None,
    conf: common.Settings = None,
    as_json: common.AsJson = False,
) -> None:
    """Schedule all rows of a table, exactly once however often the command is run or interrupted.

    Rows that cannot be scheduled are counted and written to --rejects with the reason; the others are scheduled, unless
    --strict is given. Run it again with the same --job to continue.
    """
    lead_ms = common.duration_of(lead, "--lead")
    with common.spark_session("schedule", master, conf, as_json) as (spark, teller):
        from duemq.pipeline.bulk_schedule.ids import write_ids
        from duemq.pipeline.bulk_schedule.job import Options
        from duemq.pipeline.bulk_schedule.job import schedule as run
        from duemq.pipeline.bulk_schedule.rules import judged
        from duemq.pipeline.errors import BadInput
        from duemq.pipeline.files.uris import destination, uri_of
        from duemq.pipeline.logs.server import Server
        from duemq.pipeline.send.soon import check_soon, send_soon
        from duemq.pipeline.spark.failures import failures_told

        server = Server(url)
        rules = _rules(server, lead_ms, dry_run, teller)
        columns = table.columns_of(
            due=due, payload=payload, payload_base64=payload_base64, topic=topic, to=to, key=key, headers=headers,
            labels=labels, expires=expires, name=name, order=order, zone=zone, unit=unit, nulls=nulls,
        )  # fmt: skip
        check_soon(soon, strict, columns)
        rows = _frame(spark, source, kind, jdbc, jdbc_name, common.settings_of(option, "--option"))
        frame = table.chosen(rows, where, select)
        if dry_run:
            now = rules.server_clock(lambda: int(time.time() * 1000))()
            table.print_look(judged(frame, columns, rules, now), "scheduled", as_json)
            return
        if stage is None:
            raise BadInput("--stage is missing: a folder that the server imports files from (delay_files.import_from)")
        for option_name, place in (("--rejects", rejects), ("--ids", ids)):
            if place is not None:
                destination(spark, place, option_name)
        reader = "" if jdbc else f"{kind or ''} {' '.join(sorted(option or ()))}".strip()
        reader = "\n".join([reader, *([where or "", *(select or ())] if where or select else [])])
        job_id, about, earlier = _identity(frame, columns, job, source, (jdbc, jdbc_name), reader)
        again = f"Run it again with --job {job_id} to go on: nothing is scheduled twice"
        with failures_told(again):
            done = run(
                frame, columns, job_id, Options(stage, rejects, link, strict), server, rules=rules, source=about,
                earlier=earlier, teller=teller,
            )  # fmt: skip
            without_id = None
            if ids is not None:
                teller.step("writing the ids")
                without_id = done.manifest.accepted - write_ids(done.ids, done.manifest.attempt, uri_of(ids))
        near = send_soon(spark, done.manifest, columns, url, rules, teller) if soon == "send" else None
        _tell(done, ids, without_id, near, as_json)


def _rules(server: Server, lead_ms: int, dry_run: bool, teller: Teller) -> BulkRules:
    """The server's rules. If a dry run cannot reach the server, it reports this and uses the defaults."""
    from duemq.client.http.errors import Unavailable, Unreachable
    from duemq.pipeline.bulk_schedule.rules import BulkRules

    try:
        return BulkRules.of(server.limits(0.0) if dry_run else server.limits(), lead_ms)
    except (Unavailable, Unreachable) as error:
        if not dry_run:
            raise
        teller.says(f"using default limits, because the server cannot be reached: {error}")
        return BulkRules(lead_ms=lead_ms)


def _frame(
    spark: SparkSession,
    source: str | None,
    kind: str | None,
    jdbc: str | None,
    name: str | None,
    options: dict[str, str],
) -> DataFrame:
    from duemq.pipeline.errors import BadInput
    from duemq.pipeline.logs.tables import jdbc_table, read_table

    if jdbc is not None and name is not None and source is None:
        return jdbc_table(spark, jdbc, name, options)
    if source is None or jdbc is not None or name is not None:
        raise BadInput("either TABLE is needed, or both of --jdbc and --table")
    return read_table(spark, source, kind, options, corrupt=True)


def _identity(
    frame: DataFrame,
    columns: Columns,
    job: str | None,
    source: str | None,
    database: tuple[str | None, str | None],
    reader: str,
) -> tuple[str, str, str | None]:
    """The job's id, its identity, and the identity that earlier versions gave it. `source`: a path, or a name in the
    catalog; `database`: a URL and a table; `reader`: the options of the reader."""
    from duemq.pipeline.bulk_schedule.manifest import print_of
    from duemq.pipeline.bulk_schedule.plans import plan_of
    from duemq.pipeline.errors import BadInput
    from duemq.pipeline.logs.tables import fingerprint, is_path, jdbc_print, snapshot_of

    read = f" {sha256(reader.encode()).hexdigest()}" if reader else ""
    url, name = database
    earlier: str | None
    if url is not None and name is not None:
        files, earlier = None, f"{url.partition('?')[0]} {name}{read}"
        about = f"jdbc {jdbc_print(url, name)}{read}"
    else:
        files = fingerprint(frame)
        earlier = None if files is None else files + read
        about = earlier or ""
        if source is not None and not is_path(source):
            plan = sha256(plan_of(frame).encode()).hexdigest()
            about = f"{about} {plan} {snapshot_of(frame.sparkSession, source)}"
    if job is None and files is None:
        raise BadInput("--job is missing: this table has no files to tell whether it was scheduled before")
    return job or f"job-{print_of(columns.as_dict(), earlier or '')[:16]}", about, earlier


def _tell(
    done: ScheduleResult, ids: str | None, without_id: int | None, near: SoonResult | None, as_json: bool
) -> None:
    manifest = done.manifest
    document: dict[str, Any] = {
        "job": manifest.job, "rows": manifest.rows, "scheduled": manifest.accepted, "rejected": manifest.rejected,
        "rejects": manifest.rejects, "files": len(manifest.files), "again": done.again, "forgotten": done.forgotten,
        "ids": ids, "without_id": without_id,
    } | ({} if near is None else {"sent": near.sent, "left": near.left, "answers": near.answers})  # fmt: skip
    if as_json:
        common.echo_json(document)
        return
    again = " before; nothing was changed" if done.again else ""
    typer.echo(f"{manifest.accepted:,} of {manifest.rows:,} rows are scheduled (job {manifest.job}){again}")
    if done.forgotten:
        typer.secho(
            f"{done.forgotten:,} of them were handed over, and the server no longer keeps their outcome",
            fg=typer.colors.YELLOW,
        )
    if without_id:
        typer.secho(
            f"{without_id:,} of them are not in {ids}: the server no longer keeps their files",
            fg=typer.colors.YELLOW,
        )
    if manifest.rejected:
        typer.secho(f"{manifest.rejected:,} rows were rejected: {manifest.rejects}", fg=typer.colors.YELLOW)
    if near is not None and near.answers is not None:
        typer.echo(f"{near.sent:,} of these are sent, {near.left:,} are not: {near.answers}")
