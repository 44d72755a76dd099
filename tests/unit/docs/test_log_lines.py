"""A line with the level error or critical is one for an operator: docs/operate/operations.md says what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.house.log_calls import urgent_log_calls

PAGE = (Path(__file__).parents[3] / "docs" / "operate" / "operations.md").read_text()


@pytest.mark.heavy
def test_each_urgent_log_line_has_a_row_that_says_what_to_do() -> None:
    section = PAGE.partition("\n## Logs\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*`) \| (critical|error|critical, error) \| (.+) \|$", section, re.MULTILINE)
    levels = {action: levels for actions, levels, _ in rows for action in re.findall(r"`([^`]+)`", actions)}
    calls = list(urgent_log_calls())
    assert len(calls) > 30
    for call in calls:
        assert call.action, f"{call.place} has no action"
        assert call.level in levels.get(call.action, ""), f"{call.place}: no row says what to do at {call.action!r}"
    variable = {"foreign"}  # its level is a variable
    assert levels.keys() == {call.action for call in calls} | variable, "a row of no line"
