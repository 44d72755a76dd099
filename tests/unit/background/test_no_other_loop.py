"""No part of the product repeats its failures in a loop of its own: they have pauses, a line in the log and figures in
`duemq.background.loop`."""

from __future__ import annotations

import ast

import pytest

from tests.support.house.tree import ROOT, modules

pytestmark = pytest.mark.heavy

NO_SERVICE = {"bench", "dev", "pipeline"}  # tools, and jobs of Spark
ALLOWED = {
    "background/loop.py run": "it is that loop",
    "bus/kafka/produce/v2/producer.py start": "a take-over waits for it, which has a deadline",
    "bus/kafka/produce/v2/producer.py end_open": "a take-over waits for it: given up, the transaction would be aborted",
    "bus/kafka/produce/v2/sends.py _find_leaders": "a commit waits for it, and ends it",
    "bus/kafka/requests/wire.py retry": "a caller waits for it until a deadline",
    "cli/operate/lag.py _show": "a person looks at it, and is told each time",
    "client/http/aio/client.py tail": "a generator, which the caller ends; its pauses grow",
    "client/idempotency/attempts.py _insist": "a handler waits for it until a deadline",
    "client/idempotency/redis.py open": "a start waits for it until a deadline",
    "delay/node.py _run_shard": "the task of a shard, which is opened anew before each try; its pauses grow",
    "delay/shard/shard.py run": "the task of a shard, whose pauses depend on the error, and grow",
}
"""By file and function, with the reason."""


def _called(call: ast.expr) -> str:
    function = call.func if isinstance(call, ast.Call) else call
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _waits(node: ast.AST) -> bool:
    if isinstance(node, ast.Await):
        return any(word in _called(node.value) for word in ("sleep", "wait", "pause"))
    return isinstance(node, ast.AsyncWith) and any(_called(item.context_expr) == "timeout" for item in node.items)


def loops_with_failures(source: str) -> list[str]:
    """Functions in which a `while` both catches something and waits."""
    return [
        function.name
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.AsyncFunctionDef)
        for loop in ast.walk(function)
        if isinstance(loop, ast.While)
        and any(_waits(node) for node in ast.walk(loop))
        and any(isinstance(node, ast.ExceptHandler) for node in ast.walk(loop))
    ]


def test_whatever_is_tried_again_is_so_by_the_supervised_loop() -> None:
    found = {
        f"{path.relative_to(ROOT)} {name}"
        for path in modules()
        if path.relative_to(ROOT).parts[0] not in NO_SERVICE
        for name in loops_with_failures(path.read_text())
    }
    assert found == ALLOWED.keys(), "use duemq.background.loop, or say here why not; and drop what is gone"


def test_such_a_loop_is_found() -> None:
    body = "async def f():\n while True:\n  try:\n   await work()\n  except OSError:\n   pass\n  await {}\n"
    assert loops_with_failures(body.format("asyncio.sleep(1)")) == ["f"]
    assert loops_with_failures(body.format("stop.wait()")) == ["f"]
    assert loops_with_failures(body.format("other_work()")) == []
