"""Every asyncio task of the product has a name: a dump of a process that hangs says what each of them does."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = [path for path in (ROOT / "src" / "duemq").iterdir() if path.is_symlink() and path.name != "bench"]


def nameless_tasks(source: str) -> list[int]:
    """Lines with `create_task(...)` without `name=`, or with `ensure_future`, which takes none."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = {id(call) for call in calls if any(word.arg in ("name", None) for word in call.keywords)}
    functions = [(call, call.func.attr) for call in calls if isinstance(call.func, ast.Attribute)]
    return [
        call.lineno
        for call, function in functions
        if function == "ensure_future" or (function == "create_task" and id(call) not in named)
    ]


def test_every_task_has_a_name() -> None:
    files = [path for folder in FOLDERS for path in folder.resolve().rglob("*.py")]
    found = {str(path.relative_to(ROOT)): nameless_tasks(path.read_text()) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_a_task_without_a_name_is_found() -> None:
    assert nameless_tasks("asyncio.create_task(f())\ngroup.create_task(f(), name='f')\nasyncio.ensure_future(f())") == [
        1,
        3,
    ]
