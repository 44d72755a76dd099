"""`duemq node ls|drain|resume` and `duemq cluster` against a scripted server."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from typing import Any

import httpx
import orjson
import pytest
import typer
from typer.testing import CliRunner

import duemq.client
from duemq.cli.app import command_line
from duemq.cli.operate import cluster_status, nodes
from duemq.cli.output import begin_round
from duemq.client import Admin
from tests.unit.cli.test_cli import Terminal

NODES: list[dict[str, Any]] = [
    {"name": "a", "state": "ready", "reason": "", "rack": "r1", "master_of": [0, 1, 2, 4], "lag": {"0": 0}},
    {"name": "b", "state": "out", "reason": "diverged", "rack": "", "master_of": [], "lag": {"0": 7, "1": 2}},
]
SHARDS = [
    {
        "shard": 0, "master": "a", "entry": 5, "entry_age_ms": 1500, "applied": 9, "cursor_age_ms": 7_200_000,
        "pending": 3,
    },
    {"shard": 1, "master": None},
]  # fmt: skip
CLUSTER = {"cluster": "c", "nodes": NODES, "shards": SHARDS}
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def answers() -> list[Any]:
    """What the server answers, one after the other: a status, or a cluster."""
    return []


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, answers: list[Any]) -> Run:
    app = typer.Typer()
    app.add_typer(nodes.app, name="node")
    app.command()(cluster_status.cluster)

    def answer(request: httpx.Request) -> httpx.Response:
        found = answers.pop(0)
        if isinstance(found, int):
            return httpx.Response(found, json={"code": "unknown_node", "detail": "there is no node x", "status": found})
        return httpx.Response(200, json=found)

    monkeypatch.setattr(duemq.client, "Admin", partial(Admin, transport=httpx.MockTransport(answer)))
    monkeypatch.setattr(nodes, "_LOOK_S", 0)

    def invoke(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        return result.exit_code, result.stdout

    return invoke


def test_nodes_are_listed_with_what_they_are_master_of(run: Run, answers: list[Any]) -> None:
    answers += [CLUSTER, CLUSTER]
    assert run("node", "ls") == (0, "a\tready\t0-2, 4\t0\tr1\t\nb\tout\t\t7\t\tdiverged\n")
    assert orjson.loads(run("node", "ls", "--json")[1]) == {"nodes": NODES}


def test_the_cluster_is_shown_by_shard(run: Run, answers: list[Any]) -> None:
    answers += [CLUSTER, CLUSTER]
    code, out = run("cluster")
    assert code == 0
    assert out.splitlines()[:2] == ["0\ta\t3\t5\t1.5s\t2h\t7", "1\t-\t-\t-\t-\t-\t2"]
    assert orjson.loads(run("cluster", "--json")[1]) == CLUSTER


def test_a_drain_waits_until_nothing_is_left(run: Run, answers: list[Any]) -> None:
    drained = {**CLUSTER, "nodes": [{**NODES[0], "master_of": []}]}
    answers += [{"name": "a", "draining": True}, CLUSTER, CLUSTER, drained]
    assert run("node", "drain", "a", "--wait") == (0, "a is drained: it is no longer a master\n")
    answers += [{"name": "a", "draining": True}, CLUSTER]
    code, out = run("node", "drain", "a", "--wait", "--within", "0", "--json")
    assert (code, orjson.loads(out)["master_of"]) == (5, [0, 1, 2, 4])
    answers += [{"name": "a", "draining": False}, 404]
    assert run("node", "resume", "a") == (0, "a takes shards again\n")
    assert run("node", "drain", "x")[0] == 4


def test_shards_are_listed_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=CLUSTER))
    monkeypatch.setattr(duemq.client, "Admin", partial(Admin, transport=transport))
    result = CliRunner().invoke(command_line("shard"), ["shard", "ls"])
    assert result.stdout.splitlines() == ["0\ta\t3\t5\t1.5s\t2h\t7", "1\t-\t-\t-\t-\t-\t2"]


def test_a_watch_clears_a_terminal_and_tells_a_pipe_the_time(run: Run, answers: list[Any]) -> None:
    answers += [CLUSTER, 404]
    _, out = run("cluster", "--watch")
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z\n0\ta\t", out)
    terminal = Terminal()
    with redirect_stdout(terminal):
        begin_round()
    assert terminal.getvalue() == "\x1b[2J\x1b[H"
