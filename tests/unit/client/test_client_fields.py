"""What a caller says of a message is meant: taken as that, or refused before a request, by the field's name."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import httpx
import orjson
import pytest

from duemq.client import Admin, AsyncClient, Client, Draft, DuemqError
from duemq.client.http.errors import BadField, BadHeader, BadPayload
from duemq.client.http.fields import idempotency_header
from duemq.client.http.requests import filter_fields, message_body
from duemq.client.http.values import MessageState, Record


def body_of(**options: Any) -> Any:
    return orjson.loads(message_body(Draft("t", **options)))


def requests_of(call: Any) -> list[httpx.Request]:
    """The requests that `call` makes of a client."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        receipt = {"id": "m", "status": "scheduled", "topic": "t", "deliver_at_ms": 1, "cancelled_at_ms": 1}
        return httpx.Response(201, json=receipt | {"results": [], "counts": {}})

    with Admin("http://duemq.test", transport=httpx.MockTransport(answer)) as client:
        call(client)
    return seen


def test_a_single_text_is_one_label_and_one_id() -> None:
    assert body_of(labels="eu")["labels"] == ["eu"]
    assert body_of(labels=("eu", 42))["labels"] == ["eu", "42"]
    (request,) = requests_of(lambda client: client.cancel_many("order-17"))
    assert orjson.loads(request.content)["ids"] == ["order-17"]
    (request,) = requests_of(lambda client: client.create_key("shop", "send", topics="orders.*"))
    assert (body := orjson.loads(request.content))["scopes"] == ["send"] and body["topics"] == ["orders.*"]


def test_an_int_is_its_digits() -> None:
    body = body_of(key=42, headers={"n": 7}, name=17, idempotency_key=9)
    assert [body[name] for name in ("key", "headers", "name", "idempotency_key")] == ["42", {"n": "7"}, "17", "9"]
    assert filter_fields({"key": 42, "label": 7, "shard": 3}) == {"key": "42", "label": "7", "shard": 3}
    (request,) = requests_of(lambda client: client.cancel(42))
    assert request.url.path == "/v1/messages/42"


@pytest.mark.parametrize(
    ("options", "error", "field"),
    [
        ({"key": 4.2}, BadField, "key"),
        ({"key": True}, BadField, "key"),
        ({"key": b"k"}, BadField, "key"),
        ({"key": "\udcff"}, BadField, "key"),
        ({"name": 1.0}, BadField, "name"),
        ({"labels": [None]}, BadField, "labels"),
        ({"labels": {"eu": 1}}, BadField, "labels"),
        ({"headers": {"a": 1.5}}, BadHeader, "headers"),
        ({"headers": {"a": True}}, BadHeader, "headers"),
        ({"headers": {1: "a"}}, BadHeader, "headers"),
        ({"headers": ["ab"]}, BadHeader, "headers"),
        ({"headers": "a=b"}, BadHeader, "headers"),
        ({"payload": {"total": Decimal("1.10")}}, BadPayload, "payload"),
        ({"payload": object()}, BadPayload, "payload"),
        ({"payload": "\udcff"}, BadPayload, "payload"),
    ],
)
def test_other_types_are_refused_before_the_request(options: dict[str, Any], error: type[Any], field: str) -> None:
    with pytest.raises(error) as caught:
        message_body(Draft("t", **options))
    assert isinstance(caught.value, DuemqError)
    refusal: Any = caught.value
    assert (refusal.field, refusal.status) == (field, None)
    assert field in str(refusal) or "header" in str(refusal)


def test_an_error_of_a_payload_says_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"decimal\.Decimal; .*json\.dumps") as caught:
        message_body(Draft("t", [Decimal(1)]))
    assert isinstance(caught.value, BadPayload)


@pytest.mark.parametrize(
    "filters", [{"key": None}, {"topic": None}, {"label": ["eu"]}, {"key": b"k"}, {"status": True}]
)
def test_a_filter_is_never_wider_than_what_was_said(filters: Any) -> None:
    with pytest.raises(BadField) as caught:
        requests_of(lambda client: client.cancel_many(filter={"topic": "orders"} | filters))
    assert caught.value.field in filters


def test_headers_with_repeats_bytes_or_nulls_go_as_a_list() -> None:
    assert body_of(headers={"a": "1", "b": b"2"})["headers"] == {"a": "1", "b": "2"}
    pairs = [("a", "1"), ("a", b"\xff"), ("b", None), ("ü", "é")]
    body = body_of(headers=pairs)
    assert "headers" not in body
    assert body["header_list"] == [["a", "1"], ["a", {"base64": "/w=="}], ["b", None], ["ü", "é"]]
    read = (("a", b"1"), ("a", b"\xff"), ("b", None), ("ü", "é".encode()))
    place = {"partition": 0, "offset": 1, "timestamp_ms": 2, "payload": ""}
    state = {"id": "m", "status": "scheduled", "topic": "t", "deliver_at_ms": 1}
    for value in (Record.from_json("t", place | body), MessageState.from_json(state | body)):
        assert value.header_list == read
        assert body_of(headers=value.header_list) == body | {"payload": ""}
    assert Record.from_json("t", place | {"headers": {"a": "1", "b": None}}).header_list == (("a", b"1"), ("b", None))


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"delay": 5}, "'deliver_after'"),
        ({"countdown": 5}, "'deliver_after'"),
        ({"eta": 5}, "'deliver_at'"),
        ({"deliver_afer": 5}, "'deliver_after'"),
        ({"idempotencykey": "k"}, "'idempotency_key'"),
        ({"colour": 1}, "it has delay_level, "),
    ],
)
def test_an_unknown_argument_names_the_function_and_the_right_one(arguments: dict[str, Any], hint: str) -> None:
    client: Any = Client("http://duemq.test")
    with pytest.raises(TypeError) as caught:
        client.send("t", b"", **arguments)
    assert str(caught.value).startswith(f"send() has no argument {next(iter(arguments))!r}")
    assert hint in str(caught.value)
    with pytest.raises(TypeError, match=r"reschedule\(\) has no argument"):
        client.reschedule("m", **arguments)


@pytest.mark.parametrize(
    ("key", "header"),
    [
        ("bestellung-für-17", "bestellung-für-17"),
        ("注文", "注文"),
        (17, "17"),
        ("two words", "two words"),
        (' "padded\\" ', r'" \"padded\\\" "'),
        ('"quoted"', r'"\"quoted\""'),
    ],
)
def test_an_idempotency_key_goes_out_as_utf_8(key: Any, header: str) -> None:
    (request,) = requests_of(lambda client: client.send("t", "x", idempotency_key=key))
    assert dict(request.headers.raw)[b"Idempotency-Key"] == header.encode()


def test_an_idempotency_key_that_no_header_can_hold_is_refused() -> None:
    with pytest.raises(BadField, match="printable"):
        idempotency_header("a\nb")


@pytest.mark.parametrize(
    "url", ["foo bar", "http://foo bar", "http://h:99999", "http://h:x", "http://", "ftp://h", "a\tb"]
)
def test_a_client_of_no_server_is_refused_when_it_is_made(url: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match="not the URL of a server"):
            kind(url)


def test_a_name_of_dots_alone_stays_a_name_on_its_way() -> None:
    (request,) = requests_of(lambda client: client.cancel(".."))
    assert request.url.raw_path == b"/v1/messages/%2E%2E"
