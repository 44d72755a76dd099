"""`duemq spark forecast`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from duemq.pipeline.cli.command import (
    BROKEN,
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
    from duemq.pipeline.forecast.job import Forecast

EXAMPLES = examples(
    "duemq backup /backup/duemq && duemq spark forecast /backup/duemq --into forecast",
    "duemq spark forecast /backup/duemq --for 12h --capacity 25000 --hot 20",
    "duemq bench steady --rate 20000 --json bench.json; duemq spark forecast /backup/duemq --capacity bench.json",
    "duemq spark forecast /var/lib/duemq --json | jq '.hot[0]'",
)
_SHOWN = 12  # lines of a table on a terminal
_TEXTS = ("topic", "topics", "minute", "second", "")


def forecast(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER", help="A backup, a folder of backups (the newest), or the data of a stopped server."
        ),
    ],
    into: Annotated[
        str | None,
        typer.Option(
            "--into", metavar="DIR", help="Write tables (Parquet) and forecast.html with plots here: a path, or a URI."
        ),
    ] = None,
    length: Annotated[str, typer.Option("--for", metavar="DURATION", help="How far ahead, such as 12h or 30d.")] = "7d",
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Where it begins: RFC 3339 or epoch ms.", show_default="now"),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(
            "--capacity",
            metavar="N|FILE",
            help="Messages per second that can be delivered, or what `duemq bench steady --json FILE` wrote.",
            show_default="10000, the steady figure of docs/benchmarks.md",
        ),
    ] = None,
    hot: Annotated[int, typer.Option("--hot", min=1, max=10_000, help="How many hot seconds to name.")] = 10,
    as_json: AsJson = False,
    master: Master = None,
    conf: Settings = None,
) -> None:
    """Tell what is due when in the coming hours and days, and where that is more than can be delivered.

    Reads the stores and delay files of a backup, or of a data folder that no server runs on. A running server's is
    read from a backup of it, which takes no stop.
    """
    from_ms = time.time_ns() // 1_000_000 if start is None else instant_of(start, "--from")
    until_ms = from_ms + duration_of(length, "--for")
    with spark_session("forecast", master, conf, as_json, failed=BROKEN) as (spark, teller):
        from duemq.pipeline.files.uris import destination, uri_of
        from duemq.pipeline.forecast.capacity import capacity_of
        from duemq.pipeline.forecast.job import forecast as run
        from duemq.pipeline.forecast.page import page as page_of
        from duemq.pipeline.forecast.read import folder_of, pending
        from duemq.pipeline.report.place import check_page, write_page

        if into is not None:
            check_page(spark, destination(spark, into, "--into"), "--into")
        place, measured = folder_of(folder), capacity_of(capacity)
        teller.step(f"reading the stores in {folder}")
        with pending(spark, place) as messages:
            done = run(messages, measured, from_ms, until_ms, hot, into, teller)
        page = None if into is None else f"{into.rstrip('/')}/forecast.html"
        if page is not None:
            write_page(spark, uri_of(page), page_of(done))
    if as_json:
        echo_json(done.document() | {"page": page})
    else:
        show(done, page)


def show(done: Forecast, page: str | None) -> None:
    """The summary for people. `page`: where it was written."""
    from rich.console import Console
    from rich.table import Table

    from duemq.pipeline.forecast.words import duration, moment, sentences

    console = Console()
    for sentence in sentences(done):
        console.print(sentence, highlight=False, soft_wrap=True)

    def table(title: str, columns: str, rows: list[tuple[str, ...]], left: int) -> None:
        shown = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
        for column in columns.split("|"):
            shown.add_column(column, justify="left" if column in _TEXTS else "right")
        for row in rows[:_SHOWN]:
            shown.add_row(*row)
        console.print()
        console.print(shown)
        if left:
            console.print(f"... and {left:,} more", style="dim", highlight=False)

    if done.topics:
        table(
            "Topics", "topic|messages|fullest second|at (UTC)",
            [(one.topic, f"{one.messages:,}", f"{one.peak:,}", moment(one.peak_ms)) for one in done.topics],
            max(0, len(done.topics) - _SHOWN),
        )  # fmt: skip
        table(
            "Hot seconds (UTC)", "second|messages|last one late by|topics",
            [
                (moment(one.second_ms), f"{one.messages:,}", duration(one.late_ms), named(one.topics))
                for one in done.hot
            ],
            max(0, len(done.hot) - _SHOWN),
        )  # fmt: skip
    if done.late:
        table(
            "Minutes over capacity or late (UTC)", "minute|messages|waiting|late by|",
            [
                (moment(one.minute_ms)[:-3], f"{one.messages:,}", f"{one.waiting:,}", duration(one.late_ms),
                 "over capacity" if one.over else "")
                for one in done.late
            ],
            max(0, done.late_minutes - _SHOWN),
        )  # fmt: skip
    if page is not None:
        console.print(f"\nTables and {page} written.", highlight=False, soft_wrap=True)


def named(topics: tuple[tuple[str, int], ...]) -> str:
    shown = ", ".join(f"{topic} {messages:,}" for topic, messages in topics[:3])
    return shown + (f" and {len(topics) - 3} more" if len(topics) > 3 else "")
