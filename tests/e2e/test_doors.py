"""One message by each door of a real server: it is the same message, or is refused with the same code."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from duemq.client import Client, DuemqError
from duemq.client.http.errors import BadField, BadHeader
from duemq.client.http.fields import HeaderList
from tests.e2e.server import Server, run

pytestmark = pytest.mark.slow  # starts processes

HEADERS: HeaderList = (
    ("retry_topic-attempts", b"\x00\x00\x00\x01"), ("retry_topic-attempts", b"\x01\xa1\xfd\x8d\xc8\x90"),
    ("kafka_dlt-exception-message", b"first"), ("kafka_dlt-exception-message", "zweitens, für später".encode()),
)  # fmt: skip
NAMES = ("order/2027/17", "ann@example.com", "{6f9619ff}", "a+b", "sha256=abc", "größe-1", "注文 1", "100%25")


def own(client: Client, topic: str) -> list[tuple[str | None, bytes | None, HeaderList]]:
    """Key, value and own headers of each record."""
    records = client.records(topic, wait=timedelta(seconds=20)).records
    return [
        (one.key, one.value, tuple(pair for pair in one.header_list if not pair[0].startswith("duemq-")))
        for one in records
    ]


def test_headers_arrive_as_they_were_by_each_door(shared_server: Server) -> None:
    encoded = [(name, base64.b64encode(value or b"").decode()) for name, value in HEADERS]
    listed = [[name, {"base64": text}] for name, text in encoded]
    options = [f"--header-base64={name}={text}" for name, text in encoded]
    with Client(shared_server.url) as client, httpx.Client(base_url=shared_server.url) as http:
        for topic, delay in (("doors.now", {}), ("doors.later", {"deliver_after": "100ms"})):
            message = {"topic": topic, "payload": "x", "key": "42", "header_list": listed} | delay
            assert http.post("/v1/messages", json=message).status_code == 201
            assert http.post("/v1/messages:batch", json={"messages": [message]}).json()["accepted"] == 1
            client.send(topic, "x", key=42, headers=HEADERS, **delay)  # type: ignore[arg-type]
            after = ["--after", "100ms"] if delay else []
            assert run("send", topic, "x", "--key", "42", *options, *after, url=shared_server.url).returncode == 0
            found: list[Any] = []
            while len(found) < 4:
                found = own(client, topic)
            assert found == [("42", b"x", HEADERS)] * 4
        held = client.send("doors.held", None, headers=[*HEADERS, ("n", None)], deliver_after="1h")
        assert client.get(held.id).state.header_list == (*HEADERS, ("n", None))
        held.deliver_now()
        (record,) = client.records("doors.held", wait=timedelta(seconds=20)).records
        assert record.value is None and record.header_list[-1] == ("n", None)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_one_message_by_each_door(shared_server: Server, name: str) -> None:
    body = {"topic": "doors.named", "payload": "x", "deliver_after": "1h"}
    with Client(shared_server.url) as client, httpx.Client(base_url=shared_server.url) as http:
        first = client.send("doors.named", "x", deliver_after="1h", name=name)
        path = f"/v1/messages/{quote(name, safe='')}"
        assert http.put(path, json=body).json()["id"] == first.id
        batch = http.post("/v1/messages:batch", json={"messages": [body | {"name": name}]}).json()
        assert batch["results"][0]["id"] == first.id and batch["results"][0]["duplicate"]
        assert client.get(name).id == client.reschedule(name, deliver_after="2h").id == first.id
        assert json.loads(run("get", name, "--json", url=shared_server.url).stdout)["id"] == first.id
        assert client.cancel_many([name]).results[0].id == http.delete(path).json()["id"] == first.id


@pytest.mark.parametrize("key", ["bestellung-für-17", "Übung-1", "注文-1", '"quoted"', " padded "])
def test_an_idempotency_key_is_one_by_each_door(shared_server: Server, key: str) -> None:
    body = {"topic": "doors.keyed", "payload": "x", "deliver_after": "1h"}
    with Client(shared_server.url) as client:
        first = client.send("doors.keyed", "x", deliver_after="1h", idempotency_key=key)
        assert client.send("doors.keyed", "x", deliver_after="1h", idempotency_key=key).id == first.id
        answer = httpx.post(
            f"{shared_server.url}/v1/messages:batch", json={"messages": [body | {"idempotency_key": key}]}
        ).json()["results"][0]
        # A batch judges a message as it is parsed, a POST as it is spelt: the key is the same one.
        assert answer["error"]["code"] == "idempotency_conflict" and answer["error"]["id"] == first.id


def test_json_is_delivered_as_it_was_spelt(shared_server: Server) -> None:
    text = '{"order": 42 , "total": 0.10000000000000000001, "big": 123456789012345678901234567890}'
    message = f'{{"topic": "doors.json", "payload_json": {text}}}'
    json_type = {"Content-Type": "application/json"}
    with httpx.Client(base_url=shared_server.url, headers=json_type) as http, Client(shared_server.url) as client:
        assert http.post("/v1/messages", content=message).status_code == 201
        assert http.post("/v1/messages:batch", content=f'{{"messages": [{message}]}}').json()["accepted"] == 1
        refused = http.post("/v1/messages", json={"topic": "doors.json", "payload": {"order": 42}}).json()
        assert refused["code"] == "bad_field" and "payload_json" in refused["detail"]
        assert [one.text for one in client.records("doors.json", wait=timedelta(seconds=20)).records] == [text] * 2


@pytest.mark.parametrize(
    ("options", "http_options", "words", "code", "error"),
    [
        ({"name": "a\nb"}, {"name": "a\nb"}, ["--name", "a\nb"], "bad_field", BadField),
        ({"headers": [("", b"x")]}, {"header_list": [["", "x"]]}, None, "bad_header", BadHeader),
        ({"headers": {"duemq-id": "x"}}, {"headers": {"duemq-id": "x"}}, ["--header", "duemq-id=x"], "bad_header",
         BadHeader),
        ({"labels": ["a,b"]}, {"labels": ["a,b"]}, ["--label", "a,b"], "bad_field", BadField),
        ({"headers": {"a": 1.5}}, {"headers": {"a": 1.5}}, None, "bad_header", BadHeader),
        ({"key": 1.5}, {"key": 1.5}, None, "bad_field", BadField),
    ],
)  # fmt: skip
def test_what_one_door_refuses_all_refuse(
    shared_server: Server, options: Any, http_options: Any, words: Any, code: str, error: type[DuemqError]
) -> None:
    body = {"messages": [{"topic": "doors.refused", "payload": "x"} | http_options]}
    answer = httpx.post(f"{shared_server.url}/v1/messages:batch", json=body).json()["results"][0]
    assert answer["error"]["code"] == code
    with Client(shared_server.url) as client, pytest.raises(error):
        client.send("doors.refused", "x", **options)
    if words is not None:
        ended = run("send", "doors.refused", "x", *words, "--json", url=shared_server.url)
        assert (ended.returncode, json.loads(ended.stdout)["error"]["code"]) == (7, code)
