"""Shows results as a table, and stores them as a document."""

import math
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from duemq import __version__
from duemq.bench.harness.harness import Setup, layout
from duemq.bench.report.figures import FigureRow, ScenarioOutcome, ScenarioResult, Target, Trace

LATENESS_EDGES_MS = np.concatenate([[-np.inf, 0], np.logspace(-1, 5, 61), [np.inf]])


def number(value: float, unit: str = "") -> str:
    """A value for people to read: three digits if it is small, commas between thousands, a dash if it was not
    measured."""
    if not math.isfinite(value):
        return "-"
    if value == int(value) or abs(value) >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def bound(target: Target | None, unit: str) -> str:
    """A target as text."""
    if target is None:
        return ""
    return f"{'≥' if target.at_least else '≤' if target.limit else ''} {number(target.limit, unit)}".strip()


def cells(row: FigureRow) -> list[str]:
    """A table row: text, value (or lowest, median and highest), target, verdict."""
    unit = row.figure.unit
    values = (row.middle,) if len(row.values) == 1 else (row.low, row.middle, row.high)
    verdict = {None: "", True: "met", False: "MISSED"}[row.met]
    return [row.figure.text, *(number(value, unit) for value in values), bound(row.figure.target, unit), verdict]


def show(console: Console, result: ScenarioResult) -> None:
    """Print one scenario's figures."""
    table = Table(title=escape(result.title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("figure")
    for name in ("value",) if len(result.outcomes) == 1 else ("lowest", "median", "highest"):
        table.add_column(name, justify="right")
    table.add_column("target", justify="right", style="dim")
    table.add_column("")
    for row in result.rows:
        style = {None: "", True: "green", False: "bold red"}[row.met]
        *values, verdict = cells(row)
        table.add_row(*(escape(value) for value in values), f"[{style}]{verdict}[/]" if verdict else "")
    console.print(table)
    for note in result.notes:
        console.print(f"  [yellow]note:[/yellow] {escape(note)}", highlight=False)
    if result.notes:
        console.print()


def summary(console: Console, results: Sequence[ScenarioResult]) -> None:
    """Print every figure that has a target, from all scenarios."""
    table = Table(title="against the targets", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("scenario")
    table.add_column("figure")
    for name in ("reached", "target"):
        table.add_column(name, justify="right")
    table.add_column("")
    for result in results:
        scenario = result.title
        for row in result.rows:
            if row.figure.target is None or (row.figure.vital and row.met):
                continue
            value = row.high if row.figure.vital else row.middle
            style, verdict = ("green", "met") if row.met else ("bold red", "MISSED")
            unit = row.figure.unit
            texts = (scenario, row.figure.text.strip(), number(value, unit), bound(row.figure.target, unit))
            table.add_row(*map(escape, texts), f"[{style}]{verdict}[/]")
            scenario = ""
        vitals = [row for row in result.rows if row.figure.vital]
        if vitals and result.sound:
            texts = (scenario, f"all {len(vitals)} counts of faults (lost, twice, early, wrong …)", "0", "0")
            table.add_row(*map(escape, texts), "[green]met[/]")
    console.print(table)


def machine(setup: Setup, filesystem: str) -> dict[str, Any]:
    """Describe the machine on which the figures were measured, because they mean little without this."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_mib": memory >> 20,
        "filesystem": filesystem,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "payload_bytes": setup.payload_bytes,
        "runs_on": "embedded bus" if setup.on == "embedded" else str(layout(setup)),
        "shards": setup.shards or "default",
        "read_by": _read_by(setup),
        **({} if setup.traced is None else {"traced": setup.traced}),
    }


def _read_by(setup: Setup) -> str:
    if setup.on != "embedded":
        return "a read-committed Kafka consumer"
    return {"poll": "long poll", "events": "server-sent events", "frames": "frames"}[setup.by]


def document(results: Sequence[ScenarioResult], where: dict[str, Any]) -> dict[str, Any]:
    """All results as one JSON-able document. Numbers are in their stated units, times in epoch ms or s."""
    return {
        "duemq": __version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": where,
        "scenarios": [
            {
                "name": result.name,
                "title": result.title,
                "parameters": dict(result.parameters),
                "sound": result.sound,
                "figures": {row.figure.key: _row(row) for row in result.rows},
                "notes": result.notes,
                "runs": [_run(outcome) for outcome in result.outcomes],
            }
            for result in results
        ],
    }


def _row(row: FigureRow) -> dict[str, Any]:
    target = row.figure.target
    low, middle, high = (value if math.isfinite(value) else None for value in (row.low, row.middle, row.high))
    return {
        "text": row.figure.text.strip(),
        "unit": row.figure.unit,
        "min": low,
        "median": middle,
        "max": high,
        "target": {"at_least" if target.at_least else "at_most": target.limit} if target else None,
        "met": row.met,
    }


def _run(outcome: ScenarioOutcome) -> dict[str, Any]:
    return {
        "figures": {each.key: each.value if math.isfinite(each.value) else None for each in outcome.figures},
        "trace": _trace(outcome.trace) if outcome.trace else None,
    }


def _trace(trace: Trace) -> dict[str, Any]:
    series = trace.over_time()
    counts, _ = np.histogram(trace.sample_ms, LATENESS_EDGES_MS)
    return {
        "label": trace.label,
        "flow": trace.flow,
        "bin_s": series.width_s,
        "per_s": series.per_s,
        "p50_ms": series.p50_ms,
        "p99_ms": series.p99_ms,
        "histogram": {"upper_edges_ms": LATENESS_EDGES_MS[1:], "counts": counts},
    }


def write_json(path: Path, results: Sequence[ScenarioResult], where: dict[str, Any]) -> None:
    """Write `document` to a file; NaN and infinity become null."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    path.write_bytes(orjson.dumps(document(results, where), option=options) + b"\n")
