"""The alert rules: Prometheus takes them, they come when they should, and the page says what to do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.node.expressions import ALERTS, CONF, of_alerts, of_dashboard
from tests.unit.docs.test_links import anchors

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "operations.md"


def check(promtool: Path, *words: str) -> str:
    done = subprocess.run([promtool, *words], cwd=CONF / "prometheus", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_the_files(promtool: Path) -> None:
    assert f"SUCCESS: {len(of_alerts())} rules found" in check(promtool, "check", "rules", "alerts.yml")
    assert "SUCCESS" in check(promtool, "check", "config", "prometheus.yml")


@pytest.mark.heavy
def test_alerts_come_when_they_should(promtool: Path) -> None:
    assert "SUCCESS" in check(promtool, "test", "rules", "alerts_test.yml")
    tests = (CONF / "prometheus" / "alerts_test.yml").read_text()
    assert set(re.findall(r"^  - name: (Duemq\w+)$", tests, re.MULTILINE)) == of_alerts().keys(), "each is tested"


def test_prometheus_takes_the_expressions_of_the_dashboard(promtool: Path, tmp_path: Path) -> None:
    expressions = dict.fromkeys(of_dashboard())
    assert len(expressions) > 20
    rules = "".join(f"  - record: r{n}\n    expr: '{text}'\n" for n, text in enumerate(expressions))
    path = tmp_path / "rules.yml"
    path.write_text(f"groups:\n- name: dashboard\n  rules:\n{rules}")
    check(promtool, "check", "rules", str(path))


def test_the_page_has_an_entry_for_each_alert() -> None:
    entries = re.findall(r"^#### (Duemq\w+)$", PAGE.read_text(), re.MULTILINE)
    assert sorted(entries) == sorted(of_alerts())
    linked = re.findall(
        r"^ +annotations: \{.*runbook_url: '(\S+)/operate/operations\.md#(\w+)'\}$", ALERTS.read_text(), re.MULTILINE
    )
    assert [anchor for _, anchor in linked] == [name.lower() for name in of_alerts()]
    assert {anchor for _, anchor in linked} <= anchors(PAGE)
    (base,) = {base for base, _ in linked}
    assert f"sed -i 's|{base}|" in ALERTS.read_text()
