"""The options for reading a table and mapping its columns to messages, shared by all commands that make messages; and
the output of their dry runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from duemq.pipeline.cli.command import echo_json, settings_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from duemq.pipeline.columns import Columns

Due = Annotated[str, typer.Option("--due", help="The column of due times: a time, or a number of --unit since 1970.")]
Unit = Annotated[str, typer.Option("--unit", help="What whole numbers of --due and --expires are: ms or s.")]
Zone = Annotated[
    str | None, typer.Option("--zone", help="For times without one, such as Europe/Berlin; else they are refused.")
]
Topic = Annotated[
    str | None, typer.Option("--topic", help="The column of the topic.", show_default="topic, without --to")
]
To = Annotated[str | None, typer.Option("--to", help="The one topic of all rows.")]
Payload = Annotated[
    str | None,
    typer.Option("--payload", help="The column of the payload; several (a,b,c) become JSON.", show_default="payload"),
]
PayloadBase64 = Annotated[str | None, typer.Option("--payload-base64", help="A column of the payload in base64.")]
Key = Annotated[str | None, typer.Option("--key", help="The column of the key.")]
Headers = Annotated[
    str | None,
    typer.Option(help="A column of maps or JSON objects, or name=column,…; columns header.NAME are headers, too."),
]
Nulls = Annotated[
    bool, typer.Option("--nulls", help="Send null payloads and header values as null instead of refusing the row.")
]
Labels = Annotated[
    str | None, typer.Option("--labels", help="A column of lists, or columns of text (a,b), split at commas.")
]
Expires = Annotated[str | None, typer.Option("--expires", help="The column of expiry times.")]
Name = Annotated[str | None, typer.Option("--name", help="A column of your own unique names, to join the ids by.")]
TableFormat = Annotated[str | None, typer.Option("--format", help="parquet, csv, json or orc.")]
ReaderOptions = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="An option of Spark's reader.")
]
Where = Annotated[str | None, typer.Option("--where", help="Only rows for which this SQL condition holds.")]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select", metavar="SQL", help="A column, such as 'CAST(at AS BIGINT) AS due', or '*'; may be repeated."
    ),
]
Past = Annotated[
    Literal["reject", "send"], typer.Option("--past", help="Reject times more than a day past, or deliver these now.")
]
Order = Annotated[str | None, typer.Option("--order", help="Columns that sort rows due in the same millisecond.")]


def columns_of(
    *,
    due: str,
    payload: str | None,
    payload_base64: str | None,
    topic: str | None,
    to: str | None,
    key: str | None,
    headers: str | None,
    labels: str | None,
    expires: str | None,
    name: str | None,
    zone: str | None,
    unit: str,
    order: str | None = None,
    nulls: bool = False,
) -> Columns:
    """The mapping that these options describe. Raises BadInput, and BadParameter for options that contradict each
    other."""
    from duemq.pipeline.columns import HEADER_PREFIX, Columns

    if payload is not None and payload_base64 is not None:
        raise typer.BadParameter("use only one of them", param_hint="--payload, --payload-base64")
    if headers is not None and "=" in headers:
        named: str | dict[str, str] | None = settings_of(headers.split(","), "--headers")
    else:
        named = headers
    return Columns(
        due,
        payload_base64 or _several(payload) or "payload",
        topic=topic or ("topic" if to is None else None),
        to=to,
        key=key,
        headers=named,
        labels=_several(labels),
        expires=expires,
        name=name,
        order=tuple(order.split(",")) if order else (),
        zone=zone,
        unit=unit,
        payload_base64=payload_base64 is not None,
        header_prefix=HEADER_PREFIX,
        nulls=nulls,
    )


def chosen(frame: DataFrame, where: str | None, select: list[str] | None) -> DataFrame:
    """The rows and columns that `--where` and `--select` choose. Malformed lines stay, because they have no columns to
    test. Raises BadInput for wrong SQL."""
    from pyspark.sql import functions as F

    from duemq.pipeline.columns import CORRUPT
    from duemq.pipeline.spark.failures import failures_told

    with failures_told("Nothing was changed"):
        corrupt = [CORRUPT] if CORRUPT in frame.columns else []
        if where is not None:
            frame = frame.where(F.expr(f"({where})") | F.col(CORRUPT).isNotNull() if corrupt else where)
        if select:
            frame = frame.selectExpr(*select, *(() if "*" in select else corrupt))
        frame.schema  # noqa: B018  Connect only checks on request
    return frame


def print_look(judged: DataFrame, verb: str, as_json: bool) -> None:
    """Print how many rows of a judged frame can be scheduled or sent (`verb`), and how many cannot, by field."""
    from duemq.pipeline.bulk_schedule.rules import reasons

    counts = {row["field"]: row["rows"] for row in reasons(judged).collect()}
    accepted = counts.pop(None, 0)
    if as_json:
        echo_json({"rows": accepted + sum(counts.values()), "accepted": accepted, "rejected": counts})
        return
    typer.echo(f"{accepted:,} rows can be {verb}")
    for field, rows in counts.items():
        typer.echo(f"{rows:,} rows cannot: {field}")


def _several(text: str | None) -> str | tuple[str, ...] | None:
    return tuple(text.split(",")) if text and "," in text else text
