"""`duemq spark forecast`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from duemq.pipeline.cli import command as common

if TYPE_CHECKING:
    from duemq.pipeline.forecast.job import Forecast

EXAMPLES = common.examples(
    "duemq backup /backup/duemq && duemq spark forecast /backup/duemq --into forecast",
    "duemq spark forecast /backup/duemq --for 12h --capacity 25000 --hot 20",
    "duemq bench steady --rate 20000 --json bench.json; duemq spark forecast /backup/duemq --capacity bench.json",
    "duemq spark forecast /var/lib/duemq --json | jq '.hot[0]'",
)
_SHOWN = 12  # rows of a table that are shown on a terminal
_NAMED = 3  # topics that are listed for a hot second


def forecast(
    folder: Annotated[
        str, typer.Argument(help="A backup, a folder of backups (the newest), or the data of a stopped server.")
    ],
    into: Annotated[
        str | None, typer.Option(metavar="DIR", help="A path or URI for tables (Parquet) and forecast.html with plots.")
    ] = None,
    length: Annotated[str, typer.Option("--for", metavar="DURATION", help="How far ahead, such as 12h or 30d.")] = "7d",
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="RFC 3339 or epoch ms.", show_default="now")
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(
            metavar="N|FILE",
            help="Messages per second that can be delivered, or a file of `bench steady --json`.",
            show_default="10000, the steady figure of docs/explain/benchmarks.md",
        ),
    ] = None,
    hot: Annotated[int, typer.Option(min=1, max=10_000, help="How many hot seconds to name.")] = 10,
    as_json: common.AsJson = False,
    master: common.Master = None,
    conf: common.Settings = None,
) -> None:
    """Count the messages due in the coming hours and days, and name the times that exceed the capacity.

    Reads the stores and delay files of a backup, or of the data folder of a stopped server. For a running server, make
    a backup first.
    """
    from_ms = time.time_ns() // 1_000_000 if start is None else common.instant_of(start, "--from")
    until_ms = from_ms + common.duration_of(length, "--for")
    with common.spark_session("forecast", master, conf, as_json, failed=common.BROKEN) as (spark, teller):
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
        common.echo_json(done.document() | {"page": page})
    else:
        show(done, page)


def show(done: Forecast, page: str | None) -> None:
    """Print the summary for readers. `page`: its path or URI, if a page was written."""
    from rich.console import Console
    from rich.table import Table

    from duemq.pipeline.forecast.tables import sentences, tables

    console = Console()
    for sentence in sentences(done):
        console.print(sentence, highlight=False, soft_wrap=True)
    for title, heads, rows, total in tables(done, _NAMED):
        shown = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
        for head in heads:
            shown.add_column(head.removesuffix("|n"), justify="right" if head.endswith("|n") else "left")
        for row in rows[:_SHOWN]:
            shown.add_row(*(f"{cell:,}" if isinstance(cell, int) else cell for cell in row))
        console.print()
        console.print(shown)
        if total > _SHOWN:
            console.print(f"... and {total - _SHOWN:,} more", style="dim", highlight=False)
    if page is not None:
        console.print(f"\nTables and {page} written.", highlight=False, soft_wrap=True)
