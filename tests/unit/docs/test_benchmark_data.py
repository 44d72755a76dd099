"""The figures of `docs/explain/benchmarks/` are data: every file has the columns of `duemq bench report --csv`."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from duemq.bench.report.figures_csv import COLUMNS

FOLDER = Path(__file__).parents[3] / "docs" / "explain" / "benchmarks"
FILES = sorted(FOLDER.glob("*.csv"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_figures_are_numbers_in_order(path: Path) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file)
        assert tuple(table.fieldnames or ()) == COLUMNS
        for row in table:
            values = [float(row[name]) for name in ("min", "median", "max") if row[name]]
            assert values and values == sorted(values), row
            assert row["scenario"] and row["figure"] and int(row["runs"]) >= 1
            assert row["met"] in ("", "met", "missed") and bool(row["met"]) == bool(row["target"]), row


def test_every_file_is_listed() -> None:
    assert {path.name for path in FILES} == {
        name for name in (path.name for path in FILES) if f"]({name})" in (FOLDER / "README.md").read_text()
    }
