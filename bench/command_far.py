"""`duemq bench` for the far future: messages that wait for weeks, and their files."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duemq.bench.command import app, command

if TYPE_CHECKING:
    from duemq.bench.plans.bench_steps import BenchStep

__all__ = ["app"]  # the whole group, for the entry point

_TIMES = {"": 1, "K": 1_000, "M": 1_000_000}
_NUMBER = re.compile(r"(\d[\d_]*(?:\.\d+)?)\s*([KM]?)")


def counts(text: str) -> list[int]:
    """Parse numbers such as 20000, 500K or 1M,5M,20M. Raises typer.BadParameter."""
    numbers = []
    for part in text.split(","):
        match = _NUMBER.fullmatch(part.strip().upper())
        if match is None or (number := round(float(match[1].replace("_", "")) * _TIMES[match[2]])) < 1:
            raise typer.BadParameter(f"{part!r} is not a number such as 20000, 500K or 20M")
        numbers.append(number)
    return numbers


def _read_counts(value: Any) -> Any:
    return counts(value) if isinstance(value, str) else value


def _read_count(value: int | str) -> int:
    numbers = counts(str(value))  # a default value is already a number
    if len(numbers) > 1:
        raise typer.BadParameter(f"{value!r} is more than one number")
    return numbers[0]


Counts = Annotated[
    Any, typer.Option("--count", help="Waiting messages; several with commas.", parser=_read_counts, metavar="COUNTS")
]


@command("pending")
def pending(
    count: Counts = "1M,5M,20M",
    ahead: Annotated[float, typer.Option(help="Hours until the first is due.")] = 24.0,
    days: Annotated[float, typer.Option(help="Days over which they are due.")] = 60.0,
) -> "list[BenchStep]":
    """The cost of a waiting message in memory and on disk; a restart, look-ups and cancels with all of them.

    With several counts: each on a new server, and --plot draws how the cost grows.
    """
    from duemq.bench.plans.far import pending_step

    return [pending_step(each, ahead, days) for each in _read_counts(count)]


@command("find")
def find(
    count: Counts = "1M,10M",
    looked_up: Annotated[int, typer.Option(min=1, help="Messages to look up by key.")] = 2_000,
    days: Annotated[float, typer.Option(help="Days over which they are due, from a day ahead on.")] = 60.0,
    indexed: Annotated[bool, typer.Option(help="Without an index: measure only the cost of the messages.")] = True,
    labelled: Annotated[
        bool, typer.Option("--label", help="Give each message a unique label, to measure its cost.")
    ] = False,
    at_rest: Annotated[bool, typer.Option(help="Look up and measure after sealing and compaction have ended.")] = True,
) -> "list[BenchStep]":
    """Find messages by key among very many, and measure the index's cost per message."""
    from duemq.bench.plans.far import find_step

    return [
        find_step(each, looked_up, days=days, indexed=indexed, labelled=labelled, at_rest=at_rest)
        for each in _read_counts(count)
    ]


@command("load")
def load(
    count: Annotated[
        int, typer.Option(help="Messages in the window.", parser=_read_count, metavar="COUNT")
    ] = 2_000_000,
    rate: Annotated[int, typer.Option(min=1, help="Messages per second delivered at the same time.")] = 2_000,
) -> "list[BenchStep]":
    """A full window is sealed and loaded again while a steady stream is delivered."""
    from duemq.bench.plans.far import load_step

    return [load_step(count, rate)]


@command("wheel")
def wheel(
    count: Annotated[
        int, typer.Option(help="Messages within 30 minutes.", parser=_read_count, metavar="COUNT")
    ] = 18_000_000,
) -> "list[BenchStep]":
    """The memory of the counting wheel, and the cost of a message in it: no server, no store."""
    from duemq.bench.plans.far import wheel_step

    return [wheel_step(count)]


@command("import")
def import_file(
    count: Annotated[
        int, typer.Option(help="Messages in all files.", parser=_read_count, metavar="COUNT")
    ] = 100_000_000,
    days: Annotated[float, typer.Option(min=0.05, help="Days they are due over, a file per half hour.")] = 60.0,
    deliver: Annotated[
        float, typer.Option(min=0, help="Seconds of the next window to read; it may be half an hour away.")
    ] = 60.0,
    link: Annotated[bool, typer.Option("--link", help="Write files that duemq can link instead of copying.")] = False,
) -> "list[BenchStep]":
    """Import very many messages from Parquet files, then measure look-ups, cancels and delivery."""
    from duemq.bench.plans.far import import_step

    return [import_step(count, days, deliver, link)]


@command("far")
def far(
    quick: Annotated[bool, typer.Option("--quick", help="Some hundred thousand messages: a smoke test.")] = False,
) -> "list[BenchStep]":
    """Every figure of the far future in docs/explain/benchmarks.md: pending, find, load, wheel and import."""
    from duemq.bench.plans.far import everything

    return everything(quick)


@app.command("files")
def files(
    folder: Annotated[Path, typer.Argument(help="Folder to write to; created if missing.")],
    topic: Annotated[str, typer.Option(help="Topic that the messages are delivered to.")] = "bench.files",
    files: Annotated[int, typer.Option(min=1, help="How many, one per half hour.")] = 48,
    rows: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Messages in each.")] = 35_000,
    ahead: Annotated[float, typer.Option(min=0, help="Hours until the first window begins, at least.")] = 2.0,
    payload_bytes: Annotated[int, typer.Option(min=20, help="Bytes per payload.")] = 256,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 1,
    complete: Annotated[
        bool, typer.Option("--complete", help="With all columns, so that `duemq import --link` can link them.")
    ] = False,
) -> None:
    """Write Parquet files of messages for `duemq import`."""
    import time

    from rich.console import Console

    from duemq.bench.clients.import_files import WINDOW_MS, FilePlan, write_all
    from duemq.bench.harness.progress_bar import ProgressScreen

    first = int(time.time() * 1000 + ahead * 3_600_000) // WINDOW_MS * WINDOW_MS + WINDOW_MS
    plan = FilePlan(first, files, rows, topic, payload_bytes, seed, complete)
    with ProgressScreen(Console(stderr=True)).phase("writing files", files) as advance:
        for done in write_all(plan, folder):
            advance(done)
    typer.echo(f"{files:,} files with {plan.count:,} messages for topic {topic} in {folder}")


@app.command("report")
def report(
    figures: Annotated[list[Path], typer.Argument(help="Files written by --json; a later one takes precedence.")],
    into: Annotated[Path | None, typer.Option(help="Put the tables into this page, between its marks.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw how the cost of pending messages grows (.png).")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write one row per figure, as in docs/explain/benchmarks/.")] = None,
) -> None:
    """Write Markdown tables, data and a picture from earlier figures.

    A page has marks such as `<!-- bench: pending load -->` and `<!-- end -->`; the text between them is replaced by the
    tables of the scenarios in the mark.
    """
    from duemq.bench.report import figures_csv, growth, markdown

    scenarios = markdown.read(figures)
    if csv is not None:
        figures_csv.write(scenarios, csv)
    if plot is not None:
        points = growth.points_in(scenarios)
        if len(points) < 2:
            raise typer.BadParameter("it needs `pending` figures for several counts", param_hint="--plot")
        growth.draw(points).savefig(plot, dpi=140)
    if into is None:
        if csv is None:
            typer.echo(markdown.tables(scenarios))
    else:
        picture = os.path.relpath(plot, into.parent) if plot is not None else ""
        into.write_text(markdown.fill(into.read_text("utf-8"), scenarios, picture), "utf-8")
