"""Progress of a command: a bar for each step on a terminal, lines on stderr elsewhere, nothing with `--json`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer

from duemq.cli.output import size_text

Tell = Callable[[str, int, int | None], None]
"""Called with a step, the amount done, and the total (None: not known yet)."""

_FIRST_S: Final = 1.0  # by then the command may have ended
_MAX_PAUSE_S: Final = 60.0


@contextmanager
def progress(as_json: bool, *, in_bytes: bool = False) -> Iterator[Tell]:
    """Show the steps reported by the block. Amounts are messages or files, or bytes with `in_bytes`."""
    if as_json:
        yield lambda what, done, total: None
    elif sys.stderr.isatty():
        with _bars(in_bytes) as tell:
            yield tell
    else:
        yield _Lines(in_bytes).tell


@contextmanager
def _bars(in_bytes: bool) -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amount = (DownloadColumn(binary_units=True), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *amount, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        steps: dict[str, Any] = {}

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in steps:
                steps[what] = bars.add_task(what, total=total)
            bars.update(steps[what], completed=done, total=total)

        yield tell


class _Lines:
    """Progress for logs: a line after a second, then after growing pauses, up to a minute."""

    def __init__(self, in_bytes: bool) -> None:
        self._text = size_text if in_bytes else "{:,}".format
        self._pause_s = _FIRST_S
        self._next_at = time.monotonic() + self._pause_s

    def tell(self, what: str, done: int, total: int | None) -> None:
        if (now := time.monotonic()) < self._next_at:
            return
        of = "" if total is None else f" of {self._text(total)}"
        share = f" ({done * 100 // total} %)" if total else ""
        typer.echo(f"{what}: {self._text(done)}{of}{share}", err=True)
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
        self._next_at = now + self._pause_s
