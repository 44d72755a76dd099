"""The operations of the SDK against a scripted server, synchronous and asynchronous alike."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import orjson
import pytest

from duemq.client import (
    Admin,
    AlreadyDelivered,
    AsyncAdmin,
    BatchInterrupted,
    Draft,
    MoveResult,
    NaiveTimeError,
    NotSupported,
    PendingError,
    Unavailable,
    Unreachable,
)
from duemq.client.http import operations
from duemq.client.http.errors import NameConflict, NegativeDelay

RECEIPT = {"id": "m1", "status": "scheduled", "topic": "orders", "deliver_at": "…", "deliver_at_ms": 90_000}
STATE = RECEIPT | {"key": "k", "labels": ["a"], "headers": {"h": "v"}, "attempt": 0, "payload_base64": "/w=="}
DELIVERED = {"code": "already_delivered", "detail": "too late", "status": 409, "delivered_at_ms": 1}

GATEWAY = httpx.Response(502, text="<html>bad gateway")

Answer = httpx.Response | Exception


class Scripted:
    """Runs one client against a list of answers; awaits what must be awaited and gathers what is iterated."""

    def __init__(self, asynchronous: bool) -> None:
        self.answers: list[Answer] = []
        self.requests: list[httpx.Request] = []
        transport = httpx.MockTransport(self._answer)
        self._runner = asyncio.Runner()
        self.client: Any = (
            AsyncAdmin("http://duemq.test", transport=transport, retries=0)
            if asynchronous
            else Admin("http://duemq.test", transport=transport, retries=0)
        )

    def __call__(self, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = operation(*args, **kwargs)
        if inspect.isawaitable(result):
            return self._runner.run(self._awaited(result))
        if isinstance(result, AsyncIterator):
            return self._runner.run(self._gathered(result))
        return list(result) if isinstance(result, Iterator) else result

    def body(self, request: int = -1) -> Any:
        return orjson.loads(self.requests[request].content)

    def close(self) -> None:
        self(self.client.aclose if isinstance(self.client, AsyncAdmin) else self.client.close)
        self._runner.close()

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        # A copy: what a client was given belongs to it, and the parameters of a test are given to several.
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    @staticmethod
    async def _awaited(result: Any) -> Any:
        return await result

    @staticmethod
    async def _gathered(result: AsyncIterator[Any]) -> list[Any]:
        return [item async for item in result]


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def server(request: pytest.FixtureRequest) -> Iterator[Scripted]:
    scripted = Scripted(request.param)
    yield scripted
    scripted.close()


def test_send_gives_a_message_with_its_time(server: Scripted) -> None:
    server.answers = [httpx.Response(201, json=RECEIPT)]
    message = server(server.client.send, "orders", {"n": 1}, deliver_after=timedelta(seconds=90), idempotency_key="i")
    assert (message.id, message.status, message.deliver_at_ms, message.duplicate) == ("m1", "scheduled", 90_000, False)
    assert message.deliver_at == datetime(1970, 1, 1, 0, 1, 30, tzinfo=UTC)
    assert server.body() == {"topic": "orders", "payload": '{"n":1}', "deliver_after": 90_000}
    assert server.requests[0].headers["Idempotency-Key"] == "i"


def test_a_repeat_is_told_as_a_duplicate(server: Scripted) -> None:
    server.answers = [httpx.Response(200, json=RECEIPT | {"duplicate": True})]
    assert server(server.client.send, "orders", idempotency_key="i").duplicate


def test_names_are_put_and_must_be_new_unless_said(server: Scripted) -> None:
    server.answers = [httpx.Response(201, json=RECEIPT), httpx.Response(200, json=RECEIPT)]
    assert not server(server.client.send, "orders", name="a b").duplicate
    assert server(server.client.send, "orders", name="a b", if_new=False).duplicate
    first, second = server.requests
    assert (first.method, first.url.raw_path, first.headers["If-None-Match"]) == ("PUT", b"/v1/messages/a%20b", "*")
    assert "If-None-Match" not in second.headers


def test_naive_times_never_reach_the_server(server: Scripted) -> None:
    with pytest.raises(NaiveTimeError):
        server(server.client.send, "orders", deliver_at=datetime(2031, 1, 1))
    assert server.requests == []


def test_message_operations_keep_its_state(server: Scripted) -> None:
    moved = STATE | {"deliver_at_ms": 1_924_992_120_000}
    server.answers = [
        httpx.Response(200, json=STATE),
        httpx.Response(200, json=moved),
        httpx.Response(200, json={"id": "m1", "status": "cancelled", "cancelled_at_ms": 5}),
        httpx.Response(409, json=DELIVERED),
    ]
    message = server(server.client.get, "m1")
    assert (message.payload, message.state.labels, message.state.key) == (b"\xff", ("a",), "k")
    assert server(message.reschedule, deliver_at=1_924_992_120_000).deliver_at_ms == 1_924_992_120_000
    assert server.body() == {"deliver_at": 1_924_992_120_000}
    cancelled = server(message.cancel)
    assert cancelled.cancelled_at == datetime(1970, 1, 1, 0, 0, 0, 5000, UTC)
    assert message.status == "cancelled" and message.state.cancelled_at_ms == 5
    with pytest.raises(AlreadyDelivered):
        server(message.deliver_now)
    assert [request.method for request in server.requests] == ["GET", "PATCH", "DELETE", "POST"]


def test_a_pending_cancel_is_asked_again_until_it_is_known(server: Scripted) -> None:
    pending = httpx.Response(202, json={"status": "pending"}, headers={"Location": "/v1/messages/m1"})
    server.answers = [pending, httpx.Response(409, json=DELIVERED), pending]
    with pytest.raises(AlreadyDelivered):
        server(server.client.cancel, "m1")
    with pytest.raises(PendingError):
        server(server.client.cancel, "m1", wait_s=0)
    assert [request.method for request in server.requests] == ["DELETE"] * 3


def test_a_pending_move_is_not_repeated(server: Scripted) -> None:
    server.answers = [httpx.Response(202, json={"status": "pending"})]
    with pytest.raises(PendingError):
        server(server.client.reschedule, "m1", deliver_after="1h")


def test_batch_answers_every_draft_in_order(server: Scripted) -> None:
    refused = {"error": {"code": "negative_delay", "detail": "d", "field": "deliver_after", "status": 400}}
    server.answers = [httpx.Response(200, json={"results": [RECEIPT, refused], "accepted": 1, "rejected": 1})]
    good, bad = server(server.client.send_batch, [Draft("orders", "1"), Draft("orders", "2", deliver_after="-1ms")])
    assert good.id == "m1"
    assert isinstance(bad, NegativeDelay) and bad.field == "deliver_after"
    assert [item["payload"] for item in server.body()["messages"]] == ["1", "2"]


def test_a_batch_that_breaks_off_tells_what_was_answered(server: Scripted) -> None:
    server.answers = [httpx.Response(200, json={"results": [RECEIPT] * 10_000}), httpx.ReadError("gone")]
    with pytest.raises(BatchInterrupted) as caught:
        server(server.client.send_batch, [Draft("orders")] * 10_001)
    assert len(caught.value.results) == 10_000
    assert isinstance(caught.value.__cause__, Unreachable) and caught.value.__cause__.outcome_unknown


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "REPEAT_PAUSES_S", (0.0, 0.0))


UNKNOWN = {"code": "outcome_unknown", "detail": "it may have been accepted", "status": 504}
NAMED = [Draft("orders", "1", name="n1"), Draft("orders", "2", idempotency_key="i2")]


@pytest.mark.usefixtures("no_pauses")
def test_names_and_keys_of_a_batch_and_what_they_are_answered(server: Scripted) -> None:
    conflict = {"error": {"code": "name_conflict", "detail": "d", "field": "name", "status": 409}}
    not_known = {"error": UNKNOWN}
    answer = {"results": [RECEIPT | {"duplicate": True}, conflict, not_known]}
    server.answers = [httpx.Response(200, json=answer)]
    again, other, unknown = server(server.client.send_batch, [*NAMED, Draft("orders")])
    assert again.duplicate and isinstance(other, NameConflict)
    assert isinstance(unknown, Unreachable) and unknown.outcome_unknown
    first, second, third = server.body()["messages"]
    assert (first["name"], second["idempotency_key"]) == ("n1", "i2")
    assert not {"name", "idempotency_key"} & third.keys() and "idempotency_key" not in first and "name" not in second


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("lost", [httpx.ReadError("gone"), httpx.Response(504, json=UNKNOWN), httpx.Response(502)])
def test_a_batch_of_names_and_keys_is_repeated_where_its_outcome_is_unknown(server: Scripted, lost: Answer) -> None:
    server.answers = [lost, httpx.Response(200, json={"results": [RECEIPT | {"duplicate": True}, RECEIPT]})]
    assert [message.duplicate for message in server(server.client.send_batch, NAMED)] == [True, False]
    assert server.requests[0].content == server.requests[1].content


@pytest.mark.usefixtures("no_pauses")
def test_only_the_items_of_a_batch_that_nobody_knows_of_are_repeated(server: Scripted) -> None:
    not_known = {"error": UNKNOWN}
    server.answers = [
        httpx.Response(200, json={"results": [RECEIPT, not_known, not_known, not_known]}),
        httpx.Response(503, json={"code": "unavailable"}),
        httpx.Response(200, json={"results": [RECEIPT | {"duplicate": True}, not_known]}),
    ]
    drafts = [Draft("orders", "0"), *NAMED, Draft("orders", "3")]
    first, second, third, fourth = server(server.client.send_batch, drafts)
    assert (first.duplicate, second.duplicate) == (False, True)
    for unknown in (third, fourth):
        assert isinstance(unknown, Unreachable) and unknown.outcome_unknown
    assert [[item["payload"] for item in server.body(at)["messages"]] for at in range(3)] == [
        ["0", "1", "2", "3"],
        ["1", "2"],
        ["1", "2"],
    ]


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("last", [httpx.ConnectError("down"), httpx.Response(503, json={"code": "unavailable"})])
def test_what_became_of_a_repeat_does_not_tell_what_became_of_the_first(server: Scripted, last: Answer) -> None:
    server.answers = [httpx.ReadError("gone"), last, last]
    with pytest.raises(Unreachable) as caught:
        server(server.client.send_batch, NAMED)
    assert caught.value.outcome_unknown and len(server.requests) == 3


@pytest.mark.usefixtures("no_pauses")
def test_a_batch_is_not_repeated_where_it_could_do_harm_or_was_not_accepted(server: Scripted) -> None:
    server.answers = [httpx.ReadError("gone")]
    with pytest.raises(Unreachable) as caught:
        server(server.client.send_batch, [*NAMED, Draft("orders", "3")])
    assert caught.value.outcome_unknown
    for answer, error in (
        (httpx.ConnectError("down"), Unreachable),
        (httpx.Response(503, json={"code": "unavailable"}), Unavailable),
    ):
        server.answers = [answer]
        with pytest.raises(error):
            server(server.client.send_batch, NAMED)
    assert len(server.requests) == 3


@pytest.mark.usefixtures("no_pauses")
def test_only_the_requests_of_a_batch_that_are_safe_are_repeated(server: Scripted) -> None:
    drafts = [Draft("orders", name=str(n)) for n in range(10_000)] + [Draft("orders")]
    server.answers = [httpx.ReadError("gone"), httpx.Response(200, json={"results": [RECEIPT] * 10_000}), GATEWAY]
    with pytest.raises(BatchInterrupted) as caught:
        server(server.client.send_batch, drafts)
    assert len(caught.value.results) == 10_000 and len(server.requests) == 3
    assert isinstance(caught.value.__cause__, Unreachable) and caught.value.__cause__.outcome_unknown


def test_lists_are_read_page_by_page(server: Scripted) -> None:
    pages = [{"messages": [STATE, STATE], "cursor": "c"}, {"messages": [STATE], "cursor": None}]
    server.answers = [httpx.Response(200, json=page) for page in pages]
    due_to = datetime(1970, 1, 2, tzinfo=UTC)
    assert len(server(server.client.list, topic="orders", due_to=due_to, page_size=2)) == 3
    assert dict(server.requests[1].url.params) == {"topic": "orders", "due_to": "86400000", "limit": "2", "cursor": "c"}


def test_cancel_many_reports_each_and_adds_up(server: Scripted) -> None:
    answer = {"results": [{"id": "x", "status": "unknown"}], "counts": {"unknown": 1, "cancelled": 0}}
    server.answers = [httpx.Response(200, json=answer) for _ in range(3)]
    report = server(server.client.cancel_many, ["x"] * 10_001)
    assert [result.status for result in report.results] == ["unknown", "unknown"]
    assert report.counts == {"unknown": 2, "cancelled": 0}
    server(server.client.cancel_many, filter={"topic": "orders"}, times=True)
    assert server.body() == {"filter": {"topic": "orders"}, "times": True}
    with pytest.raises(TypeError):
        server(server.client.cancel_many)


def test_reschedule_many_reports_each_and_adds_up(server: Scripted) -> None:
    moved = {"id": "m1", "status": "moved", "deliver_at_ms": 7}
    late = {"id": "m1", "status": "already_delivered", "delivered_at_ms": 3}
    naive = {"error": {"code": "naive_time", "detail": "no zone", "status": 400}}
    answers = [{"results": [moved], "counts": {"moved": 1}}, {"results": [late, naive], "counts": {"rejected": 1}}]
    server.answers = [httpx.Response(200, json=answer) for answer in answers]
    moves = [("m1", {"deliver_at": datetime(1970, 1, 2, tzinfo=UTC)})] * 10_000 + [("m1", {"deliver_after": "1h"})]
    report = server(server.client.reschedule_many, moves, times=True)
    assert server.body(0)["moves"][0] == {"id": "m1", "deliver_at": 86_400_000}
    assert server.body(1) == {"moves": [{"id": "m1", "deliver_after": "1h"}], "times": True}
    assert report.results[:2] == (MoveResult("m1", "moved", 7), MoveResult("m1", "already_delivered", 3))
    assert isinstance(report.results[2], NaiveTimeError) and report.counts == {"moved": 1, "rejected": 1}


def test_records_and_places(server: Scripted) -> None:
    headers = {"duemq-id": "m1", "duemq-due": "1000", "duemq-attempt": "1", "h": "v"}
    record = {"partition": 0, "offset": 3, "timestamp_ms": 1004, "key": None, "payload": '{"a":1}', "headers": headers}
    server.answers = [httpx.Response(200, json={"records": [record], "cursor": "c1"}), httpx.Response(204)]
    page = server(server.client.records, "orders", consumer="billing", max=5, wait=timedelta(seconds=5))
    (found,) = page.records
    assert (found.id, found.due_ms, found.lateness_ms, found.attempt) == ("m1", 1000, 4, 1)
    assert (found.payload, found.text, found.json()) == (b'{"a":1}', '{"a":1}', {"a": 1})
    assert dict(server.requests[0].url.params) == {"consumer": "billing", "max": "5", "wait": "5000ms"}
    assert server.requests[0].extensions["timeout"]["read"] == 15.0
    server(server.client.commit, "orders", "billing", page.cursor)
    assert server.requests[1].url.path == "/v1/topics/orders/consumers/billing" and server.body() == {"cursor": "c1"}
    server.answers = [httpx.Response(200, json={"cursor": "c1"}), httpx.Response(204)]
    assert server(server.client.committed_cursor, "orders", "billing") == "c1"
    assert server(server.client.committed_cursor, "orders", "shipping") is None
    assert server.requests[2].method == "GET" and server.requests[2].url.path.endswith("/consumers/billing")


def test_no_answer_tells_whether_something_may_have_happened(server: Scripted) -> None:
    server.answers = [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.Response(503, text="")]
    with pytest.raises(Unreachable) as refused:
        server(server.client.send, "orders")
    with pytest.raises(Unreachable) as slow:
        server(server.client.send, "orders")
    assert (refused.value.outcome_unknown, slow.value.outcome_unknown) == (False, True)
    with pytest.raises(Unavailable):
        server(server.client.topics)


def test_the_end_of_a_topic_without_a_cursor(server: Scripted) -> None:
    topic = {"topic": "t", "partitions": 3000, "cursor": None}
    server.answers = [
        httpx.Response(200, json=topic | {"trouble": "partition 2 has no leader"}),
        httpx.Response(200, json=topic | {"trouble": None}),
        httpx.Response(404, json={"code": "unknown_topic"}),
    ]
    with pytest.raises(Unavailable, match="partition 2 has no leader"):
        server(server.client.end, "t")
    with pytest.raises(NotSupported, match="3000 partitions"):
        server(server.client.end, "t")
    assert server(server.client.end, "t") is None


@pytest.mark.parametrize(
    "answer",
    [
        GATEWAY,
        httpx.Response(504, text=""),
        httpx.Response(504, json=UNKNOWN),
        httpx.Response(503, json=UNKNOWN | {"status": 503}),
        httpx.Response(502, json={"code": "no_healthy_upstream", "detail": "a gateway's own", "status": 502}),
    ],
    ids=lambda answer: f"{answer.status_code}-{answer.text[:9]}",
)
def test_who_does_not_know_what_happened_does_not_say_that_nothing_did(server: Scripted, answer: Answer) -> None:
    server.answers = [answer] * 2
    for operation, arguments in ((server.client.send, ("orders",)), (server.client.reschedule, ("m1",))):
        with pytest.raises(Unreachable) as caught:
            server(operation, *arguments)
        assert caught.value.outcome_unknown


def test_url_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"topics": []})

    monkeypatch.setenv("DUEMQ_URL", "queue.test:99")
    monkeypatch.setenv("DUEMQ_API_KEY", "secret")
    with Admin(transport=httpx.MockTransport(answer)) as client:
        client.topics()
    assert str(seen[0].url) == "http://queue.test:99/v1/topics"
    assert seen[0].headers["Authorization"] == "Bearer secret"
    with pytest.raises(ValueError, match="URL"):
        Admin("ftp://queue.test")
