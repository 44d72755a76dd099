"""What comes with a request and is not read is refused, on every endpoint, and nothing is done."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.model.errors import Rejected
from duemq.proxy.api.endpoint import Endpoint
from duemq.proxy.gateway.base import ChangeOutcome
from duemq.proxy.request.request_rules import RequestRules
from duemq.proxy.table import ENDPOINTS
from duemq.web.problem import CODES
from tests.support.http.http_site import JSON, ORDER, TEXT, Ask, FakeGateway, app_over, refused, with_app

BODIES = [one for one in ENDPOINTS if one.body is not None]
BODILESS = [one for one in ENDPOINTS if one.body is None]
JSON_ONLY = [one for one in BODIES if not one.raw_body]


def path_of(endpoint: Endpoint) -> str:
    return re.sub(r"{\w+}", "m1", endpoint.path)


def name_of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def refuses(endpoint: Endpoint, status: int, code: str, *, field: str | None = None, **options: Any) -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        document = refused(await ask(endpoint.method, path_of(endpoint), **options), status, code)
        assert field is None or document["field"] == field
        assert not gateway.sent and not gateway.changes and not gateway.queries

    with_app(scenario)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=name_of)
def test_an_unknown_query_parameter_is_refused(endpoint: Endpoint) -> None:
    if not endpoint.path.endswith(("records", "ids")):  # these look for their topic or file first
        headers = JSON if endpoint.body is not None else {}
        refuses(endpoint, 400, "bad_query", params={"dry_run": "true"}, headers=headers)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=name_of)
def test_a_header_of_a_raw_message_is_refused_elsewhere(endpoint: Endpoint) -> None:
    headers = {"duemq-deliver-after": "1h"} | (JSON if endpoint.body is not None else {})
    content = orjson.dumps(ORDER) if endpoint.raw_body else b""
    refuses(endpoint, 400, "bad_header", field="duemq-deliver-after", headers=headers, content=content)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=name_of)
def test_a_condition_that_cannot_be_met_is_refused(endpoint: Endpoint) -> None:
    refuses(endpoint, 400, "bad_header", field="If-Match", headers={"If-Match": '"x"'})


@pytest.mark.parametrize("endpoint", BODILESS, ids=name_of)
def test_a_body_is_refused_where_none_is_read(endpoint: Endpoint) -> None:
    async def parts(text: bytes) -> AsyncIterator[bytes]:
        yield b""
        yield text

    refuses(endpoint, 400, "unexpected_body", content=b'{"deliver_at": 5}', headers=JSON)
    refuses(endpoint, 400, "unexpected_body", content=parts(b"x"))


def test_an_empty_body_is_none_however_it_is_sent() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        yield b""

    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        for content in (b"", nothing()):
            assert (await ask("POST", "/v1/messages/m1:deliver-now", content=content)).status_code == 200
        assert (await ask("DELETE", "/v1/messages/m1", headers={"Content-Length": "0"})).status_code == 200

    with_app(scenario)


@pytest.mark.parametrize("endpoint", JSON_ONLY, ids=name_of)
@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "", None, "application/jsonx"])
def test_only_json_is_read_as_json(endpoint: Endpoint, media: str | None) -> None:
    headers = {} if media is None else {"Content-Type": media}
    refuses(endpoint, 415, "unsupported_media_type", field="Content-Type", headers=headers, content=b"{}")


@pytest.mark.parametrize("endpoint", BODIES, ids=name_of)
def test_a_coded_body_is_refused(endpoint: Endpoint) -> None:
    for media in (JSON, TEXT):
        headers = media | {"Content-Encoding": "gzip"}
        content = gzip.compress(orjson.dumps(ORDER))
        if media is JSON or endpoint.raw_body:
            refuses(endpoint, 415, "unsupported_media_type", field="Content-Encoding", headers=headers, content=content)


def test_what_says_json_is_json_and_utf_8() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        async def send(media: str | None, **more: str) -> Any:
            headers = more if media is None else {"Content-Type": media, **more}
            return await ask("POST", "/v1/messages", content=orjson.dumps(ORDER), headers=headers)

        for good in (
            'application/json; charset="UTF-8"',
            "Application/JSON;charset=utf8",
            "application/cloudevents+json",
        ):
            assert (await send(good)).status_code == 201
        assert (await send("application/json", **{"Content-Encoding": "identity"})).status_code == 201
        refused(await send("application/json; charset=iso-8859-1"), 415, "unsupported_media_type")
        refused(await send(None), 415, "unsupported_media_type")
        refused(await send("text/plain"), 400, "missing_topic")
        twice = [("Content-Type", "image/png"), ("Content-Type", "application/json")]
        refused(await ask("POST", "/v1/messages", content=b"x", headers=twice), 400, "bad_header")
        raw = await ask("POST", "/v1/messages", content=b"x", headers={"duemq-topic": "orders"})
        assert raw.status_code == 201, "its headers say that it is raw"

    with_app(scenario)


def test_what_comes_behind_a_body_is_no_field() -> None:
    """A server adds the fields of trailers to the headers it gave before."""

    async def scenario(gateway: FakeGateway) -> None:
        headers = [(b"content-type", b"image/png"), (b"duemq-topic", b"orders")]
        scope = {"type": "http", "method": "POST", "path": "/v1/messages", "headers": headers, "query_string": b""}

        async def receive() -> Any:
            headers.extend([(b"duemq-deliver-after", b"1h"), (b"duemq-key", b"k")])
            return {"type": "http.request", "body": b"x"}

        async def send(message: Any) -> None:
            pass

        await app_over(gateway)(scope, receive, send)
        assert (gateway.sent[0].due, gateway.sent[0].key) == (None, None)

    asyncio.run(scenario(FakeGateway()))


def test_a_key_in_quotes_is_the_key_and_two_keys_are_none() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        async def send(*keys: str) -> Any:
            return await ask("POST", "/v1/messages", json=ORDER, headers=[("Idempotency-Key", key) for key in keys])

        assert (await send("a")).status_code == 201
        assert (await send('"a"')).json()["duplicate"] is True
        assert (await send(r'"a\"b\\"')).status_code == 201
        assert (await send('a"b\\')).json()["duplicate"] is True
        for bad in ('"a', '""', '"a"b"', r'"a\n"', '"a";p=1', '"'):
            refused(await send(bad), 400, "bad_field")
        refused(await send("a", "a"), 400, "bad_header")

    with_app(scenario)


def test_a_location_holds_behind_a_prefix() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        gateway.outcome = ChangeOutcome("m1", None)
        for method, path, body in (
            ("DELETE", "messages/order:17", None), ("POST", "messages/order-17:deliver-now", None),
            ("POST", "dlq/m1:redrive", None), ("PATCH", "messages/m1", {"deliver_after": 1}),
        ):  # fmt: skip
            answer = await ask(method, f"/v1/{path}", json=body)
            assert answer.status_code == 202
            seen = answer.url.copy_with(path=f"/duemq/v1/{path}")
            assert seen.join(answer.headers["Location"]).path == "/duemq/v1/messages/m1"

    with_app(scenario)


def test_no_cache_keeps_what_is_read() -> None:
    async def scenario(gateway: FakeGateway, ask: Ask) -> None:
        for path in (
            "/v1/messages/m1",
            "/v1/messages?limit=5",
            "/v1/cluster",
            "/v1/messages/a%20b",
            "/v1/topics/a%20b",
        ):
            assert (await ask("GET", path)).headers["Cache-Control"] == "no-store"

    with_app(scenario)


NAMES = st.sampled_from(
    [b"content-type", b"content-length", b"transfer-encoding", b"content-encoding", b"if-match", b"duemq-\xff", b"x"]
)


@given(st.lists(st.tuples(NAMES, st.binary(max_size=12) | st.just(b"application/json;charset=")), max_size=6))
def test_whatever_headers_say_they_are_taken_or_refused(headers: list[tuple[bytes, bytes]]) -> None:
    scope = {"headers": headers, "query_string": b""}
    for body, raw in ((True, False), (True, True), (False, False)):
        try:
            RequestRules((), body=body, raw=raw).check(scope)
        except Rejected as error:
            assert CODES[error.code].status in (400, 415)


def test_a_small_body_of_very_many_values_is_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.proxy.request.json_body.parse_json", None)
    for path, values in (("messages:batch", 510_000), ("messages:cancel", 60_000), ("imports:batch", 210_000)):
        endpoint = next(one for one in ENDPOINTS if one.path == f"/v1/{path}")
        content = b'{"messages":[' + b",".join([b"[]"] * values) + b"]}"
        refuses(endpoint, 413, "batch_too_large", content=content, headers=JSON)
