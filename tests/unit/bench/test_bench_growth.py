"""Figures of several numbers of messages: the picture, the tables, and the page they are put into."""

import csv
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from duemq.bench.command_far import app
from duemq.bench.harness.harness import Setup
from duemq.bench.report import growth, markdown, report
from duemq.bench.report.figures import Figure, ScenarioOutcome, ScenarioResult, Target, vital
from duemq.bench.report.plot import write_plot


def pending(count: int, disk: float, *more: float) -> ScenarioResult:
    outcomes = [
        ScenarioOutcome(
            (
                Figure("disk_ratio", "  by payload bytes", each, "x"),
                Figure("cpu_us", "CPU", 1234.5, "us"),
                vital("lost", "accepted, never read", 0),
            )
        ).against({"disk_ratio": Target(0.6)})
        for each in (disk, *more)
    ]
    return ScenarioResult("pending", f"pending: {count:,}", {"count": count, "days": 60.0}, tuple(outcomes))


def other() -> ScenarioResult:
    return ScenarioResult(
        "load", "load: a window", {"count": 3}, (ScenarioOutcome((Figure("load_s", "took", 2.25, "s"),), ("busy",)),)
    )


WHERE = report.machine(Setup(), "ext4")


def scenarios(*results: ScenarioResult) -> list[growth.Scenario]:
    found: list[growth.Scenario] = report.document(results, WHERE)["scenarios"]
    return found


def test_points_are_in_order_with_their_medians_and_targets() -> None:
    points = growth.points_in(scenarios(pending(20_000_000, 0.7), other(), pending(1_000_000, 0.2, 0.5, 0.4)))
    assert [point.count for point in points] == [1_000_000, 20_000_000]
    assert points[0].medians["disk_ratio"] == 0.4
    assert points[0].targets["disk_ratio"] == 0.6
    assert growth.short(20_000_000) == "20M" and growth.short(2_500) == "2.5K" and growth.short(12) == "12"


def test_the_picture_shows_every_point_and_its_target() -> None:
    points = growth.points_in(scenarios(pending(1_000, 0.5), pending(2_000, 0.7)))
    panels = {axes.get_title(loc="left"): axes for axes in growth.draw(points).axes}
    assert len(panels) == len(growth.PANELS)
    measured, bound = panels["Disk by payload, x"].get_lines()
    assert np.asarray(measured.get_xydata()).tolist() == [[1_000, 0.5], [2_000, 0.7]]
    assert np.unique(np.asarray(bound.get_ydata())).tolist() == [0.6]
    assert [text.get_text() for text in panels["Memory, MiB"].texts] == ["not measured"]


def test_several_counts_are_drawn_as_growth(tmp_path: Path) -> None:
    write_plot(tmp_path / "b.png", [pending(1_000, 0.5), pending(2_000, 0.7)], WHERE)
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    write_plot(tmp_path / "b.html", [pending(1_000, 0.5), other(), pending(2_000, 0.7)], WHERE)
    assert "What waiting messages cost" in (tmp_path / "b.html").read_text("utf-8")
    write_plot(tmp_path / "c.html", [pending(1_000, 0.5), other()], WHERE)
    assert "<svg" not in (tmp_path / "c.html").read_text("utf-8")


def test_tables_have_a_column_per_count_and_tell_misses() -> None:
    text = markdown.tables(scenarios(pending(2_000, 0.7), other(), pending(1_000, 0.5)))
    assert "### Pending: messages over 60 days" in text
    assert "| figure | 1K | 2K | target | |\n|---|---|---|---|---|\n" in text
    assert "| by payload bytes (x) | 0.50 | 0.70 | ≤ 0.60 | **missed** |" in text
    assert "| CPU (µs) | 1,234 | 1,234 |  |  |" in text
    assert "| accepted, never read | 0 | 0 | ≤ 0 | met |" in text
    assert "### Load: a window" in text and "| took (s) | 2.25 |  |  |" in text and "Note: busy." in text
    assert "\n| figure | min | median | max | target | |\n" in markdown.tables(scenarios(pending(1, 0.1, 0.2, 0.3)))
    assert "| by payload bytes (x) | 0.10 | 0.20 | 0.30 | ≤ 0.60 | met |" in markdown.tables(
        scenarios(pending(1, 0.1, 0.2, 0.3))
    )


def test_a_page_keeps_what_was_not_measured() -> None:
    page = "a\n<!-- bench: pending -->\nold 1\n<!-- end -->\nb\n<!-- bench: pending load -->\nold 2\n<!-- end -->\nc\n"
    only = markdown.fill(page, scenarios(pending(1_000, 0.5)))
    assert "old 1" not in only and "old 2" in only and "### Pending: 1,000" in only
    both = markdown.fill(only, scenarios(pending(1_000, 0.5), other()))
    assert "old 2" not in both and both.count("### Pending: 1,000") == 2 and both.count("### Load") == 1
    assert markdown.fill(both, scenarios(pending(1_000, 0.5), other())) == both
    assert [line for line in both.splitlines() if len(line) == 1] == ["a", "b", "c"]


def test_reports_are_made_from_files(tmp_path: Path) -> None:
    first, second, page, picture = (tmp_path / name for name in ("1.json", "2.json", "page.md", "p.png"))
    report.write_json(first, [pending(1_000, 0.5), pending(2_000, 0.9)], WHERE)
    report.write_json(second, [pending(2_000, 0.55), other()], WHERE)
    page.write_text("<!-- bench: pending load -->\n<!-- end -->\n", "utf-8")
    done = CliRunner().invoke(app, ["report", str(first), str(second), "--into", str(page), "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    assert "| by payload bytes (x) | 0.50 | 0.55 | ≤ 0.60 | met |" in page.read_text("utf-8")
    assert picture.exists() and "](p.png)" in page.read_text("utf-8")
    data = tmp_path / "f.csv"
    assert CliRunner().invoke(app, ["report", str(second), "--csv", str(data)]).output == ""
    rows = list(csv.DictReader(data.read_text("utf-8").splitlines()))
    payload = next(row for row in rows if row["figure"] == "by payload bytes")
    assert (payload["median"], payload["min"], payload["target"], payload["met"]) == ("0.55", "", "≤ 0.60", "met")
    shown = CliRunner().invoke(app, ["report", str(second)])
    assert "### Load: a window" in shown.output
    assert CliRunner().invoke(app, ["report", str(second), "--plot", str(picture)]).exit_code == 2


@pytest.mark.parametrize(
    "command",
    [["pending", "--count", "1G"], ["pending", "--set", "x"], ["import", "--count", "0"], ["load", "--count", "1K,2K"]],
)
def test_wrong_options_are_refused(command: list[str]) -> None:
    assert CliRunner().invoke(app, command).exit_code == 2
