"""Output formats: tables in a terminal, tab-separated lines in a pipe, JSON for programs."""

from __future__ import annotations

import re
import sys
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer

from duemq.model.printable import escaped
from duemq.model.timing import format_duration, format_ms

if TYPE_CHECKING:
    from duemq.client import Node
    from duemq.client.http.fields import HeaderList

Wide = Annotated[bool, typer.Option("--wide", help="In a terminal: all columns, without truncation.")]

_MS: Final = re.compile(r"(?<=T\d\d:\d\d:\d\d)\.\d{3}Z$")
_CLEAR: Final = "\x1b[2J\x1b[H"
_ANY_WIDTH: Final = 10_000


def echo_json(document: Any) -> None:
    """Print one JSON document on one line."""
    typer.echo(orjson.dumps(document).decode())


def echo_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    short: Sequence[str] | None = None,
    wide: bool | None = None,
) -> None:
    """Print a table as wide as the terminal; in a pipe one line per row without a heading, for `cut` and `awk`.

    In a terminal, the first column and ids are never cut, so that they can be copied. If the terminal is too narrow,
    other cells end in …, or wrap if the command has no --wide (`wide` is None). `short`: the columns in a terminal, in
    order. `wide`: show all columns, with ms, and without truncation.
    """
    if not sys.stdout.isatty():
        for row in rows:
            typer.echo("\t".join(row))
        return
    from rich.cells import cell_len
    from rich.console import Console, OverflowMethod
    from rich.table import Table
    from rich.text import Text

    places = [columns.index(column) for column in (columns if wide or short is None else short)]
    cells = [[_MS.sub("Z", row[place]) if wide is False else row[place] for place in places] for row in rows]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, place in enumerate(places):
        whole = number == 0 or columns[place] == "ID"
        least = max((cell_len(row[number]) for row in cells), default=0) if whole else None
        table.add_column(columns[place], min_width=least, no_wrap=whole)
    overflow: OverflowMethod = "fold" if wide is None else "ellipsis"
    for row in cells:
        table.add_row(*(Text(cell, no_wrap=wide is not None, overflow=overflow) for cell in row))
    Console(width=_ANY_WIDTH if wide else None).print(table, crop=False)


def begin_round() -> None:
    """Begin a refresh: clear the terminal; in a pipe, print the time."""
    typer.echo(_CLEAR if sys.stdout.isatty() else format_ms(time.time_ns() // 1_000_000), nl=not sys.stdout.isatty())


def echo_nodes(nodes: Iterable[Node]) -> None:
    """Print each node's state, the shards that it is master of, and how many ledger entries it is behind."""
    echo_table(
        ("NODE", "STATE", "MASTER OF", "LAG", "RACK", "REASON"),
        (
            (
                one.name,
                one.state,
                runs_text(one.master_of),
                str(max(one.lag.values(), default=0)),
                one.rack,
                one.reason or one.raw.get("full", ""),
            )
            for one in nodes
        ),
    )


def echo_fields(fields: Mapping[str, Any], indent: str = "") -> None:
    """Print one line per name and value, nested ones indented. Empty values are left out."""
    shown = {name: value for name, value in fields.items() if value not in (None, "", [], {})}
    width = max((len(name) for name in shown), default=0)
    for name, value in shown.items():
        if isinstance(value, Mapping):
            typer.echo(f"{indent}{name}")
            echo_fields(value, indent + "  ")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            for place, item in enumerate(value):
                typer.echo(f"{indent}{name} {place}")
                echo_fields(item, indent + "  ")
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            typer.echo(f"{indent}{name:<{width}}  {escaped(text)}")


def echo_headers(headers: HeaderList) -> None:
    """Print one line per header, in order."""
    if headers:
        typer.echo("headers")
    width = max((len(name) for name, _ in headers), default=0)
    for name, value in headers:
        try:
            text = "<null>" if value is None else escaped(value.decode())
        except UnicodeDecodeError:
            text = f"<base64 {b64encode(value or b'').decode()}>"
        typer.echo(f"  {escaped(name):<{width}}  {text}")


def instant_text(ms: int) -> str:
    """`2031-01-01T08:00:00.000Z (in 2h30m)`"""
    away = ms - time.time_ns() // 1_000_000
    return f"{format_ms(ms)} ({relative(away)})"


def relative(away_ms: int) -> str:
    """`in 2h30m` or `3s ago`, rounded for readers."""
    size = abs(away_ms)
    unit = next(
        (u for at_least, u in ((172_800_000, 3_600_000), (600_000, 60_000), (1000, 1000)) if size >= at_least), 1
    )
    text = format_duration((size + unit // 2) // unit * unit)
    return f"in {text}" if away_ms > 0 else f"{text} ago"


def runs_text(numbers: Iterable[int]) -> str:
    """`0-3, 7`"""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def payload_text(payload: bytes | None, is_null: bool = False) -> str:
    """A payload for display: text on one line; for bytes, only their number."""
    if is_null:
        return "<null>"
    if payload is None:
        return ""
    try:
        return escaped(payload.decode())
    except UnicodeDecodeError:
        return f"<{len(payload)} bytes>"


def size_text(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
