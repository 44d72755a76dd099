"""The commands against a scripted server: what is sent, what is printed, and the exit code."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import duemq.client
from duemq.cli.app import _COMMANDS, command_line
from duemq.cli.command_group import now_spelled
from duemq.client import Admin

STATE = {"id": "m1", "status": "scheduled", "topic": "orders", "deliver_at": "…", "deliver_at_ms": 90_000, "attempt": 0}
CANCELLED = {"id": "m1", "status": "cancelled", "cancelled_at": "…", "cancelled_at_ms": 5}


def problem(status: int, code: str, **extra: Any) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "detail": f"it is {code}", "status": status, **extra})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Shell:
    """Runs `duemq`, whose client meets the scripted answers."""

    def __init__(self) -> None:
        self.answers: list[httpx.Response | Exception] = []
        self.requests: list[httpx.Request] = []
        self.code, self.out, self.err = -1, "", ""

    def __call__(self, *words: str, stdin: bytes | str = b"") -> Shell:
        only = now_spelled(words[0]) if words else ""
        result = CliRunner().invoke(
            command_line(only if only in _COMMANDS else None), words, input=stdin, catch_exceptions=False
        )
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr
        return self

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def body(self) -> Any:
        return orjson.loads(self.requests[-1].content)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    shell = Shell()
    monkeypatch.setattr(duemq.client, "Admin", partial(Admin, transport=httpx.MockTransport(shell.answer)))
    yield shell
    assert shell.answers == []


def test_send_says_everything_it_was_told(shell: Shell) -> None:
    shell.answers = [httpx.Response(201, json=STATE)]
    shell(
        "send",
        "orders",
        "hi",
        "--after",
        "90s",
        "--key",
        "k",
        "--header",
        "a=b=c",
        "--label",
        "x",
        "--label",
        "y",
        "-q",
    )
    assert (shell.code, shell.out) == (0, "m1\n")
    assert shell.body() == {
        "topic": "orders",
        "payload": "hi",
        "deliver_after": "90s",
        "key": "k",
        "headers": {"a": "b=c"},
        "labels": ["x", "y"],
    }


def test_headers_are_sent_and_shown_as_they_are(shell: Shell) -> None:
    listed = [["a", "1"], ["a", "x=y"], ["b", {"base64": "/wA="}]]
    shell.answers = [httpx.Response(201, json=STATE)]
    shell("send", "orders", "hi", "--header", "a=1", "--header-base64", "b=/wA=", "--header", "a=x=y")
    assert shell.body()["header_list"] == listed
    assert shell("send", "orders", "hi", "--header-base64", "b=/w").code == 2
    assert shell("send", "orders", "hi", "--key", "\udcff").code == 7
    shown = {"headers": {"a": "x=y", "b": "\\xff\x00", "n": None}, "header_list": [*listed, ["n", None]]}
    shell.answers = [httpx.Response(200, json=STATE | shown), httpx.Response(200, json={"id": "0:1"} | shown)]
    for words in (("get", "m1"), ("dlq", "show", "0:1", "--group", "g")):
        lines = shell(*words).out.splitlines()
        assert lines[-5:] == ["headers", "  a  1", "  a  x=y", "  b  <base64 /wA=>", "  n  <null>"]


def test_send_takes_bytes_from_stdin_and_files(shell: Shell, tmp_path: Path) -> None:
    shell.answers = [httpx.Response(201, json=STATE) for _ in range(2)]
    assert shell("send", "orders", "--at", "1924992000000", stdin=b"\xff\n").code == 0
    assert shell.body() == {"topic": "orders", "payload_base64": "/wo=", "deliver_at": 1_924_992_000_000}
    (tmp_path / "payload").write_bytes(b"from a file\n")
    assert shell("send", "orders", "--file", str(tmp_path / "payload"), "--json").code == 0
    assert shell.body() == {"topic": "orders", "payload": "from a file\n"}
    assert orjson.loads(shell.out) == STATE


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (httpx.Response(200, json=CANCELLED), 0),
        (httpx.Response(500, text="?"), 1),
        (problem(409, "already_delivered", delivered_at_ms=1), 3),
        (problem(404, "unknown_message"), 4),
        (httpx.Response(202, json={"status": "pending"}), 5),
        (problem(409, "already_cancelled"), 6),
        (problem(400, "bad_field", field="id"), 7),
        (problem(503, "unavailable"), 8),
        (httpx.ConnectError("refused"), 8),
    ],
)
def test_exit_codes_tell_the_fates_apart(shell: Shell, answer: httpx.Response | Exception, code: int) -> None:
    shell.answers = [answer]
    shell("cancel", "m1", "--wait", "0", "--json")
    assert shell.code == code
    printed = orjson.loads(shell.out)
    if code:
        assert shell.err.startswith("duemq: ") and shell.err.count("\n") == 1
        assert printed["error"]["detail"] in shell.err
    else:
        assert printed == CANCELLED


def test_of_many_the_highest_code_wins(shell: Shell) -> None:
    statuses = {"a": "cancelled", "b 2": "unknown", "c": "already_delivered"}
    results = [{"id": name, "status": status} for name, status in statuses.items()]
    shell.answers = [httpx.Response(200, json={"results": results, "counts": {"cancelled": 1, "unknown": 1}})]
    shell("cancel", "-", stdin="a\nb 2\r\n\nc\n")
    assert shell.body() == {"ids": ["a", "b 2", "c"]}, "a name may have a space: there is one a line"
    assert shell.out == "a\tcancelled\nb 2\tunknown\nc\talready_delivered\n"
    assert shell.code == 4


def test_cancel_by_filter_needs_a_yes(shell: Shell) -> None:
    assert shell("cancel", "--topic", "orders").code == 2
    assert shell("cancel").code == 2
    assert shell("cancel", "m1", "--topic", "orders").code == 2
    shell.answers = [httpx.Response(200, json={"results": [], "counts": {"cancelled": 0}})]
    assert shell("cancel", "--topic", "orders", "--due-to", "1924992000000", "--yes").code == 0
    assert shell.body() == {"filter": {"topic": "orders", "due_to": 1_924_992_000_000}}


def test_cancel_by_filter_of_more_than_are_listed_says_so(shell: Shell) -> None:
    answer = {"results": [{"id": "m1", "status": "cancelled"}], "counts": {"cancelled": 1, "already_delivered": 2}}
    shell.answers = [httpx.Response(200, json=answer | {"truncated": True}) for _ in range(2)]
    assert shell("cancel", "--topic", "orders", "--yes").code == 3  # of one that is not listed
    assert "Listed are the first 1 of 3." in shell.err
    assert orjson.loads(shell("cancel", "--topic", "orders", "--yes", "--json").out)["truncated"]


def test_ls_tells_that_there_is_more(shell: Shell) -> None:
    page = {"messages": [STATE | {"key": "a\x1b[2J", "labels": ["x"]}, STATE], "cursor": "c"}
    shell.answers = [httpx.Response(200, json=page) for _ in range(2)]
    shell("ls", "--topic", "orders", "-n", "1")
    assert shell.out == "m1\tscheduled\torders\t1970-01-01T00:01:30.000Z\ta\\x1b[2J\tx\n"
    assert "more than 1" in shell.err
    shell("ls", "-n", "1", "--json")
    assert orjson.loads(shell.out)["id"] == "m1"


def test_get_tells_what_was_changed_and_what_failed_in_order(shell: Shell) -> None:
    moved = {"change": "moved", "at_ms": 1_000, "from_ms": 5_000, "to_ms": 9_000, "by": "key:shop"}
    changes = [moved, {"change": "delivered_now", "at_ms": 3_000, "from_ms": 9_000, "to_ms": 3_000}]
    attempts = [{"at_ms": 2_000, "reason": "unknown_topic"}]
    shell.answers = [
        httpx.Response(200, json=STATE | {"changes": changes, "attempts": attempts, "changes_left_out": 4})
    ]
    assert shell("get", "m1").out.splitlines()[-4:] == [
        "1970-01-01T00:00:01.000Z  moved from 1970-01-01T00:00:05.000Z to 1970-01-01T00:00:09.000Z by key:shop",
        "1970-01-01T00:00:02.000Z  unknown_topic",
        "1970-01-01T00:00:03.000Z  delivered now from 1970-01-01T00:00:09.000Z to 1970-01-01T00:00:03.000Z",
        "4 changes after the first one are no longer recorded",
    ]


def test_get_shows_or_copies_the_payload(shell: Shell) -> None:
    shell.answers = [httpx.Response(200, json=STATE | {"payload_base64": "/w=="}) for _ in range(2)]
    assert "<1 bytes>" in shell("get", "m1").out
    result = CliRunner().invoke(command_line(), ["get", "m1", "--payload"])
    assert result.stdout_bytes == b"\xff"


def test_move_and_deliver_now(shell: Shell) -> None:
    shell.answers = [httpx.Response(200, json=STATE), problem(409, "already_delivered")]
    assert shell("reschedule", "m1", "--level", "3").code == 0
    assert shell.body() == {"delay_level": 3}
    assert shell("deliver-now", "m1").code == 3


def test_tail_remembers_the_consumers_place_after_printing(shell: Shell) -> None:
    headers = {"duemq-id": "m1", "duemq-due": "1000"}
    record = {"partition": 0, "offset": 0, "timestamp_ms": 1004, "key": "k", "payload": "p\tq", "headers": headers}
    event = b"id: c%d\ndata: " + orjson.dumps(record) + b"\n\n"
    stream = httpx.Response(200, content=event % 1 + event % 2)
    there = httpx.Response(200, json={"cursor": "c0", "trouble": None, "partitions": 1})
    shell.answers = [there, stream, httpx.Response(204), httpx.Response(204)]
    shell("tail", "orders", "--consumer", "c", "--max", "2")
    assert shell.out == "1970-01-01T00:00:01.000Z\t+4 ms\tk\tp\\tq\n" * 2
    assert [request.method for request in shell.requests] == ["GET", "GET", "PUT", "PUT"]
    assert shell.requests[1].url.params["consumer"] == "c"
    assert shell.body() == {"cursor": "c2"}


def test_tail_begins_with_what_is_new(shell: Shell) -> None:
    event = b'id: c9\ndata: {"partition":0,"offset":0,"timestamp_ms":1,"payload":"p"}\n\n'
    shell.answers = [
        httpx.Response(200, json={"topic": "orders", "cursor": "c8"}),
        httpx.Response(200, content=event),
    ]
    shell("tail", "orders", "--max", "1", "--json")
    assert shell.requests[-1].url.params["after"] == "c8"
    assert orjson.loads(shell.out)["payload"] == "p"


@pytest.mark.parametrize("more", [(), ("--consumer", "c"), ("--from-start",)])
def test_tail_says_that_a_topic_has_no_records_yet(shell: Shell, more: tuple[str, ...]) -> None:
    event = b'id: c1\ndata: {"partition":0,"offset":0,"timestamp_ms":1,"payload":"p"}\n\n'
    shell.answers = [problem(404, "unknown_topic"), httpx.Response(200, content=event), httpx.Response(204)]
    del shell.answers[3 - ("--consumer" not in more) :]
    shell("tail", "nosuchtopic", "--max", "1", *more)
    assert (shell.code, shell.err) == (0, "waiting for topic nosuchtopic, which has no records yet\n")


def test_an_error_of_the_server_names_the_options(shell: Shell) -> None:
    detail = "deliver_at names a zone that is unknown here, and expires_at too; due_from, name_prefix"
    shell.answers = [httpx.Response(400, json={"code": "bad_time", "detail": detail, "field": "deliver_at"})]
    shell("send", "orders", "hi", "--at", "2031-01-01 08:00", "--zone", "Nowhere/Land", "--json")
    assert "--at names a zone that is unknown here, and --expires too; --due-from, --name-prefix" in shell.err
    assert (shell.code, orjson.loads(shell.out)["error"]["detail"]) == (7, detail), "programs know the fields"


def test_ids_can_be_copied_at_80_columns(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ids = [f"AAABohr-LdcAAAAAAAAAAAAAzGSo19T{letter}" for letter in "UV"]
    key = "customer-4711-of-the-shop"
    more = {"topic": "order-timeouts-of-the-shop", "key": key, "deliver_at_ms": 1924992000123}
    pages = [{"messages": [STATE | more | {"id": one} for one in ids], "cursor": None}]
    for command in (("ls",), ("find", "--key", "k"), ("dlq", "ls")):
        for wide in (False, True):
            out = Terminal()
            monkeypatch.setattr("sys.stdout", out)
            shell.answers = [httpx.Response(200, json=page) for page in pages]
            with pytest.raises(SystemExit):
                get_command(command_line(command[0]))([*command, *(["--wide"] if wide else [])])
            lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
            assert all(one in line for one, line in zip(ids, lines[1:], strict=True)), lines
            assert wide or max(map(len, lines)) <= 80, lines
            assert ("2031-01-01T00:00:00.123Z" if wide else "2031-01-01T00:00:00Z ") in lines[1]
            assert (key in lines[1]) == wide


def test_topics_and_dead_letters(shell: Shell) -> None:
    figures = {"topic": "orders", "partitions": 1, "lateness": {"p99_ms": 3}}
    shell.answers = [
        httpx.Response(200, json={"topics": [figures]}),
        httpx.Response(200, json=figures),
        httpx.Response(200, json={"messages": [STATE | {"status": "dead", "reason": "expired"}], "cursor": None}),
        problem(404, "unknown_message"),
        httpx.Response(200, json=STATE),
    ]
    assert shell("topic", "ls").out == "orders\t1\n"
    assert "p99_ms  3" in shell("topic", "show", "orders").out
    assert shell("dlq", "ls").out.endswith("\texpired\n")
    shell("dlq", "redrive", "gone", "m1")
    assert shell.code == 4 and "m1" in shell.out


@pytest.mark.heavy
def test_the_command_itself(shell: Shell) -> None:
    assert shell("--version").out == f"duemq {duemq.__version__}\n"
    assert "already delivered" in shell("--help").out
    assert shell("send").code == 2


@pytest.mark.heavy
def test_the_command_starts_without_what_only_servers_need() -> None:
    script = "import sys, duemq.cli.app; duemq.cli.app.command_line(); print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout.split()
    )
    assert not loaded & {"httpx", "numpy", "rocksdict", "fastapi", "uvicorn", "asyncio", "aiohttp", "matplotlib"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("send", "t", "x", "--after", "5"), ("send", "t", "x", "--after", "0.5"), ("reschedule", "m1", "--after", "60"),
        ("send", "t", "x", "--expires-after", "60"), ("jobs", "begin", "move", "--topic", "t", "--shift", "-30"),
        ("jobs", "begin", "move", "--topic", "t", "--after", "5"), ("keys", "rotate", "k", "--overlap", "60"),
        ("destination", "add", "d", "http://x", "--timeout", "30"),
    ],
)  # fmt: skip
def test_a_delay_without_a_unit_is_refused(shell: Shell, arguments: tuple[str, ...]) -> None:
    assert shell(*arguments).code == 2
    assert "has no unit" in " ".join(shell.err.split())


def test_times_go_to_the_server_with_their_zone(shell: Shell) -> None:
    shell.answers = [httpx.Response(201, json=STATE), httpx.Response(200, json=STATE)]
    local = ("--at", "2031-01-01 08:00", "--zone", "Europe/Berlin")
    assert shell("send", "t", "x", *local, "--expires-after", "2d").code == 0
    said = {"deliver_at": "2031-01-01 08:00", "zone": "Europe/Berlin"}
    assert shell.body() == {"topic": "t", "payload": "x", "expires_after": "2d"} | said
    assert shell("reschedule", "m1", *local).code == 0
    assert shell.body() == said


@pytest.mark.parametrize("more", [(), ("--after", "1h", "--level", "3"), ("--zone", "UTC")])
def test_a_message_is_moved_to_one_time(shell: Shell, more: tuple[str, ...]) -> None:
    assert shell("reschedule", "m1", *more).code == 2
