"""What the alert rules and the dashboard ask Prometheus for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

CONF = Path(__file__).parents[3] / "conf"
ALERTS = CONF / "prometheus" / "alerts.yml"
DASHBOARD = CONF / "grafana" / "duemq.json"
# Labels that Prometheus adds, and variables of the dashboard.
_OF_PROMETHEUS = frozenset(("job", "instance"))
_VARIABLES = {"$__rate_interval": "5m", "$job": ".*", "$instance": ".*"}
_SELECTOR = re.compile(r"\b((?:duemq|process)_\w+)(\{[^}]*\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!=|!~|=)")
_GROUPING = re.compile(r"\bby\s*\(([^)]*)\)")


def of_alerts() -> dict[str, str]:
    """The expression of each alert, by its name."""
    names = re.findall(r"^ +- alert: (\w+)\n +expr: '?(.+?)'?$", ALERTS.read_text(), re.MULTILINE)
    return dict(names)


def of_dashboard() -> Iterator[str]:
    """The expressions of the panels and variables, as Prometheus gets them."""
    document = json.loads(DASHBOARD.read_text())
    texts = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            texts.append(re.findall(r"label_values\((.*), \w+\)", variable["query"]["query"])[0])
    for text in texts:
        for variable, value in _VARIABLES.items():
            text = text.replace(variable, value)
        assert "$" not in text, text
        yield text


def asked_for(expression: str) -> dict[str, set[str]]:
    """The series that an expression names, each with the labels that it uses, by grouping, too."""
    grouped = {label.strip() for labels in _GROUPING.findall(expression) for label in labels.split(",")}
    found: dict[str, set[str]] = {}
    for name, matchers in _SELECTOR.findall(expression):
        found.setdefault(name, set()).update(_MATCHER.findall(matchers), grouped)
    return {name: labels - _OF_PROMETHEUS for name, labels in found.items()}
