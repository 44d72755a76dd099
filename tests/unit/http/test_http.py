"""The API over a scripted gateway: statuses, codes and shapes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duemq.cluster.shards.shard_reader import MessageState, Query
from duemq.model.errors import Rejected, Unavailable
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import CANCEL, DELIVER_NOW, MOVE, REDRIVE
from duemq.model.timing import FIRST_MS
from duemq.proxy.gateway.base import ChangeOutcome, MessagePage
from tests.support.http.http_site import (
    FORM,
    NOW,
    NOW_TEXT,
    ORDER,
    STATE,
    TEXT,
    Ask,
    FakeGateway,
    app_over,
    refused,
    with_app,
)
from tests.support.patience import WITHIN_S


def test_a_message_gets_a_receipt() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        answer = await ask("POST", "/v1/messages", json={"topic": "orders", "payload": "p", "deliver_at": NOW})
        assert answer.status_code == 201
        times = {"deliver_at": NOW_TEXT, "deliver_at_ms": NOW}
        assert answer.json() == {"id": "m1", "status": "scheduled", "topic": "orders", **times}
        raw = await ask("POST", "/v1/messages", content=b"\x00\xff", headers=TEXT)
        assert raw.status_code == 201
        assert gateway.sent[1].payload == b"\x00\xff"
        hint = refused(await ask("POST", "/v1/messages", content=b"{}", headers=FORM), 400, "missing_topic")
        assert "Content-Type: application/json" in hint["detail"]

    with_app(scenario)


def test_a_batch_answers_each_item_in_order() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        body = {"messages": [ORDER, {"topic": "orders", "deliver_after": -1}, ORDER]}
        answer = (await ask("POST", "/v1/messages:batch", json=body)).json()
        assert (answer["accepted"], answer["rejected"]) == (2, 1)
        first, bad, last = answer["results"]
        assert (first["id"], bad["error"]["code"], last["id"]) == ("m1", "negative_delay", "m2")

    with_app(scenario)


def test_what_a_target_refuses_is_refused_alone() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        gateway.refused["gone"] = Rejected("unknown_topic", "there is no topic gone", "topic")
        body = {"messages": [ORDER, ORDER | {"topic": "gone"}, ORDER]}
        answer = (await ask("POST", "/v1/messages:batch", json=body)).json()
        assert (answer["accepted"], answer["rejected"]) == (2, 1)
        first, bad, last = answer["results"]
        assert (first["id"], bad["error"]["code"], last["id"]) == ("m1", "unknown_topic", "m2")
        refused(await ask("POST", "/v1/messages", json=ORDER | {"topic": "gone"}), 404, "unknown_topic")
        refused(await ask("PUT", "/v1/messages/n", json=ORDER | {"topic": "gone"}), 404, "unknown_topic")

    with_app(scenario)


def test_a_change_that_was_made_is_no_failure_because_nobody_can_show_it() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        gateway.unreadable = Unavailable("no node answers")
        answer = await ask("PATCH", "/v1/messages/m1", json={"deliver_after": "1h"})
        assert (answer.status_code, answer.json()["status"]) == (202, "pending")
        refused(await ask("GET", "/v1/messages/m1"), 503, "unavailable")

    with_app(scenario)


def test_a_node_is_drained_and_resumed() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        gateway.mastered = [0]
        drained = await ask("POST", "/v1/cluster/nodes/a:drain")
        assert (drained.status_code, drained.json()) == (202, {"name": "a", "draining": True})
        gateway.mastered = []
        assert (await ask("POST", "/v1/cluster/nodes/a:drain")).status_code == 200
        resumed = await ask("POST", "/v1/cluster/nodes/a:resume")
        assert (resumed.status_code, resumed.json()) == (200, {"name": "a", "draining": False})
        for unknown in ("b", "%00", "a%20b"):
            refused(await ask("POST", f"/v1/cluster/nodes/{unknown}:drain"), 404, "unknown_node")

    with_app(scenario)


def test_an_idempotency_key_belongs_to_one_body() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        key = {"Idempotency-Key": "x" * 255}
        first = await ask("POST", "/v1/messages", json=ORDER, headers=key)
        again = await ask("POST", "/v1/messages", json=ORDER, headers=key)
        assert (first.status_code, again.status_code) == (201, 200)
        assert again.json() == first.json() | {"duplicate": True}
        other = await ask("POST", "/v1/messages", json=ORDER | {"payload": "q"}, headers=key)
        refused(other, 422, "idempotency_conflict")
        elsewhere = await ask("POST", "/v1/messages", content=b"p", headers=TEXT | key)
        refused(elsewhere, 422, "idempotency_conflict")

    with_app(scenario)


def test_a_name_belongs_to_one_message_however_its_json_is_spelt() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        path, mine = "/v1/messages/order-17", {"If-None-Match": "*"}
        assert (await ask("PUT", path, json=ORDER, headers=mine)).status_code == 201
        assert gateway.sent[0].name == b"n:order-17"
        spelt = await ask("PUT", path, json=dict(reversed(ORDER.items())))
        assert (spelt.status_code, spelt.json()["id"]) == (200, "m1")
        refused(await ask("PUT", path, json=ORDER | {"payload": "q"}), 409, "name_conflict")
        assert refused(await ask("PUT", path, json=ORDER, headers=mine), 412, "name_taken")["id"] == "m1"
        refused(await ask("PUT", "/v1/messages/a%0Ab", json=ORDER), 400, "bad_field")

    with_app(scenario)


def test_the_state_shows_bytes_as_base64_and_lists_show_no_payload() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        state = (await ask("GET", "/v1/messages/m1")).json()
        assert (state["payload_base64"], state["key"], state["labels"]) == ("/w==", "k", ["a"])
        assert (state["headers"], state["expires_at"], state["attempt"]) == ({"h": "v"}, NOW_TEXT, 0)
        assert "delivered_at" not in state
        page = (await ask("GET", f"/v1/messages?topic=orders&due_from={NOW}&limit=7&cursor=c&key=k")).json()
        assert "payload_base64" not in page["messages"][0]
        assert gateway.queries == [Query("orders", key="k", due_from=NOW, limit=7, cursor="c")]
        gateway.found = None
        for unknown in ("m1", "a%20b", "%00", "x" * 5000):
            refused(await ask("GET", f"/v1/messages/{unknown}"), 404, "unknown_message")

    with_app(scenario)


def test_the_newest_of_any_status_come_first_where_that_is_asked_for() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        gateway.pages *= 3
        for query in ("key=k&order=newest", "label=eu&order=newest&status=dead", "key=k&order=due"):
            assert (await ask("GET", f"/v1/messages?{query}")).status_code == 200
        assert gateway.queries == [
            Query(key="k", status=None, newest=True), Query(label="eu", status="dead", newest=True), Query(key="k"),
        ]  # fmt: skip
        refused(await ask("GET", "/v1/dlq?key=k&order=newest"), 400, "bad_query")

    with_app(scenario)


@pytest.mark.parametrize(
    "query",
    [
        "order=newest",
        "topic=a&order=newest",
        "key=k&order=oldest",
        "limit=0",
        "limit=1001",
        "status=maybe",
        "state=dead",
        "topic=a&topic=b",
        "key=%ff",
        "limit=1%0A",
    ],
)
def test_a_query_that_is_not_understood_is_refused(query: str) -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        refused(await ask("GET", f"/v1/messages?{query}"), 400, "bad_query")

    with_app(scenario)


def test_a_cancel_tells_what_the_ledger_says() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        won = {"id": "m1", "status": "cancelled", "cancelled_at": NOW_TEXT, "cancelled_at_ms": NOW}
        for answer in (Answer.OK, Answer.CANCELLED_BEFORE):
            gateway.outcome = ChangeOutcome("m1", answer, NOW)
            assert (await ask("DELETE", "/v1/messages/m1")).json() == won
        gateway.outcome = ChangeOutcome("m1", Answer.DELIVERED, NOW)
        late = refused(await ask("DELETE", "/v1/messages/m1"), 409, "already_delivered")
        assert (late["delivered_at"], late["delivered_at_ms"]) == (NOW_TEXT, NOW)
        gateway.outcome = ChangeOutcome("m1", Answer.DEAD, NOW)
        assert refused(await ask("DELETE", "/v1/messages/m1"), 409, "already_dead")["dead_at_ms"] == NOW
        gateway.outcome = ChangeOutcome("m1", None)
        pending = await ask("DELETE", "/v1/messages/order-17")
        assert (pending.status_code, pending.json()["status"]) == (202, "pending")
        assert str(pending.url.join(pending.headers["Location"])) == "http://duemq/v1/messages/m1"
        gateway.outcome = None
        refused(await ask("DELETE", "/v1/messages/m1"), 404, "unknown_message")

    with_app(scenario)


def test_move_deliver_now_and_redrive_answer_with_the_state() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        assert (await ask("PATCH", "/v1/messages/m1", json={"deliver_after": "1s"})).json()["id"] == "m1"
        assert (await ask("PATCH", "/v1/messages/m1", json={"deliver_at": FIRST_MS})).status_code == 200
        assert (await ask("POST", "/v1/messages/m1:deliver-now")).status_code == 200
        assert (await ask("POST", "/v1/dlq/m1:redrive")).status_code == 200
        assert gateway.changes == [
            (MOVE, ("m1",), NOW + 1000),
            (MOVE, ("m1",), NOW),
            (DELIVER_NOW, ("m1",), 0),
            (REDRIVE, ("m1",), 0),
        ]
        gateway.outcome = ChangeOutcome("m1", Answer.NOT_DEAD)
        refused(await ask("POST", "/v1/dlq/m1:redrive"), 400, "bad_field")
        gateway.found = MessageState("m1", "delivered", "orders", NOW, delivered_at=NOW)
        refused(await ask("POST", "/v1/dlq/m1:redrive"), 409, "already_delivered")
        gateway.outcome = ChangeOutcome("m1", Answer.CANCELLED_BEFORE, NOW)
        refused(await ask("PATCH", "/v1/messages/m1", json={"delay_level": 1}), 409, "already_cancelled")

    with_app(scenario)


def test_cancelling_many_keeps_the_order_asked() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        answer = (await ask("POST", "/v1/messages:cancel", json={"ids": ["m1", "a\nb", "m1"]})).json()
        assert [result["id"] for result in answer["results"]] == ["m1", "a\nb", "m1"]
        assert answer["counts"] == {
            "cancelled": 2,
            "already_delivered": 0,
            "already_dead": 0,
            "unknown": 1,
            "pending": 0,
        }
        gateway.pages = [MessagePage([], "next"), MessagePage([STATE], None)]
        answer = (await ask("POST", "/v1/messages:cancel", json={"filter": {"topic": "orders"}})).json()
        assert answer["results"] == [{"id": "m1", "status": "cancelled"}]
        assert gateway.queries[1].cursor == "next"
        assert {change[0] for change in gateway.changes} == {CANCEL}
        wrong: list[dict[str, Any]] = [{"filter": {}}, {"filter": {"status": "scheduled"}}, {"ids": [1]}, {}]
        for body in wrong:
            refused(await ask("POST", "/v1/messages:cancel", json=body), 400, "bad_field")
        refused(await ask("POST", "/v1/messages:cancel", json={"ids": ["m"] * 10_001}), 413, "batch_too_large")
        refused(await ask("POST", "/v1/messages:cancel", json={"ids": [], "times": 1}), 400, "bad_field")
        assert not any(gateway.times)
        answer = (await ask("POST", "/v1/messages:cancel", json={"ids": ["m1"], "times": True})).json()
        assert gateway.times[-1]
        cancelled = {"cancelled_at": NOW_TEXT, "cancelled_at_ms": NOW}
        assert answer["results"] == [{"id": "m1", "status": "cancelled", **cancelled}]
        gateway.outcome = ChangeOutcome("m1", Answer.DELIVERED, NOW)
        gateway.pages.append(gateway.pages[1])
        answer = (await ask("POST", "/v1/messages:cancel", json={"filter": {"topic": "orders"}, "times": True})).json()
        assert answer["results"][0]["delivered_at_ms"] == NOW

    with_app(scenario)


def test_a_cancel_by_filter_counts_all_and_names_the_first() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        gateway.pages = [MessagePage([STATE] * 1000, "next") for _ in range(12)] + [MessagePage([STATE], None)]
        answer = (await ask("POST", "/v1/messages:cancel", json={"filter": {"topic": "orders"}})).json()
        assert len(answer["results"]) == 10_000 and answer["truncated"]
        assert answer["counts"]["cancelled"] == 12_001 == sum(len(targets) for _, targets, _ in gateway.changes)

    with_app(scenario)


def test_a_cancel_by_filter_stops_when_nobody_waits_for_it() -> None:
    class Endless(FakeGateway):
        async def find(self, query: Query) -> MessagePage:
            self.queries.append(query)
            return MessagePage([STATE], "next")

    gateway = Endless()
    app = app_over(gateway)
    body: list[dict[str, Any]] = [
        {"type": "http.request", "body": b'{"filter": {"topic": "orders"}}'},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        if len(body) > 1 or len(gateway.queries) > 2:
            return body.pop(0)
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    path = "/v1/messages:cancel"
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
    asyncio.run(asyncio.wait_for(app(scope, receive, send), WITHIN_S))
    assert len(gateway.changes) == 3 and not sent


def test_moving_many_answers_each_in_order() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        moves = [
            {"id": "m1", "deliver_at": NOW + 5}, {"id": "a\tb", "deliver_at": NOW}, {"id": "m2", "deliver_after": "1h"},
            {"id": "m3"}, {"id": "m4", "deliver_at": "2031-01-01T00:00:00"}, {"deliver_at": NOW}, 7,
            {"id": "m5", "deliver_at": FIRST_MS}, {"id": "m6", "deliver_at": NOW, "topic": "x"},
        ]  # fmt: skip
        answer = (await ask("POST", "/v1/messages:move", json={"moves": moves})).json()
        assert gateway.changes == [(MOVE, ("m1", "m2", "m5"), [NOW + 5, NOW + 3_600_000, NOW])]
        assert [result.get("status") or result["error"]["code"] for result in answer["results"]] == [
            "moved", "unknown", "moved", "bad_field", "naive_time", "bad_field", "bad_field", "moved", "unknown_field",
        ]  # fmt: skip
        assert [result.get("deliver_at_ms") for result in answer["results"]][:3] == [NOW + 5, None, NOW + 3_600_000]
        statuses = {"already_delivered": 0, "already_cancelled": 0, "already_dead": 0, "pending": 0}
        assert answer["counts"] == statuses | {"moved": 3, "unknown": 1, "rejected": 5}
        assert gateway.times == [False]
        gateway.outcome = ChangeOutcome("m1", Answer.CANCELLED_BEFORE, NOW)
        body = {"moves": [{"id": "m1", "deliver_at": NOW}]}
        answer = (await ask("POST", "/v1/messages:move", json=body)).json()
        assert answer["results"] == [{"id": "m1", "status": "already_cancelled"}]
        answer = (await ask("POST", "/v1/messages:move", json=body | {"times": True})).json()
        assert answer["results"][0]["cancelled_at_ms"] == NOW
        gateway.outcome = ChangeOutcome("m1", None)
        assert (await ask("POST", "/v1/messages:move", json=body)).json()["counts"]["pending"] == 1
        wrongs: list[dict[str, Any]] = [{}, {"moves": {}}, {"moves": [], "times": "yes"}]
        for wrong in wrongs:
            refused(await ask("POST", "/v1/messages:move", json=wrong), 400, "bad_field")
        refused(await ask("POST", "/v1/messages:move", json={"moves": [], "ids": []}), 400, "unknown_field")
        refused(await ask("POST", "/v1/messages:move", json={"moves": [1] * 10_001}), 413, "batch_too_large")

    with_app(scenario)
