"""`duemq spark migrate`: one command for each system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from duemq.model.timing import CLASSIC_LEVELS
from duemq.pipeline.cli.columns import (
    Due,
    Expires,
    Headers,
    Key,
    Labels,
    Name,
    Payload,
    PayloadBase64,
    To,
    Topic,
    Unit,
    Zone,
    columns_of,
)
from duemq.pipeline.cli.command import (
    AsJson,
    Master,
    Settings,
    duration_of,
    echo_json,
    examples,
    instant_of,
    spark_session,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Pending messages of other systems as a table.")

RABBITMQ_EXAMPLES = examples(
    "duemq spark migrate rabbitmq rabbitmq_delayed.jsonl --out pending/",
    "duemq spark migrate rabbitmq get.json --taken-at 2026-11-22T05:18:00Z --ttl 10m --to orders --out pending/",
)
CELERY_EXAMPLES = examples(
    "duemq spark migrate celery redis://localhost:6379/0 --queue celery --queue mail --out pending/",
    "duemq spark migrate celery unacked.json celery.json --out pending/",
)
ROCKETMQ_EXAMPLES = examples(
    "duemq spark migrate rocketmq rocketmq-export/rmq_sys_wheel_timer --taken-at 2026-11-22T05:18:00Z --out pending/",
)
CSV_EXAMPLES = examples(
    "duemq spark migrate csv reminders.csv --due at --payload text --to reminders --out pending/",
    "duemq spark migrate csv 'dump/*.csv' --separator ';' --due run_at --zone Europe/Berlin --topic queue "
    "--payload-base64 body --headers meta --out pending/",
)

Paths = Annotated[list[str], typer.Argument(help="Files, folders or patterns: paths, or URIs.")]
Out = Annotated[
    str,
    typer.Option("--out", help="Write the messages, as Parquet for `duemq spark schedule`, to this new folder or URI."),
]
Rejects = Annotated[str | None, typer.Option(
    "--rejects", help="Write what cannot be imported, with the reasons, to this one.",
    show_default="OUT-rejects")]  # fmt: skip
TakenAt = Annotated[str | None, typer.Option("--taken-at", help="When the dump was made: RFC 3339 with a zone, or ms.")]


def rabbitmq(
    paths: Paths, out: Out, rejects: Rejects = None, to: To = None, taken_at: TakenAt = None,
    ttl: Annotated[str | None, typer.Option("--ttl", help="The x-message-ttl of a plain queue, such as 10m.")] = None,
    master: Master = None, conf: Settings = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """RabbitMQ: dumps of the delayed-message exchange, and messages as the management API gives them.

    Without --to the routing key is the topic.
    """
    taken_ms = None if taken_at is None else instant_of(taken_at, "--taken-at")
    ttl_ms = None if ttl is None else duration_of(ttl, "--ttl")

    def rows(spark: SparkSession) -> DataFrame:
        from duemq.pipeline.migrate import RabbitOptions, from_documents
        from duemq.pipeline.migrate.files import read_documents

        return from_documents(read_documents(spark, paths), RabbitOptions(to, taken_ms, ttl_ms).read)

    _import(rows, out, rejects, master, conf, as_json)


def celery(
    paths: Annotated[list[str], typer.Argument(help="The URL of the Redis, or files as redis-cli --json writes them.")],
    out: Out, rejects: Rejects = None,
    to: Annotated[str, typer.Option("--to", help="The topic that the app's install names.")] = "celery",
    queue: Annotated[list[str] | None, typer.Option(
        "--queue", help="A queue to look into, beside what workers hold.", show_default="celery")] = None,
    prefix: Annotated[str, typer.Option("--prefix", help="The transport's global_keyprefix.")] = "",
    master: Master = None, conf: Settings = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Celery with Redis: tasks with an eta or countdown, as duemq holds them for its relay (docs/celery.md)."""

    def rows(spark: SparkSession) -> DataFrame:
        from duemq.pipeline.migrate import CeleryOptions, from_documents, reject_repeats
        from duemq.pipeline.migrate.files import read_documents
        from duemq.pipeline.migrate.redis import read_redis

        if "://" in paths[0] and paths[0].partition("://")[0] in ("redis", "rediss", "unix", "valkey", "valkeys"):
            documents = read_redis(spark, paths[0], queue or ("celery",), prefix)
            return reject_repeats(from_documents(documents, CeleryOptions(to).read, single=True))
        return reject_repeats(from_documents(read_documents(spark, paths), CeleryOptions(to).read))

    _import(rows, out, rejects, master, conf, as_json)


def rocketmq(
    paths: Paths, out: Out,
    taken_at: Annotated[str, typer.Option("--taken-at", help="When the export was made: RFC 3339 with a zone, or ms.")],
    rejects: Rejects = None, to: To = None,
    levels: Annotated[str, typer.Option("--levels", help="The broker's messageDelayLevel.")] = CLASSIC_LEVELS,
    master: Master = None, conf: Settings = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """RocketMQ: timer messages (5.x) and those of the 18 delay levels, as `mqadmin exportMessage` writes them.

    Without --to each goes to its own topic.
    """
    taken_ms = instant_of(taken_at, "--taken-at")

    def rows(spark: SparkSession) -> DataFrame:
        from duemq.pipeline.migrate import RocketOptions, from_documents, reject_repeats
        from duemq.pipeline.migrate.files import read_documents

        read = RocketOptions(taken_ms, to, levels).read
        return reject_repeats(from_documents(read_documents(spark, paths, by_line=True), read))

    _import(rows, out, rejects, master, conf, as_json)


def csv(
    paths: Paths, out: Out, rejects: Rejects = None, due: Due = "due", payload: Payload = None,
    payload_base64: PayloadBase64 = None, topic: Topic = None, to: To = None, key: Key = None, headers: Headers = None,
    labels: Labels = None, expires: Expires = None, name: Name = None, zone: Zone = None, unit: Unit = "ms",
    separator: Annotated[str, typer.Option("--separator", help="Between columns.")] = ",",
    quote: Annotated[str, typer.Option("--quote", help="Around values.")] = '"',
    escape: Annotated[str, typer.Option("--escape", help="Before a quote within a value.")] = '"',
    encoding: Annotated[str | None, typer.Option(
        "--encoding", help="Of the file; if it is named, no line is refused for it.", show_default="UTF-8")] = None,
    multiline: Annotated[bool, typer.Option(
        "--multiline/--no-multiline", help="Quoted values may hold line breaks (one task for each file).")] = True,
    master: Master = None, conf: Settings = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """CSV of any make, with a header: options say which column is what, as for `duemq spark schedule`."""

    def rows(spark: SparkSession) -> DataFrame:
        from duemq.pipeline.migrate import from_csv
        from duemq.pipeline.migrate.files import read_csv

        columns = columns_of(
            due=due, payload=payload, payload_base64=payload_base64, topic=topic, to=to, key=key, headers=headers,
            labels=labels, expires=expires, name=name, zone=zone, unit=unit,
        )  # fmt: skip
        read = read_csv(
            spark, paths, separator=separator, quote=quote, escape=escape, encoding=encoding, multiline=multiline
        )
        return from_csv(read, columns)

    _import(rows, out, rejects, master, conf, as_json)


app.command("rabbitmq", epilog=RABBITMQ_EXAMPLES)(rabbitmq)
app.command("celery", epilog=CELERY_EXAMPLES)(celery)
app.command("rocketmq", epilog=ROCKETMQ_EXAMPLES)(rocketmq)
app.command("csv", epilog=CSV_EXAMPLES)(csv)


def _import(
    rows: Callable[[SparkSession], DataFrame],
    out: str,
    rejects: str | None,
    master: str | None,
    conf: list[str] | None,
    as_json: bool,
) -> None:
    rejects = rejects or f"{out.rstrip('/')}-rejects"
    with spark_session("migrate", master, conf, as_json) as (spark, teller):
        from pyspark import StorageLevel
        from pyspark.sql import functions as F

        from duemq.pipeline.errors import BadInput
        from duemq.pipeline.files.uris import destination
        from duemq.pipeline.migrate import divided
        from duemq.pipeline.spark.failures import failures_told
        from duemq.pipeline.spark.progress import step

        good, bad = destination(spark, out, "--out", new=True), destination(spark, rejects, "--rejects", new=True)
        if good == bad:
            raise BadInput(f"--rejects {bad}: it is the folder of --out; name another one")
        with failures_told("What was written so far is not complete."):
            read = rows(spark).persist(StorageLevel.DISK_ONLY)
            messages, refused = divided(read)
            with step(spark, teller, f"reading, and writing messages to {out}"):
                messages.write.parquet(good)
            with step(spark, teller, f"writing what was rejected to {rejects}"):
                refused.write.parquet(bad)
                why = refused.groupBy("reason").count().orderBy(F.col("count").desc(), "reason").limit(10).collect()
                counts = read.agg(F.count_if(F.col("reason").isNull()), F.count("reason")).first() or (0, 0)
    imported, rejected = counts
    if as_json:
        reasons = {row["reason"]: row["count"] for row in why}
        echo_json({"imported": imported, "rejected": rejected, "reasons": reasons, "out": out, "rejects": rejects})
        return
    typer.echo(f"{imported:,} messages imported, {rejected:,} rejected")
    for row in why:
        typer.echo(f"{row['count']:>10,}  {row['reason']}")
