"""`duemq destination` against a scripted server: what is sent, what is printed, and the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from duemq.model.timing import format_ms
from tests.unit.cli.test_cli import Shell, problem, shell

__all__ = ["shell"]  # the fixture

SHOP: dict[str, Any] = {
    "name": "shop", "url": "https://shop.example.com", "system": "http", "state": "active", "topics": ["orders"],
    "topic": "destination.shop", "group": "destination.shop", "rate": 5, "concurrency": 0, "timeout": 10_000,
    "ordered": False, "retry": {"kind": "levels"}, "options": {"method": "POST"}, "paused": False, "disabled": "",
    "credentials": ["password", "username"], "figures": None,
}  # fmt: skip


def ok(document: dict[str, Any], status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=document)


def test_add_says_what_it_was_told_and_nothing_else(shell: Shell) -> None:
    shell.answers = [ok(SHOP, 201), ok(SHOP, 201)]
    shell("destination", "add", "shop", "https://shop.example.com", "--topic", "orders", "--topic", "bills")
    assert shell.body() == {"name": "shop", "url": "https://shop.example.com", "topics": ["orders", "bills"]}
    assert shell.code == 0
    assert "messages delivered to destination.shop, orders go to https://shop.example.com" in shell.out
    shell(
        "destination", "add", "shop", "https://shop.example.com", "--rate", "0", "--concurrency", "3",
        "--timeout", "30s", "--ordered", "--retry", "kind=delays",
        "--retry", 'delays=["1s", 5]', "--option", "method=PUT", "--start",
        "first", "--paused", "--replace", "--json",
    )  # fmt: skip
    assert orjson.loads(shell.out) == SHOP
    assert shell.body() == {
        "name": "shop", "url": "https://shop.example.com", "rate": 0, "concurrency": 3, "timeout": "30s",
        "ordered": True, "retry": {"kind": "delays", "delays": ["1s", 5]}, "options": {"method": "PUT"},
        "start": "first", "paused": True, "replace": True,
    }  # fmt: skip


def test_edit_changes_what_is_given_alone(shell: Shell) -> None:
    shell.answers = [ok(SHOP), ok(SHOP)]
    shell("destination", "edit", "shop", "https://shop.example.com/v2", "--rate", "0", "--no-ordered", "--json")
    assert (shell.requests[-1].method, shell.requests[-1].url.path) == ("PATCH", "/v1/destinations/shop")
    assert shell.body() == {"url": "https://shop.example.com/v2", "rate": 0, "ordered": False}
    assert orjson.loads(shell.out) == SHOP
    shell("destination", "edit", "shop", "--topic", "bills", "--timeout", "5s")
    assert shell.body() == {"topics": ["bills"], "timeout": "5s"}
    assert shell.code == 0 and "shop.example.com" in shell.out


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost", "10.1.2.3", "[::1]:80", "[fd00::1]", "169.254.169.254"])
def test_a_private_address_is_told_when_it_is_declared(shell: Shell, host: str) -> None:
    shell.answers = [ok(SHOP, 201), ok(SHOP)]
    for words in (("add", "shop", f"http://{host}/hook"), ("edit", "shop", f"http://{host}/hook")):
        shell("destination", *words)
        assert shell.code == 0
        assert "is not public: relays refuse it (forbidden_address) unless relay.private_networks" in shell.err


@pytest.mark.parametrize("host", ["shop.example.com", "8.8.8.8", "hooks", "[2600::1]:8080"])
def test_a_public_address_or_a_name_is_declared_in_silence(shell: Shell, host: str) -> None:
    shell.answers = [ok(SHOP, 201)]
    assert shell("destination", "add", "shop", f"https://{host}/hook").err == ""


@pytest.mark.parametrize(
    ("typed", "delays"), [("1s", ["1s"]), ("1s,5,1m", ["1s", 5, "1m"]), ("5", [5]), ('["1s"]', ["1s"])]
)
def test_a_list_needs_no_json(typed: str, delays: list[str | int], shell: Shell) -> None:
    shell.answers = [ok(SHOP, 201)]
    shell("destination", "add", "shop", "https://shop.example.com", "--retry", f"delays={typed}")
    assert shell.body()["retry"] == {"delays": delays}


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        ("retry.delays: it is a list", "--retry delays: it is a list"),
        ("retry: delays goes with kind delays", "--retry: delays goes with kind delays"),
        ("options.headers.x-a: it is text", "--option headers.x-a: it is text"),
        ("topics.0: it is text", "--topic: it is text"),
        ("credentials.pasword is no field here", "--credentials pasword is no field here"),
        ("timeout: it is a duration", "--timeout: it is a duration"),
        ("url: it names no host", "URL: it names no host"),
        ("somebody else changed it: try again", "somebody else changed it: try again"),
        ("retrying is over", "retrying is over"),
    ],
)
def test_what_is_refused_names_the_option(detail: str, told: str, shell: Shell) -> None:
    add = ("destination", "add", "shop", "https://shop.example.com")
    shell.answers = [problem(400, "bad_field", detail=detail), problem(400, "bad_field", detail=detail)]
    shell(*add)
    assert shell.err == f"duemq: {told}\n"
    assert orjson.loads(shell(*add, "--json").out)["error"]["detail"] == detail, "programs get what the server said"


def test_credentials_come_by_a_file_or_by_stdin(shell: Shell, tmp_path: Path) -> None:
    shell.answers = [ok(SHOP, 201) for _ in range(4)]
    add = ("destination", "add", "shop", "https://shop.example.com")
    (tmp_path / "c.toml").write_text('token = "t"\nsigning_secrets = ["whsec_a"]\n[headers]\nx-key = "k"\n')
    (tmp_path / "c.json").write_text('{"password": "p"}')
    for more, stdin, credentials in (
        (["--credentials", str(tmp_path / "c.toml")], "",
         {"token": "t", "signing_secrets": ["whsec_a"], "headers": {"x-key": "k"}}),
        (["--credentials", str(tmp_path / "c.json"), "--username", "u"], "", {"password": "p", "username": "u"}),
        (["--username", "u", "--password-stdin"], " a secret \nmore\n", {"username": "u", "password": " a secret "}),
        (["--token-stdin"], "t", {"token": "t"}),
    ):  # fmt: skip
        assert shell(*add, *more, stdin=stdin).code == 0, shell.err
        assert shell.body()["credentials"] == credentials


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--password-stdin", "--token-stdin"], "only one secret"),
        (["--credentials", "nowhere.toml"], "cannot be read"),
        (["--credentials", "bad.toml"], "is not TOML"),
        (["--credentials", "bad.json"], "line 1 is not JSON"),
        (["--retry", "levels"], "is not NAME=VALUE"),
        (["--start", "middle"], "middle"),
    ],
)
def test_what_is_not_understood(
    options: list[str], why: str, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bad.toml", "bad.json"):
        Path(name).write_text("password = s3cret")
    shell("destination", "add", "shop", "https://shop.example.com", *options, stdin="x")
    assert shell.code == 2 and "s3cret" not in shell.err
    assert why in " ".join(shell.err.replace("│", " ").split())


def test_ls_and_show(shell: Shell) -> None:
    figures = {"lag": 12, "results": {"accepted": 3}}
    disabled = SHOP | {"state": "disabled", "disabled": "410 \x1b[31mGone", "credentials": [], "figures": figures}
    troubled = SHOP | {"figures": {"lag": None, "trouble": "unreachable"}}
    listed = {"destinations": [SHOP, disabled]}
    shell.answers = [ok({"destinations": [SHOP, disabled, troubled]}), ok(listed), ok(disabled), ok(disabled)]
    shell("destination", "ls")
    assert [line.split("\t") for line in shell.out.splitlines()] == [
        ["shop", "http", "active", SHOP["url"], "destination.shop orders", "?", "password username", "-"],
        ["shop", "http", "disabled", SHOP["url"], "destination.shop orders", "12", "-", "410 \\x1b[31mGone"],
        ["shop", "http", "active", SHOP["url"], "destination.shop orders", "?", "password username", "unreachable"],
    ]
    assert orjson.loads(shell("destination", "ls", "--json").out) == {"destinations": [SHOP, disabled]}
    shell("destination", "show", "shop")
    assert shell.requests[-1].url.path == "/v1/destinations/shop"
    lines = [line.split(maxsplit=1) for line in shell.out.splitlines()]
    assert ["disabled", "410 \\x1b[31mGone"] in lines and ["lag", "12"] in lines and ["method", "POST"] in lines
    assert orjson.loads(shell("destination", "show", "shop", "--json").out) == disabled


def test_pause_resume_and_rm(shell: Shell) -> None:
    shell.answers = [ok(SHOP | {"state": "paused"}), ok(SHOP), httpx.Response(204), httpx.Response(204)]
    assert shell("destination", "pause", "shop").out == "shop is paused\n"
    assert orjson.loads(shell("destination", "resume", "shop", "--json").out) == SHOP
    assert shell("destination", "rm", "shop", "--yes").out == "shop is removed\n"
    assert orjson.loads(shell("destination", "rm", "shop", "--yes", "--json").out) == {"name": "shop", "removed": True}
    asked = [(request.method, request.url.path) for request in shell.requests]
    assert asked == [
        ("POST", "/v1/destinations/shop:pause"), ("POST", "/v1/destinations/shop:resume"),
        ("DELETE", "/v1/destinations/shop"), ("DELETE", "/v1/destinations/shop"),
    ]  # fmt: skip


def test_the_exit_code_of_a_test_says_whether_it_was_accepted(shell: Shell) -> None:
    accepted = {"result": "accepted", "status": "200", "detail": "", "took_ms": 12.0}
    failed = {"result": "failed", "status": "500", "detail": "out of\norder", "took_ms": 1.5}
    shell.answers = [ok(accepted), ok(failed), ok(failed)]
    shell("destination", "test", "shop")
    assert (shell.code, shell.out) == (0, "accepted after 12 ms, 200\n")
    shell("destination", "test", "shop")
    assert (shell.code, shell.out) == (1, "failed after 1.5 ms, 500: out of\\norder\n")
    shell("destination", "test", "shop", "--json")
    assert (shell.code, orjson.loads(shell.out)) == (1, failed)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (problem(404, "unknown_destination"), 4), (problem(409, "destination_exists"), 7),
        (problem(403, "forbidden"), 7), (problem(409, "too_many_destinations"), 7), (problem(503, "unavailable"), 8),
    ],
)  # fmt: skip
def test_exit_codes(answer: httpx.Response, code: int, shell: Shell) -> None:
    shell.answers = [answer]
    assert shell("destination", "show", "shop").code == code


AT_MS = 1_924_934_400_000


def test_show_says_times_and_failures_as_people_write_them(shell: Shell) -> None:
    failure = {"at": AT_MS, "id": "one", "attempt": 2, "took_ms": 31, "status": "500", "detail": "no\x1b"}
    figures = {
        "relays": ["a:1"], "lag": 0, "results": {"accepted": 3, "failed": 1, "gone": 0}, "statuses": {"200": 3},
        "lateness_ms": {"p50": 5, "p99": None}, "took_ms": {"p50": 2, "p99": 10}, "last_accepted_at": AT_MS,
        "oldest_at": AT_MS, "last_failures": [failure, failure | {"detail": ""}], "trouble": "",
    }  # fmt: skip
    rule = {"kind": "exponential", "first": 1_000, "factor": 2.0, "most": 3_600_000, "retries": 16}
    shell.answers = [ok(SHOP | {"figures": figures, "retry": rule}), ok(SHOP | {"retry": {"delays": [1_000, 60_000]}})]
    lines = [line.strip() for line in shell("destination", "show", "shop").out.splitlines()]
    for line in (
        "timeout      10s",
        "most     1h",
        "results           3 accepted, 1 failed",
        "lateness_ms       p50 5",
    ):
        assert line in lines
    for name in ("last_accepted_at  ", "oldest_at         "):
        assert any(line.startswith(f"{name}{format_ms(AT_MS)} (in ") for line in lines)
    assert lines[-2:] == [
        f"{format_ms(AT_MS)}  one  attempt 2, 31 ms, 500: no\\x1b",
        f"{format_ms(AT_MS)}  one  attempt 2, 31 ms, 500",
    ]
    assert "delays  1s, 1m" in shell("destination", "show", "shop").out
