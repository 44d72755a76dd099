"""The page of metrics, made of the calls that declare them: each name with its labels and the help of `/metrics`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from tests.support.house.tree import ROOT, modules

_PREFIX: Final = "duemq_"
_SHOWN_BY: Final = {
    "client/consumer": "Consumers of the SDK",
    "client/lag": "`duemq lag --listen`",
    "relay": "Relays",
    "delay": "Nodes, `duemq serve`",
    "proxy": "Proxies",
}
"""The first folder that fits; metrics of all others are shown by every server."""
EVERY: Final = "Every server"


class Metric(NamedTuple):
    name: str
    labels: tuple[str, ...]
    text: str
    shown_by: str


def metrics() -> list[Metric]:
    """Of all processes, by name."""
    found = dict[str, Metric]()
    for path in modules():
        place = str(path.parent.relative_to(ROOT))
        if place.startswith(("tests", "bench", "dev", "pipeline")):
            continue
        shown_by = next((title for folder, title in _SHOWN_BY.items() if place.startswith(folder)), EVERY)
        found |= {one.name: one for one in _in_module(ast.parse(path.read_text()), shown_by)}
    return sorted(found.values())


def _constants(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def _words(node: ast.expr, constants: dict[str, ast.expr]) -> list[str]:
    """The texts of a constant or of a sequence of constants; none of anything else."""
    if isinstance(node, ast.Name) and node.id in constants:
        return _words(constants[node.id], constants)
    if isinstance(node, ast.Starred):
        return _words(node.value, constants)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.List | ast.Tuple):
        return [word for one in node.elts for word in _words(one, constants)]
    return []


def _in_module(module: ast.Module, shown_by: str) -> Iterator[Metric]:
    constants = dict(_constants(module))
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            values, labels = node.args, [key.value for key in node.keywords if key.arg in ("labels", "labelnames")]
            kind = getattr(node.func, "id", "")
        elif isinstance(node, ast.Tuple):
            values, labels, kind = node.elts, [], ""
        else:
            continue
        for at, (first, second) in enumerate(pairwise(values)):
            name, text = _words(first, constants), _words(second, constants)
            if not name or not text or not name[0].startswith(_PREFIX) or " " not in text[0]:
                continue
            more = labels or [one for one in values[at + 2 :] if isinstance(one, ast.List | ast.Tuple)]
            told = name[0] + "_total" if kind.startswith("Counter") and not name[0].endswith("_total") else name[0]
            shown = tuple(word for one in more for word in _words(one, constants))
            yield Metric(told, shown, text[0].replace("*", r"\*"), shown_by)


def metrics_page() -> str:
    parts = [
        "# Metrics",
        "Made of the help texts of `/metrics`. What to watch: [running duemq](../operate/operations.md#metrics).",
    ]
    known = metrics()
    for title in (EVERY, *dict.fromkeys(_SHOWN_BY.values())):
        rows = [one for one in known if one.shown_by == title]
        table = [f"| `{one.name}` | {', '.join(f'`{label}`' for label in one.labels)} | {one.text} |" for one in rows]
        if table:
            parts += [f"## {title}", "\n".join(["| metric | labels | meaning |", "|---|---|---|", *table])]
    return "\n\n".join(parts) + "\n"
