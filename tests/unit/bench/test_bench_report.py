"""What `duemq bench` shows and writes."""

import io
import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner

from duemq.bench.command_far import app
from duemq.bench.harness.harness import Setup
from duemq.bench.plans import bench_steps, far, kafka
from duemq.bench.report import report
from duemq.bench.report.figures import Figure, ScenarioOutcome, ScenarioResult, Target, Trace, vital
from duemq.bench.report.plot import write_plot


def trace(seconds: float = 30.0) -> Trace:
    random = np.random.default_rng(5)
    at = np.sort(random.uniform(0, seconds * 1000, 2000))
    return Trace("lateness", "messages read/s", random.gamma(2.0, 2.0, 2000), at, np.ones(2000, np.int64))


def result(*lost: int) -> ScenarioResult:
    outcomes = [
        ScenarioOutcome(
            (Figure("late_p99", "lateness p99", 30.0 + 10 * run, "ms"), vital("lost", "accepted, never read", each)),
            ("the machine was <busy>",),
            trace(),
        ).against({"late_p99": Target(40)})
        for run, each in enumerate(lost)
    ]
    return ScenarioResult("steady", "steady: 5,000 msg/s", {"rate": 5000}, tuple(outcomes))


def test_speed_is_judged_by_the_median_and_faults_by_the_worst_run() -> None:
    three = result(0, 0, 1)
    late, lost = three.rows
    assert (late.low, late.middle, late.high, late.met) == (30.0, 40.0, 50.0, True)
    assert lost.met is False
    assert not three.sound
    assert result(0).sound


def test_a_figure_that_was_not_taken_meets_no_target() -> None:
    assert not Target(5).met(math.nan)
    assert not Target(5, at_least=True).met(math.nan)


def test_a_target_needs_its_figure() -> None:
    with pytest.raises(KeyError, match="late_p98"):
        ScenarioOutcome((Figure("late_p99", "", 1.0),)).against({"late_p98": Target(1)})


def test_series_keep_every_message() -> None:
    for seconds in (0.2, 30.0, 4000.0):
        series = trace(seconds).over_time()
        assert len(series.per_s) <= 121
        assert series.per_s.sum() * series.width_s == pytest.approx(2000)


def test_tables_name_misses() -> None:
    text = io.StringIO()
    console = Console(file=text, width=110)
    report.show(console, result(0, 3))
    report.summary(console, [result(0, 3), result(0)])
    shown = text.getvalue()
    assert "lowest" in shown and "≤ 40 ms" in shown and "MISSED" in shown and "all 1 counts of faults" in shown


def test_json_is_complete_and_valid_without_a_value(tmp_path: Path) -> None:
    odd = ScenarioResult("drain", "drain", {"count": 1}, (ScenarioOutcome((Figure("last_s", "last", math.nan, "s"),)),))
    report.write_json(tmp_path / "b.json", [result(0, 0), odd], report.machine(Setup(), "ext4"))
    written = orjson.loads((tmp_path / "b.json").read_bytes())
    steady, drain = written["scenarios"]
    assert steady["figures"]["late_p99"]["target"] == {"at_most": 40}
    assert sum(steady["runs"][0]["trace"]["histogram"]["counts"]) == 2000
    assert drain["figures"]["last_s"]["median"] is None
    assert written["machine"]["filesystem"] == "ext4"


def test_pictures_are_drawn(tmp_path: Path) -> None:
    where = report.machine(Setup(), "ext4")
    write_plot(tmp_path / "b.png", [result(0), result(0, 1)], where)
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    write_plot(tmp_path / "b.html", [result(0, 1)], where)
    page = (tmp_path / "b.html").read_text(encoding="utf-8")
    assert "&lt;busy&gt;" in page and "http-equiv" not in page and "<script" not in page
    ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])


@pytest.mark.parametrize("quick", [True, False])
def test_the_plans_fit_their_scenarios(quick: bool) -> None:
    on_kafka = [*kafka.everything(quick, 1), *kafka.everything(quick, 3)]
    steps = [*bench_steps.everything(quick), *far.everything(quick), *on_kafka]
    scenarios = bench_steps.SCENARIOS | bench_steps.ALONE
    assert {step.name for step in steps} == set(scenarios)
    for step in steps:
        wanted = scenarios[step.name].__code__
        names = wanted.co_varnames[1 : wanted.co_argcount + wanted.co_kwonlyargcount]
        assert set(step.parameters) <= set(names), step.title


@pytest.mark.parametrize(
    "name",
    [
        *"steady hot-second drain cancel-race accept cancel consume all".split(),
        *"pending load wheel import far".split(),
    ],
)
def test_each_command_has_the_common_options(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert shown.exit_code == 0
    for option in ("--url", "--json", "--plot", "--runs", "--by", "--payload-bytes", "--keep", "--set"):
        assert option in shown.output


def test_a_picture_needs_a_known_ending() -> None:
    refused = CliRunner().invoke(app, ["steady", "--plot", "b.gif"])
    assert refused.exit_code == 2
