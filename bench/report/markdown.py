"""Writes earlier figures (`--json`) as tables in Markdown, and puts the tables into a page."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from duemq.bench.report.growth import Scenario, short

_MARKED = re.compile(r"(<!-- bench: ([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
_UNITS = {"us": "µs"}


def read(paths: Iterable[Path]) -> list[Scenario]:
    """The scenarios in several documents. If several scenarios have the same title, the last one is used."""
    by_title: dict[str, Scenario] = {}
    for path in paths:
        for scenario in orjson.loads(path.read_bytes())["scenarios"]:
            by_title[scenario["title"]] = scenario
    return list(by_title.values())


def fill(page: str, scenarios: Sequence[Scenario], picture: str = "") -> str:
    """The page with new tables between its marks. If one of a mark's scenarios was not measured, the mark keeps its old
    tables.

    `picture`: the path, from the page, to the picture of the growing cost.
    """
    scenario_names = {scenario["name"] for scenario in scenarios}

    def filled(match: re.Match[str]) -> str:
        names = match[2].split()
        if not scenario_names.issuperset(names):
            return match[0]
        some = [scenario for scenario in scenarios if scenario["name"] in names]
        return f"{match[1]}\n{tables(some, picture)}\n{match[3]}"

    return _MARKED.sub(filled, page)


def tables(scenarios: Sequence[Scenario], picture: str = "") -> str:
    """One section per scenario, but only one section for all `pending` scenarios if they have different numbers of
    messages."""
    growing = [each for each in scenarios if each["name"] == "pending"]
    if len({each["parameters"]["count"] for each in growing}) < 2:
        growing = []
    single = [_section(each) for each in scenarios if each not in growing]
    return "\n".join(([_growing(growing, picture)] if growing else []) + single)


def _section(scenario: Scenario) -> str:
    figures = scenario["figures"].values()
    runs = len(scenario["runs"])
    names = ("value",) if runs == 1 else ("min", "median", "max")
    lines = [
        [_text(figure), *(_value(figure["median" if name == "value" else name]) for name in names), *judged(figure)]
        for figure in figures
    ]
    return f"### {title(scenario['title'])}\n\n{_table(['figure', *names, 'target', ''], lines)}{_notes(scenario)}"


def _growing(scenarios: Sequence[Scenario], picture: str) -> str:
    ordered = sorted(scenarios, key=lambda each: int(each["parameters"]["count"]))
    keys = dict.fromkeys(chain.from_iterable(each["figures"] for each in ordered))
    lines = []
    for key in keys:
        same = [each["figures"].get(key) for each in ordered]
        figures = [figure for figure in same if figure is not None]
        values = [_value(figure["median"]) if figure else "" for figure in same]
        met = [figure["met"] for figure in figures if figure["met"] is not None]
        target, _ = judged(figures[-1])
        verdict = "" if not met else "met" if all(met) else "**missed**"
        lines.append([_text(figures[-1]), *values, target, verdict])
    head = ["figure", *(short(each["parameters"]["count"]) for each in ordered), "target", ""]
    days = ordered[-1]["parameters"]["days"]
    runs = len(ordered[-1]["runs"])
    intro = "" if runs == 1 else f"Medians of {runs} runs.\n\n"
    shown = f"![What waiting messages cost, by their number]({picture})\n\n" if picture else ""
    return f"### Pending: messages over {days:.3g} days\n\n{intro}{shown}{_table(head, lines)}"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    above = f"| {' | '.join(head[:-1])} | |\n|{'---|' * len(head)}\n"
    return above + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def title(text: str) -> str:
    """The text with a capital at the beginning."""
    return text[:1].upper() + text[1:]


def _text(figure: Mapping[str, Any]) -> str:
    unit = unit_of(figure)
    return f"{figure['text']} ({unit})" if unit else str(figure["text"])


def unit_of(figure: Mapping[str, Any]) -> str:
    return str(_UNITS.get(figure["unit"], figure["unit"]))


def _value(value: float | None) -> str:
    return "-" if value is None else _number(value)


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.01 else f"{value:.2g}"


def judged(figure: Mapping[str, Any]) -> tuple[str, str]:
    """The target, and whether it was met; two empty texts if there is no target."""
    target = figure["target"]
    if target is None:
        return "", ""
    sign, limit = ("≥", target["at_least"]) if "at_least" in target else ("≤", target["at_most"])
    return f"{sign} {_number(limit)}", "met" if figure["met"] else "**missed**"


def _notes(scenario: Scenario) -> str:
    return "".join(f"\nNote: {note}.\n" for note in scenario["notes"])
