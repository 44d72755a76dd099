"""The command line against a real server: what it prints for programs, and the exit codes that scripts go by."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.server import Server, run

pytestmark = pytest.mark.slow  # starts a process for each command

Command = Callable[..., tuple[int, Any]]


@pytest.fixture
def duemq(shared_server: Server) -> Command:
    """Runs a command with `--json`; gives its exit code and what it printed: a document, or a list of them."""

    def command(*arguments: object, stdin: str = "") -> tuple[int, Any]:
        ended = run(*arguments, "--json", stdin=stdin, url=shared_server.url)
        documents = [json.loads(line) for line in ended.stdout.splitlines()]
        return ended.returncode, documents[0] if len(documents) == 1 else documents

    return command


def test_the_life_of_a_message(duemq: Command) -> None:
    code, sent = duemq("send", "cli.life", "hello", "--after", "1h", "--key", "k", "--label", "eu", "--header", "a=b")
    assert (code, sent["status"]) == (0, "scheduled")
    id_ = sent["id"]
    code, found = duemq("get", id_)
    assert code == 0
    shown = [found[name] for name in ("status", "payload", "key", "labels", "headers")]
    assert shown == ["scheduled", "hello", "k", ["eu"], {"a": "b"}]
    code, listed = duemq("ls", "--topic", "cli.life")
    assert (code, listed["id"]) == (0, id_)
    code, moved = duemq("reschedule", id_, "--at", "2031-01-01T08:00:00+01:00")
    assert (code, moved["deliver_at"]) == (0, "2031-01-01T07:00:00.000Z")
    assert duemq("deliver-now", id_)[0] == 0
    code, record = duemq("tail", "cli.life", "--from-start", "--max", "1")
    assert (code, record["payload"], record["headers"]["duemq-id"]) == (0, "hello", id_)

    for late in (("cancel", id_), ("reschedule", id_, "--after", "1s"), ("deliver-now", id_)):
        code, refused = duemq(*late)
        assert (code, refused["error"]["code"]) == (3, "already_delivered"), late


def test_null_is_told_apart_from_empty(duemq: Command, shared_server: Server) -> None:
    topic = "cli.null"
    code, sent = duemq("send", topic, "--null", "--after", "1h")
    assert code == 0
    assert duemq("get", sent["id"])[1]["payload"] is None
    assert "<null>" in run("get", sent["id"], url=shared_server.url).stdout
    assert run("get", sent["id"], "--payload", url=shared_server.url).stdout == ""
    assert duemq("send", topic, "")[0] == duemq("deliver-now", sent["id"])[0] == 0
    records = duemq("tail", topic, "--from-start", "--max", "2")[1]
    assert {record["headers"]["duemq-id"] == sent["id"]: record["payload"] for record in records} == {
        True: None, False: "",
    }  # fmt: skip
    assert duemq("send", topic, "text", "--null")[0] == 2


def test_cancels_tell_what_became_of_each(duemq: Command) -> None:
    pending = [duemq("send", "cli.cancel", "x", "--after", "1h")[1]["id"] for _ in range(3)]
    gone = duemq("send", "cli.cancel", "x")[1]["id"]
    assert duemq("cancel", pending[0])[0] == 0
    assert duemq("cancel", pending[0])[0] == 0
    assert duemq("deliver-now", pending[0])[0] == 6
    assert duemq("cancel", gone)[0] == 3
    assert duemq("cancel", "no-such-message")[0] == 4
    assert duemq("get", "no-such-message")[0] == 4
    code, report = duemq("cancel", "-", stdin=f"{pending[1]}\n{gone}\nno-such-message\n")
    assert code == 4
    assert [result["status"] for result in report["results"]] == ["cancelled", "already_delivered", "unknown"]
    code, report = duemq("cancel", "--topic", "cli.cancel", "--yes")
    assert (code, report["counts"]["cancelled"]) == (0, 1)
    assert duemq("ls", "--topic", "cli.cancel") == (0, [])


def test_refused_and_unreachable_are_told_apart(duemq: Command) -> None:
    code, refused = duemq("send", "cli.bad", "x", "--after", "100y")
    assert (code, refused["error"]["code"], refused["error"]["field"]) == (7, "delay_too_long", "deliver_after")
    assert run("send", "cli.bad", "x", "--no-such-option").returncode == 2
    unreachable = run("ls", url="http://127.0.0.1:1")
    assert unreachable.returncode == 8
    assert "duemq serve" in unreachable.stderr


def test_a_consumer_goes_on_where_it_stopped(duemq: Command) -> None:
    for payload in ("one", "two", "three"):
        assert duemq("send", "cli.tail", payload)[0] == 0
    code, first = duemq("tail", "cli.tail", "--consumer", "c", "--max", "2")
    assert (code, [record["payload"] for record in first]) == (0, ["one", "two"])
    code, last = duemq("tail", "cli.tail", "--consumer", "c", "--max", "1")
    assert (code, last["payload"]) == (0, "three")
