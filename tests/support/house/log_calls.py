"""The lines that the product logs, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
_LEVELS = {"error": "error", "exception": "error", "critical": "critical"}
_NOT_SERVED = frozenset(("bench", "dev"))  # run by hand


class LogCall(NamedTuple):
    """`action`: as the log has it; empty: none."""

    level: str
    action: str
    place: str


def urgent_log_calls() -> Iterator[LogCall]:
    """Those with the level error or critical, or that may have it."""
    for package in sorted(path.parent for path in ROOT.glob("*/__init__.py")):
        if package.name in _NOT_SERVED:
            continue
        for path in sorted(package.rglob("*.py")):
            yield from _in_file(path)


def _in_file(path: Path) -> Iterator[LogCall]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        of = node.func.value
        if not isinstance(of, ast.Name) or of.id != "log":
            continue
        text = ast.unparse(node.args[0]) if node.func.attr == "log" else ""
        level = _LEVELS.get(node.func.attr) or ("error" if "logging.ERROR" in text else "")
        if level:
            yield LogCall(level, _action(node), f"{path.relative_to(ROOT)}:{node.lineno}")


def _action(call: ast.Call) -> str:
    for keyword in call.keywords:
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict):
            for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "action" and isinstance(value, ast.Constant):
                    return str(value.value)
    return ""
