"""Writes earlier figures (`--json`) as one table of data. `docs/explain/benchmarks/` has such files."""

import csv
from collections.abc import Iterable
from pathlib import Path

from duemq.bench.report.growth import Scenario
from duemq.bench.report.markdown import judged, title, unit_of

COLUMNS = ("scenario", "figure", "unit", "runs", "min", "median", "max", "target", "met")


def write(scenarios: Iterable[Scenario], path: Path) -> None:
    """Write one row per figure. If there was only one run, its value is the median."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for scenario in scenarios:
            runs = len(scenario["runs"])
            for figure in scenario["figures"].values():
                low, middle, high = (_round(figure[name]) for name in ("min", "median", "max"))
                ends = (low, middle, high) if runs > 1 else ("", middle, "")
                target, met = judged(figure)
                row = (title(scenario["title"]), figure["text"], unit_of(figure), runs, *ends, target, met.strip("*"))
                table.writerow(row)


def _round(value: float | None) -> str:
    """A value with three digits, as in the tables; empty if it was not measured."""
    return "" if value is None else f"{value:.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"
