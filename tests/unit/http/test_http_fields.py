"""Headers, payloads and keys of a message are kept as they were sent, by each form of a request, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from duemq.model.messages.message import Draft
from duemq.model.messages.record import Header, StoredRecord, pack_record, unpack_headers
from duemq.proxy.request.ingress import MessageLimits
from duemq.proxy.response.render import records_bytes
from tests.support.http.http_site import JSON, ORDER, STATE, Ask, FakeGateway, refused, with_app

PAIRS: list[Header] = [("a", b"1"), ("a", b"\xff\x00"), ("n", None), ("ü", "é".encode()), ("a", b"1")]
LISTED = [["a", "1"], ["a", {"base64": "/wA="}], ["n", None], ["ü", "é"], ["a", "1"]]


def headers_of(draft: Draft) -> list[Header]:
    return list(unpack_headers(draft.headers, 0, draft.header_count, len(draft.headers)))


# --- headers ----------------------------------------------------------------------------------------------------------


def test_repeated_names_bytes_and_nulls_of_headers_are_taken_in_order() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        message = ORDER | {"header_list": LISTED}
        await ask("POST", "/v1/messages", json=message)
        await ask("PUT", "/v1/messages/n", json=message)
        await ask("POST", "/v1/messages:batch", json={"messages": [message]})
        assert [headers_of(draft) for draft in gateway.sent] == [PAIRS] * 3

    with_app(scenario)


def test_a_raw_body_takes_repeated_headers() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        fields = [("duemq-topic", "orders"), ("duemq-header-a", "1"), ("duemq-header-b", "x"), ("duemq-header-a", "2")]
        for headers in (fields, fields[::-1]):
            await ask("PUT", "/v1/messages/n", content=b"x", headers=[*headers, ("Content-Type", "text/plain")])
        assert headers_of(gateway.sent[0]) == [("a", b"1"), ("b", b"x"), ("a", b"2")]
        assert gateway.sent[0].fingerprint != gateway.sent[1].fingerprint, "their order is a part of the message"

    with_app(scenario)


@pytest.mark.parametrize(
    "listed",
    [
        {"a": "1"}, ["a"], [["a"]], [["a", "1", "2"]], [[1, "a"]], [["a", 1]], [["a", {}]], [["a", {"base64": 1}]],
        [["a", {"base64": "/w"}]], [["a", {"base64": "/w==", "more": 1}]], [["", "1"]], [["duemq-id", "1"]],
        [["DUEMQ-x", None]], [["a", "1"]] * 65, [["n" * 257, ""]],
    ],
)  # fmt: skip
def test_what_is_no_list_of_headers_is_refused_by_its_field(listed: Any) -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        answer = await ask("POST", "/v1/messages", json=ORDER | {"header_list": listed})
        assert refused(answer, 400, "bad_header")["field"] == "header_list"
        both: dict[str, Any] = {"header_list": [], "headers": {}}
        assert (
            refused(await ask("POST", "/v1/messages", json=ORDER | both), 400, "bad_header")["field"] == "header_list"
        )
        assert not gateway.sent

    with_app(scenario)


def test_headers_are_shown_as_a_list_where_an_object_cannot_say_them() -> None:
    system = [("duemq-id", b"m" * 32), ("duemq-due", b"1795255290000"), ("duemq-attempt", b"1")]
    plain: list[Header] = [("b", b"1"), ("a", None)]
    for own, is_listed in ((PAIRS, True), (plain, False), ([("a", b"\xff")], True), ([("a", b"1")] * 2, True)):
        frame = pack_record(None, [*system, *own], b"x")
        (text,) = records_bytes(0, [StoredRecord(0, 1, frame)])
        record = orjson.loads(text)
        assert ("header_list" in record) == is_listed
        assert record["headers"].keys() == dict([*system, *own]).keys()
        if is_listed:
            assert record["header_list"][:3] == [[name, value.decode()] for name, value in system]
    frame = pack_record(None, [*system, *PAIRS], b"x")
    shown = orjson.loads(records_bytes(0, [StoredRecord(0, 1, frame)])[0])
    assert shown["header_list"][3:] == LISTED
    assert shown["headers"] | dict.fromkeys(dict(system)) == dict.fromkeys(dict(system)) | {
        "a": "1",
        "n": None,
        "ü": "é",
    }

    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        gateway.found = replace(STATE, headers=tuple(PAIRS))
        assert (await ask("GET", "/v1/messages/m1")).json()["header_list"] == LISTED

    with_app(scenario)


# --- payloads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"order" :  42,"total":0.10000000000000000001, "order": 43}', "[1.0e2 , -0]", "123456789012345678901234567890",
        '"text \\u00e9 ]}"', "null", "true", "{}", '{"a":{"payload_json":[{}]},"b":"}"}', "9" * 300,
    ],
)  # fmt: skip
def test_a_payload_in_json_is_its_text_to_the_byte(text: str) -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        message = f'{{"topic": "orders" ,"payload_json" :\n{text} , "deliver_after":"1h"}}'
        await ask("POST", "/v1/messages", content=message, headers=JSON)
        await ask("PUT", "/v1/messages/n", content=message, headers=JSON)
        batch = f'{{"messages" : [{{"topic":"a"}}, 7, {message},{{"name":"m", {message[1:]} ]}}'
        await ask("POST", "/v1/messages:batch", content=batch, headers=JSON)
        sent = [draft.payload for draft in gateway.sent]
        assert sent == [text.encode(), text.encode(), b"", text.encode(), text.encode()]
        repeat = await ask("POST", "/v1/messages:batch", content=batch.replace('"m"', '"n"'), headers=JSON)
        assert repeat.json()["results"][3]["duplicate"], "a batch repeats a PUT"

    with_app(scenario)


def test_another_spelling_of_a_payload_in_json_is_another_message() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        first, other = (f'{{"topic":"orders","payload_json":12345678901234567890{digit}}}' for digit in "12")
        await ask("PUT", "/v1/messages/n", content=first, headers=JSON)
        refused(await ask("PUT", "/v1/messages/n", content=other, headers=JSON), 409, "name_conflict")

    with_app(scenario)


@pytest.mark.parametrize("payload", [{"order": 42}, [1], 42, 1.5, True])
def test_json_in_the_payload_is_refused_with_the_field_for_it(payload: Any) -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        document = refused(await ask("POST", "/v1/messages", json=ORDER | {"payload": payload}), 400, "bad_field")
        assert document["field"] == "payload" and "payload_json" in document["detail"]

    with_app(scenario)


@pytest.mark.parametrize("other", [{"payload": "x"}, {"payload_base64": "eA=="}, {"payload": None}])
def test_two_payloads_are_refused(other: dict[str, Any]) -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        message = {"topic": "orders", "payload_json": {}} | other
        document = refused(await ask("POST", "/v1/messages", json=message), 400, "both_payloads")
        assert next(iter(other)) in document["detail"] and "payload_json" in document["detail"]

    with_app(scenario)


def test_a_payload_in_json_has_the_limits_of_others() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        message = {"topic": "orders", "payload_json": "x" * 99}
        document = refused(await ask("POST", "/v1/messages", json=message), 413, "payload_too_large")
        assert document["field"] == "payload_json"
        deep = f'{{"topic": "orders", "payload_json": {"[" * 1000}{"]" * 1000}}}'
        refused(await ask("POST", "/v1/messages", content=deep, headers=JSON), 400, "bad_field")
        last = '"messages": [{"topic": "orders", "payload_json": 1}]}'
        for items in ("", '{"topic": "a"}', '{"topic": "a"}, {"topic": "b"}'):
            answer = await ask("POST", "/v1/messages:batch", content=f'{{"messages": [{items}], {last}', headers=JSON)
            refused(answer, 400, "bad_json")
        assert not gateway.sent

    with_app(scenario, limits=MessageLimits(max_payload_bytes=100))


# --- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["bestellung-für-17", "Übung-1", "注文-1", "\N{NO-BREAK SPACE}x"])
def test_an_idempotency_key_is_utf_8_and_the_same_in_a_batch(key: str) -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        headers = {b"Idempotency-Key": key.encode(), b"Content-Type": b"application/json"}
        first = await ask("POST", "/v1/messages", content=orjson.dumps(ORDER), headers=headers)
        batch = await ask("POST", "/v1/messages:batch", json={"messages": [ORDER | {"idempotency_key": key}]})
        if key.isprintable():
            assert (first.status_code, len(gateway.names), len(gateway.sent)) == (201, 1, 2)
            assert batch.json()["results"][0]["error"]["code"] == "idempotency_conflict", "of a batch, as it is parsed"
        else:
            refused(first, 400, "bad_field")
            assert batch.json()["results"][0]["error"]["code"] == "bad_field"

    with_app(scenario)


def test_a_header_or_query_that_is_no_utf_8_is_refused() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        headers = {b"Idempotency-Key": b"f\xfcr", b"Content-Type": b"application/json"}
        answer = await ask("POST", "/v1/messages", content=orjson.dumps(ORDER), headers=headers)
        assert refused(answer, 400, "bad_header")["field"] == "Idempotency-Key"
        assert not gateway.sent

    with_app(scenario)
