"""Which calls a client repeats, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import orjson
import pytest

from duemq.client import Admin, Draft, EpochMs, NameTaken, Unavailable, Unreachable
from duemq.client.http.errors import ConsumerInUse, RateLimited
from duemq.client.http.exchange import RETRIES, Call, Plan, json_of, repeating

RECEIPT = {"id": "m1", "status": "scheduled", "topic": "orders", "deliver_at": "…", "deliver_at_ms": 90_000}
PROBLEM = {"Content-Type": "application/problem+json"}
OK = httpx.Response(201, json=RECEIPT)
REFUSED = httpx.ConnectError("connection refused")
SILENT = httpx.ReadTimeout("silent")
BROKEN = httpx.ReadError("reset")


def problem(status: int, code: str, retry_after_s: int = 1) -> httpx.Response:
    headers = PROBLEM | {"Retry-After": str(retry_after_s)}
    return httpx.Response(status, json={"code": code, "detail": "d", "status": status}, headers=headers)


CLOSING, LIMITED = problem(503, "unavailable"), problem(429, "rate_limited", 2)
GATEWAY_503, GATEWAY_502 = httpx.Response(503, text="upstream"), httpx.Response(502, text="bad gateway")

Answer = httpx.Response | Exception


class Server:
    """`pauses`: how long the client waited, in all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[Answer] = []
        self.requests: list[httpx.Request] = []
        self.pauses: list[float] = []
        monkeypatch.setattr("time.sleep", self.pauses.append)
        self.client = self.made()

    def made(self, **options: Any) -> Admin:
        return Admin("http://duemq.test", transport=httpx.MockTransport(self._answer), **options)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


SAFE: dict[str, Callable[[Admin], Any]] = {
    "name": lambda client: client.send("orders", "x", name="n"),
    "key": lambda client: client.send("orders", "x", idempotency_key="k"),
    "get": lambda client: client.get("m1"),
    "move": lambda client: client.reschedule("m1", deliver_at=EpochMs(1_900_000_000_000)),
}
UNSAFE: dict[str, Callable[[Admin], Any]] = {
    "post": lambda client: client.send("orders", "x"),
    "move by a delay": lambda client: client.reschedule("m1", deliver_after="1h"),
    "deliver now": lambda client: client.deliver_now("m1"),
    "redrive": lambda client: client.redrive("m1"),
}


@pytest.mark.parametrize("error", [REFUSED, CLOSING, LIMITED])
@pytest.mark.parametrize("call", [*SAFE.values(), *UNSAFE.values()], ids=[*SAFE, *UNSAFE])
def test_what_was_not_carried_out_is_repeated(server: Server, call: Callable[[Admin], Any], error: Answer) -> None:
    server.answers = [error, error, OK]
    assert call(server.client).id == "m1"
    assert len(server.pauses) == RETRIES
    if error is REFUSED:
        assert server.pauses[0] < server.pauses[1]
    else:
        assert min(server.pauses) >= (2 if error is LIMITED else 1)  # at least as long as the server asks for


@pytest.mark.parametrize("error", [SILENT, BROKEN, GATEWAY_502, GATEWAY_503, problem(504, "outcome_unknown")])
def test_an_unknown_outcome_is_repeated_only_where_twice_does_no_harm(server: Server, error: Answer) -> None:
    for call in SAFE.values():
        server.answers = [error, OK]
        assert call(server.client).id == "m1"
    for call in UNSAFE.values():
        server.answers, server.requests = [error, OK], []
        with pytest.raises((Unreachable, Unavailable)):
            call(server.client)
        assert len(server.requests) == 1


def test_a_cancel_is_repeated_and_a_batch_only_by_its_own_rule(server: Server) -> None:
    server.answers = [SILENT, httpx.Response(200, json={"id": "m1", "status": "cancelled", "cancelled_at_ms": 5})]
    assert server.client.cancel("m1").cancelled_at_ms == 5
    server.answers, server.requests = [REFUSED, OK], []
    with pytest.raises(Unreachable):
        server.client.send_batch([Draft("orders")])
    assert len(server.requests) == 1


def test_it_ends_and_says_that_the_outcome_is_unknown_if_it_ever_was(server: Server) -> None:
    server.answers = [REFUSED] * (RETRIES + 1)
    with pytest.raises(Unreachable) as told:
        server.client.get("m1")
    assert not told.value.outcome_unknown and len(server.pauses) == RETRIES
    server.answers = [SILENT, REFUSED, CLOSING]
    with pytest.raises(Unreachable) as told:
        server.client.send("orders", "x", name="n")
    assert told.value.outcome_unknown
    server.answers = [LIMITED] * (RETRIES + 1)
    with pytest.raises(RateLimited) as limited:
        server.client.send("orders", "x")
    assert limited.value.retry_after_s == 2


def test_a_pause_that_is_asked_for_and_is_long_is_the_callers(server: Server) -> None:
    server.answers = [problem(503, "disk_full", 60)]
    with pytest.raises(Unavailable) as told:
        server.client.send("orders", "x", name="n")
    assert told.value.retry_after_s == 60 and server.pauses == []


def test_retries_can_be_turned_off(server: Server) -> None:
    server.answers = [REFUSED]
    with pytest.raises(Unreachable):
        server.made(retries=0).get("m1")
    assert server.pauses == []


def test_a_repeat_under_a_name_finds_what_the_first_attempt_sent(server: Server) -> None:
    server.answers = [SILENT, httpx.Response(200, json=RECEIPT)]
    assert server.client.send("orders", "x", name="n").id == "m1"
    assert [request.headers.get("If-None-Match") for request in server.requests] == ["*", None]
    # Not sent at all: the name must be new still.
    server.answers, server.requests = [REFUSED, problem(412, "name_taken")], []
    with pytest.raises(NameTaken):
        server.client.send("orders", "x", name="n")
    assert [request.headers.get("If-None-Match") for request in server.requests] == ["*", "*"]
    server.answers = [SILENT, problem(409, "name_conflict")]
    with pytest.raises(NameTaken):
        server.client.send("orders", "x", name="n")


class Cursors:
    """A server that stores one cursor."""

    def __init__(self) -> None:
        self.stored, self.lost = "", 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"cursor": self.stored})
        expected = request.headers.get("x-duemq-last-cursor")
        if self.stored and expected is not None and expected != self.stored:
            return problem(409, "consumer_in_use")
        self.stored = orjson.loads(request.content)["cursor"]
        if self.lost:
            self.lost -= 1
            raise SILENT
        return httpx.Response(204)


def test_two_processes_with_one_consumer_name_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    server = Cursors()
    one, two = (Admin("http://duemq.test", transport=httpx.MockTransport(server)) for _ in range(2))
    one.commit("work", "shop", "1")
    two.commit("work", "shop", "1")
    one.commit("work", "shop", "2")
    for _ in range(2):
        with pytest.raises(ConsumerInUse):
            two.commit("work", "shop", "2")
    assert two.committed_cursor("work", "shop") == "2"  # this is how one takes over
    two.commit("work", "shop", "3")
    with pytest.raises(ConsumerInUse):
        one.commit("work", "shop", "3")


@pytest.mark.parametrize("retries", [0, RETRIES])
def test_a_commit_whose_answer_was_lost_is_repeated(monkeypatch: pytest.MonkeyPatch, retries: int) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    server = Cursors()
    client = Admin("http://duemq.test", transport=httpx.MockTransport(server), retries=retries)
    client.commit("work", "shop", "1")
    server.lost = 1
    with suppress(Unreachable):
        client.commit("work", "shop", "2")
    client.commit("work", "shop", "2")
    client.commit("work", "shop", "3")
    assert server.stored == "3"


def test_a_plan_is_told_of_what_no_repeat_mended() -> None:
    def plan() -> Plan[str]:
        try:
            json_of((yield Call("POST", "/x")))
        except Unreachable:
            return "told"
        return "answered"

    running = repeating(plan(), retries=1)
    next(running)
    with pytest.raises(StopIteration) as end:
        running.throw(Unreachable("gone", outcome_unknown=True))
    assert end.value.value == "told"
