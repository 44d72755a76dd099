"""Messages under names and keys: a repeat is answered as the first one was, in a batch as singly."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urljoin

import pytest

from duemq.model.errors import ClockOutOfBounds, DiskFull, LogFailed, OutcomeUnknown, Rejected, RejectedNow, Unavailable
from duemq.model.messages.names import of_client
from duemq.model.timing import TimePolicy
from duemq.proxy.gateway.base import ChangeOutcome
from duemq.proxy.request.ingress import Ingress, MessageLimits
from tests.support.http.http_site import NOW, ORDER, Ask, FakeGateway, refused, with_app

KEY = {"Idempotency-Key": "k"}


class Later:
    """The application at a later time, or with other limits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def at(self, ms: int) -> None:
        draft = Ingress.draft
        self._patch.setattr(Ingress, "draft", lambda gate, item, now: draft(gate, item, now + ms))

    def with_limits(self, limits: MessageLimits) -> None:
        other = Ingress(limits)
        self._patch.setattr(Ingress, "draft", lambda gate, item, now: _DRAFT(other, item, now))


_DRAFT = Ingress.draft


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    return Later(monkeypatch)


@pytest.mark.parametrize(
    ("message", "limits", "code"),
    [
        ({"topic": "orders", "deliver_at": NOW + 500, "expires_at": NOW + 1500}, MessageLimits(), "bad_time"),
        ({"topic": "orders", "deliver_at": NOW + 500}, MessageLimits(time=TimePolicy(past_due="reject")), "past_due"),
    ],
)
def test_a_repeat_is_answered_after_its_time(
    message: dict[str, Any], limits: MessageLimits, code: str, later: Later
) -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        batch = {"messages": [message | {"name": "n2"}, message | {"idempotency_key": "k2"}]}
        posted = await ask("POST", "/v1/messages", json=message, headers=KEY)
        put = await ask("PUT", "/v1/messages/n1", json=message)
        many = (await ask("POST", "/v1/messages:batch", json=batch)).json()
        assert (posted.status_code, put.status_code, many["accepted"]) == (201, 201, 2)
        later.at(2000)
        for first, again in (
            (posted, await ask("POST", "/v1/messages", json=message, headers=KEY)),
            (put, await ask("PUT", "/v1/messages/n1", json=message)),
        ):
            assert (again.status_code, again.json()) == (200, first.json() | {"duplicate": True})
        again = (await ask("POST", "/v1/messages:batch", json=batch)).json()
        assert again["results"] == [one | {"duplicate": True} for one in many["results"]]
        assert (again["accepted"], again["rejected"]) == (2, 0)
        refused(await ask("PUT", "/v1/messages/n1", json=message, headers={"If-None-Match": "*"}), 412, "name_taken")

        other = message | {"payload": "other"}
        refused(await ask("POST", "/v1/messages", json=other, headers=KEY), 422, "idempotency_conflict")
        refused(await ask("PUT", "/v1/messages/n1", json=other), 409, "name_conflict")
        batch = {"messages": [other | {"name": "n2"}, other | {"name": "new"}, other]}
        results = (await ask("POST", "/v1/messages:batch", json=batch)).json()["results"]
        assert [one["error"]["code"] for one in results] == ["name_conflict", code, code]
        refused(await ask("POST", "/v1/messages", json=message), 400, code)
        refused(await ask("PUT", "/v1/messages/new", json=message), 400, code)
        assert len(gateway.sent) == 4

    with_app(scenario, limits=limits)


@pytest.mark.parametrize(
    "limits",
    [
        MessageLimits(topics=("mail",)),
        MessageLimits(max_payload_bytes=0),
        MessageLimits(time=TimePolicy(max_delay_ms=1)),
    ],
)
def test_a_repeat_is_answered_whatever_the_limits_are_now(limits: MessageLimits, later: Later) -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        assert (await ask("PUT", "/v1/messages/n", json=ORDER)).status_code == 201
        later.with_limits(limits)
        assert (await ask("PUT", "/v1/messages/n", json=ORDER)).json()["duplicate"] is True
        assert (await ask("PUT", "/v1/messages/new", json=ORDER)).status_code >= 400

    with_app(scenario)


def test_a_repeat_is_answered_whatever_its_target_or_the_server_says_now() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        assert (await ask("PUT", "/v1/messages/n", json=ORDER)).status_code == 201
        gateway.refused["orders"] = RejectedNow("unknown_topic", "it is gone", "topic")
        assert (await ask("PUT", "/v1/messages/n", json=ORDER)).json()["duplicate"] is True
        refused(await ask("PUT", "/v1/messages/new", json=ORDER), 404, "unknown_topic")
        batch = {"messages": [ORDER | {"name": "n"}, ORDER | {"name": "new"}]}
        first, new = (await ask("POST", "/v1/messages:batch", json=batch)).json()["results"]
        assert first["duplicate"] and new["error"]["code"] == "unknown_topic"
        for error in (DiskFull("full"), ClockOutOfBounds("wrong")):
            gateway.error = error
            assert (await ask("PUT", "/v1/messages/n", json=ORDER)).json()["duplicate"] is True
            refused(await ask("PUT", "/v1/messages/new", json=ORDER), 503, error.code)

    with_app(scenario)


def test_a_refusal_is_no_answer_where_nobody_can_say_whether_the_name_is_new() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        gateway.refused["orders"] = RejectedNow("unknown_topic", "it is gone", "topic")
        gateway.unreadable = OutcomeUnknown("no replica answers")
        refused(await ask("PUT", "/v1/messages/n", json=ORDER), 504, "outcome_unknown")
        batch = {"messages": [ORDER | {"name": "n"}, ORDER, ORDER | {"topic": "others"}]}
        answer = (await ask("POST", "/v1/messages:batch", json=batch)).json()
        codes = [one.get("error", one).get("code") for one in answer["results"]]
        assert codes == ["outcome_unknown", "unknown_topic", None]
        assert (answer["accepted"], answer["rejected"], answer["unknown"]) == (1, 1, 1)

    with_app(scenario)


def test_an_outcome_that_nobody_knows_is_called_so() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        gateway.error = LogFailed("Kafka did not acknowledge an append")
        for method, path, body in (
            ("POST", "/v1/messages", ORDER), ("PUT", "/v1/messages/n", ORDER),
            ("POST", "/v1/messages:batch", {"messages": [ORDER]}),
        ):  # fmt: skip
            answer = await ask(method, path, json=body)
            refused(answer, 504, "outcome_unknown")
            assert "Retry-After" not in answer.headers
        gateway.error = None
        gateway.refused["orders"] = Rejected("outcome_unknown", "the answer to this name is not known")
        refused(await ask("PUT", "/v1/messages/n", json=ORDER), 504, "outcome_unknown")
        gateway.refused["orders"] = Rejected("unavailable", "not known just now")
        refused(await ask("PUT", "/v1/messages/n", json=ORDER), 503, "unavailable")
        gateway.unreadable = LogFailed("Kafka did not answer")
        assert (await ask("GET", "/v1/messages/m1")).headers["Retry-After"] == "1", "a read changes nothing"

    with_app(scenario)


def test_a_cancel_by_filter_that_comes_to_a_stop_says_that_it_began() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        body = {"filter": {"topic": "orders"}}
        gateway.pages = [gateway.pages[0]._replace(cursor="next")]

        async def find(query: Any) -> Any:
            if query.cursor:
                raise Unavailable("no replica answers")
            return gateway.pages[0]

        gateway.find = find  # type: ignore[method-assign]
        document = refused(await ask("POST", "/v1/messages:cancel", json=body), 504, "outcome_unknown")
        assert "1 cancelled" in document["detail"]

    with_app(scenario)


def test_an_item_of_a_batch_and_a_put_repeat_one_another() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        async def batch(*items: dict[str, Any]) -> Any:
            return (await ask("POST", "/v1/messages:batch", json={"messages": items})).json()

        first = (await ask("PUT", "/v1/messages/n", json=ORDER)).json()
        assert gateway.sent[0].name == b"n:n"
        answer = await batch(dict(reversed((ORDER | {"name": "n"}).items())), ORDER | {"name": "m"}, ORDER)
        assert answer["results"][0] == first | {"duplicate": True}
        assert [one.get("duplicate") for one in answer["results"]] == [True, None, None]
        assert (answer["accepted"], answer["rejected"]) == (3, 0) and "unknown" not in answer
        assert (await ask("PUT", "/v1/messages/m", json=ORDER)).json()["duplicate"] is True

        same = await batch(
            ORDER | {"name": "x"}, ORDER | {"name": "x"}, ORDER | {"name": "x", "payload": "q"},
            ORDER | {"idempotency_key": "x"}, ORDER | {"idempotency_key": "x"},
            ORDER | {"idempotency_key": "x", "payload": "q"},
        )  # fmt: skip
        said = [one.get("duplicate") or one.get("error", {}).get("code") for one in same["results"]]
        assert said == [None, True, "name_conflict", None, True, "idempotency_conflict"]
        assert same["results"][2]["error"]["id"] == same["results"][0]["id"]
        assert (same["accepted"], same["rejected"]) == (4, 2)

    with_app(scenario)


@pytest.mark.parametrize(
    ("naming", "field"),
    [
        ({"name": "a\nb"}, "name"), ({"name": ""}, "name"), ({"name": 5}, "name"), ({"name": None}, "name"),
        ({"idempotency_key": ""}, "idempotency_key"), ({"idempotency_key": "x" * 256}, "idempotency_key"),
        ({"idempotency_key": ["k"]}, "idempotency_key"), ({"name": "n", "idempotency_key": "k"}, "idempotency_key"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_one_refuses_its_item(naming: dict[str, Any], field: str) -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        answer = (await ask("POST", "/v1/messages:batch", json={"messages": [ORDER | naming, ORDER]})).json()
        error = answer["results"][0]["error"]
        assert (error["code"], error["field"], answer["accepted"]) == ("bad_field", field, 1)
        # Names are of batches: singly the path and a header say them.
        refused(await ask("POST", "/v1/messages", json=ORDER | naming), 400, "unknown_field")

    with_app(scenario)


def test_what_is_nested_too_deep_to_be_compared_is_refused() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        deep: Any = []
        for _ in range(300):
            deep = [deep]
        refused(await ask("PUT", "/v1/messages/n", json=ORDER | {"payload": deep}), 400, "bad_field")
        batch = {"messages": [ORDER | {"payload": deep, "name": "n"}, ORDER]}
        answer = (await ask("POST", "/v1/messages:batch", json=batch)).json()
        assert (answer["results"][0]["error"]["code"], answer["accepted"]) == ("bad_field", 1)

    with_app(scenario)


@pytest.mark.parametrize(
    "name",
    [
        "order/2027/17",
        "ann@example.com",
        "a%2Fb",
        "größe-1",
        "注文",
        "two words",
        "x:deliver-now",
        "?#&",
        "a/b:deliver-now",
    ],
)
def test_a_name_of_any_printable_text_is_one_segment_of_a_path(name: str) -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        path = f"/v1/messages/{quote(name, safe='')}"
        assert (await ask("PUT", path, json=ORDER)).status_code == 201
        batch = await ask("POST", "/v1/messages:batch", json={"messages": [ORDER | {"name": name}]})
        assert batch.json()["results"][0]["duplicate"]
        assert [draft.name for draft in gateway.sent] == [of_client(name)] * 2
        gateway.outcome = None
        refused(await ask("DELETE", path), 404, "unknown_message")
        refused(await ask("PATCH", path, json={"deliver_at": NOW}), 404, "unknown_message")
        refused(await ask("POST", f"{path}:deliver-now"), 404, "unknown_message")
        refused(await ask("POST", f"/v1/dlq/{quote(name, safe='')}:redrive"), 404, "unknown_message")
        assert [targets for _, targets, _ in gateway.changes] == [(name,)] * 4
        gateway.outcome = ChangeOutcome(name, None)
        pending = await ask("DELETE", path)
        assert urljoin(f"http://duemq{path}", pending.headers["Location"]) == f"http://duemq{path}"

    with_app(scenario)


def test_a_path_says_what_is_wrong_with_a_name() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        for path in ("/v1/messages/order/17", "/v1/dlq/order/17:redrive"):
            assert "is %2F" in refused(await ask("POST", path, json=ORDER), 404, "not_found")["detail"]
        assert "%2F" not in refused(await ask("GET", "/v1/order"), 404, "not_found")["detail"]
        for name in ("a%0Ab", "n" * 129, quote("é" * 101)):
            document = refused(await ask("GET", f"/v1/messages/{name}"), 404, "unknown_message")
            assert "1 to 128 characters, at most 200 bytes" in document["detail"]
            document = refused(await ask("PUT", f"/v1/messages/{name}", json=ORDER), 400, "bad_field")
            assert "1 to 128 characters, at most 200 bytes" in document["detail"]
        refused(await ask("GET", "/v1/topics/orders/consumers/a%2Fb"), 400, "bad_field")
        assert not gateway.sent

    with_app(scenario)
