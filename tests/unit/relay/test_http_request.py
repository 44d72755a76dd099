"""Requests: what of a message arrives, and that nobody who sends messages can speak in another's name."""

from __future__ import annotations

import json
from typing import Any, Literal

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duemq.model.destinations.destination import Credentials, read_credentials, read_destination
from duemq.model.destinations.http import HttpOptions
from duemq.model.errors import Rejected
from duemq.relay.http.request import OutgoingRequest, RequestFormat
from tests.support.outlets.http_site import HttpRequest, received_of
from tests.support.outlets.site import out_message

NOW_S = 1_795_000_000.5
NEVER = (
    "host", "Content-Length", "transfer-encoding", "connection", "authorization", "cookie", "webhook-id",
    "webhook-signature", "webhook-anything", "duemq-key", "duemq-headers", "proxy-authorization", "te", "upgrade",
    "expect", "x-forwarded-for", "x_forwarded_for", "forwarded", "idempotency-key", "content_length", "ce-id",
    "sec-fetch-site", ":authority", "user-agent", "content_type",
    "x-remote-user", "Remote_User", "x-auth-request-email", "x-goog-authenticated-user-email", "x-amzn-oidc-identity",
    "cf-access-authenticated-user-email", "x-ms-client-principal-name", "x-middleware-subrequest", "ssl-client-verify",
)  # fmt: skip
FRAMING = {"host", "content-length", "transfer-encoding", "connection", "cookie"}

names = st.one_of(
    st.sampled_from(NEVER), st.text(max_size=12), st.sampled_from(["a", "A", "trace-parent", "content-type"])
)
values = st.one_of(
    st.none(), st.binary(max_size=30), st.text(max_size=20).map(lambda text: text.encode(errors="replace"))
)


def request_of(
    options: HttpOptions | None = None, credentials: Credentials | None = None, **message: Any
) -> OutgoingRequest:
    return RequestFormat(options or HttpOptions(), credentials or Credentials()).request(out_message(**message), NOW_S)


def header(request: OutgoingRequest, name: str) -> str:
    (value,) = [value for each, value in request.headers if each == name]
    return value


def assert_wellformed(request: OutgoingRequest) -> None:
    for name, value in request.headers:
        assert name and name == name.lower() and not set(name) & set("\r\n\0: "), name
        assert not set(value) & set("\r\n\0") and value.isascii() and value == value.strip(), (name, value)
    single = [name for name, _ in request.headers if name.startswith(("webhook-", "duemq-", "ce-", "content-"))]
    assert len(set(single)) == len(single)
    assert not {name for name, _ in request.headers} & {
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "cookie",
    }


@given(st.lists(st.tuples(names, values), max_size=6), values, st.none() | st.binary(max_size=50))
@example([("a", b"1\r\nhost: evil")], b"k\r\nx: y", b"")
@example([("duemq-x", b"1"), ("x-duemq-topic", b"1")], None, b"")
@pytest.mark.heavy
def test_every_message_arrives_exactly_and_sets_nothing_else(
    headers: list[tuple[str, bytes | None]], key: bytes | None, payload: bytes | None
) -> None:
    message = out_message(key=key, payload=payload, headers=headers)
    request = RequestFormat(HttpOptions(), Credentials()).request(message, NOW_S)
    assert_wellformed(request)
    received = received_of(HttpRequest("POST", "/", request.headers, request.body))
    assert (received.id, received.key, received.payload) == (message.id, key, payload)
    without_type = [pair for pair in message.headers if pair[0] != "content-type"]
    assert received.headers in (message.headers, without_type)
    if without_type != message.headers and received.headers == without_type:
        assert header(request, "content-type").encode() == dict(message.headers)["content-type"]


@pytest.mark.parametrize("name", NEVER)
def test_a_message_sets_none_of_these(name: str) -> None:
    request = request_of(headers=[(name, b"evil"), ("ok", b"1")])
    assert "evil" not in [value for _, value in request.headers]
    assert header(request, "ok") == "1"


def test_an_id_that_anybody_wrote_ends_no_line() -> None:
    message = out_message()
    message.record.headers = [("duemq-id", b"a\r\nhost: evil \xff"), ("duemq-due", b"12\r\nx: y")]
    request = RequestFormat(HttpOptions(), Credentials()).request(message, NOW_S)
    assert_wellformed(request)
    assert header(request, "webhook-id").startswith("a%0D%0Ahost:%20evil")


def test_traces_pass_on() -> None:
    headers = [
        ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("tracestate", b"a=b"),
        ("baggage", b"k=v"),
    ]
    request = request_of(headers=headers)
    assert [(name, header(request, name).encode()) for name, _ in headers] == headers
    assert "duemq-headers" not in dict(request.headers)


def test_credentials_win_over_options_and_these_over_messages() -> None:
    options = HttpOptions(headers={"X-Tenant": "of the options", "X-Kind": "of the options", "X-Source": "{{ topic }}"})
    credentials = read_credentials({"headers": {"x-tenant": "secret"}, "username": "u", "password": "p"})
    own = [("x-tenant", b"of the message"), ("x-kind", b"of the message")]
    request = request_of(options, credentials, headers=own)
    assert header(request, "x-tenant") == "secret"
    assert header(request, "x-kind") == "of the options"
    assert header(request, "x-source") == "orders"
    assert header(request, "authorization") == "Basic dTpw"


@pytest.mark.parametrize("written", ["x_tenant", "X_Kind", "x-Kind", "X_API-KEY", "x_api_key"])
def test_no_spelling_of_a_header_gets_past_credentials_and_options(written: str) -> None:
    options = HttpOptions(headers={"x-tenant": "ours", "X_Kind": "ours", "x_api-key": "of the options"})
    credentials = read_credentials({"headers": {"x-api-key": "ours"}})
    request = request_of(options, credentials, headers=[(written, b"evil"), ("ok", b"1")])
    values = [value for name, value in request.headers if name.startswith("x") and name != "x-ok"]
    assert values == ["ours", "ours", "ours"]
    assert ["ok", "1"] in json.loads(header(request, "duemq-headers"))


def test_only_the_headers_of_messages_that_are_named_become_headers() -> None:
    options = HttpOptions(message_headers=("Trace_Parent", "x-team"))
    own = [("trace-parent", b"1"), ("X_Team", b"2"), ("x-other", b"3")]
    request = request_of(options, headers=own)
    assert {name for name, _ in request.headers} & {"trace-parent", "x_team", "x-other"} == {"trace-parent", "x_team"}
    assert json.loads(header(request, "duemq-headers")) == [[name, value.decode()] for name, value in own]


def test_a_declaration_without_named_headers_is_as_the_last_version_reads_it() -> None:
    assert "message_headers" not in HttpOptions().model_dump(mode="json")
    assert HttpOptions(message_headers=("a",)).model_dump(mode="json")["message_headers"] == ["a"]


@given(st.text(max_size=30), values)
@example('", "admin": true, "x": "', b"\xff")
@example("</a><script>", b"&admin=1")
def test_nothing_breaks_out_of_a_body(text: str, value: bytes | None) -> None:
    message: dict[str, Any] = {"key": text.encode(errors="replace"), "payload": value, "headers": [("h", value)]}
    template = '{"k": "{{ key }}", "h": "{{ header.H }}", "p": "{{payload}}", "j": {{ payload_json }}}'
    body = request_of(HttpOptions(content_type="application/json", body=template), **message).body
    parsed = json.loads(body)
    plain = (value or b"").decode(errors="replace")
    assert set(parsed) == {"k", "h", "p", "j"}
    assert (parsed["k"], parsed["h"], parsed["p"]) == (text.encode(errors="replace").decode(), plain, plain)
    form = request_of(
        HttpOptions(content_type="application/x-www-form-urlencoded", body="k={{ key }}&p={{ payload }}"), **message
    ).body.decode()
    assert form.count("&") == 1 and form.count("=") == 2
    xml = request_of(HttpOptions(content_type="text/xml", body="<a b='{{ key }}'>{{ payload }}</a>"), **message).body
    assert xml.count(b"<") == xml.count(b">") == 2 and xml.count(b"'") == 2


@given(values)
@example(b"\"</order><order admin='1'>evil\"")
@example(b'"x&admin=1&y="')
@example(b'[1,\n"\\n",\r\n{"a": "\\u2028"}]')
def test_no_json_payload_breaks_out_of_another_form(payload: bytes | None) -> None:
    def body_of(content_type: str, body: str) -> str:
        return request_of(HttpOptions(content_type=content_type, body=body), payload=payload).body.decode()

    xml = body_of("application/xml; charset=utf-8", "<a b='{{ payload_json }}'>{{ payload_json }}</a>")
    assert xml.count("<") == xml.count(">") == 2 and xml.count("'") == 2
    form = body_of("application/x-www-form-urlencoded", "doc={{ payload_json }}&admin=0")
    assert form.count("&") == 1 and form.count("=") == 2
    for content_type in ("application/x-ndjson", "application/jsonl", "application/json-seq"):
        line = body_of(content_type, '{"text": "{{ payload }}", "doc": {{ payload_json }}}')
        assert not set(line) & set("\r\n")
        assert set(json.loads(line)) == {"text", "doc"}
    assert set(json.loads(body_of("text/json", '{"text": "{{ payload }}"}'))) == {"text"}
    # Declared before a content type was asked for.
    assert set(json.loads(body_of("application/octet-stream", ' {"text": "{{ payload }}"}'))) == {"text"}


@pytest.mark.parametrize(
    ("content_type", "body", "says"),
    [
        ("application/octet-stream", '{"text": "{{ payload }}"}', "text/plain"),
        ("text/csv", "{{ key }},1", "text/plain"),
        ("application/json; charset=utf-16", '"{{ key }}"', "charset"),
        ("application/json", '{"n": {{ key }}}', "between quotes"),
        ("application/x-ndjson", '{"a\\"": 1, "n": {{ header.n }}}', "between quotes"),
        ("application/json", '{"p": "{{ payload_json }}"}', "outside of quotes"),
        ("application/json", '{"p": "\\{{ key }}"}', "backslash"),
        ("text/html", "<a href={{ key }}>", "between quotes"),
        ("application/soap+xml", "<a b='>' c={{ key }}/>", "between quotes"),
    ],
)
def test_a_body_that_values_could_break_out_of_is_refused(content_type: str, body: str, says: str) -> None:
    options = {"content_type": content_type, "body": body}
    with pytest.raises(Rejected, match=says) as refusal:
        read_destination({"name": "hook", "url": "https://hook.example/", "options": options})
    assert refusal.value.field == "options.body"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/plain", "{{ key }}"),
        ("application/octet-stream", "no placeholder"),
        ("application/json; charset=UTF-8", '{"k\\"": "{{ key }}", "at": {{ due_ms }}, "p": {{ payload_json }}}'),
        ("application/vnd.api+json", '[{{ attempt }}, "{{ id }}"]'),
        ("text/html", "<a href=\"{{ key }}\" title='{{ id }}'>{{ payload }}</a>"),
        ("application/x-www-form-urlencoded", "{{ key }}={{ payload_json }}"),
    ],
)
def test_bodies_that_hold_their_values_are_taken(content_type: str, body: str) -> None:
    options = {"content_type": content_type, "body": body}
    read_destination({"name": "hook", "url": "https://hook.example/", "options": options})


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_nothing_breaks_out_of_a_header(key: bytes, value: bytes) -> None:
    options = HttpOptions(headers={"X-Key": "k={{ key }}; h={{ header.h }}", "X-Id": "{{ id }}"})
    request = request_of(options, key=key, headers=[("h", value)])
    assert_wellformed(request)
    assert header(request, "x-key").startswith("k=")


def test_placeholders() -> None:
    template = (
        "{{id}} {{ key }} {{ topic }} {{ due }} {{ due_ms }} {{ attempt }} {{ header.none }}|{{ payload }} }} { {"
    )
    request = request_of(HttpOptions(body=template, content_type="text/plain"), key=b"k", payload=b"<p>", due_ms=1_234)
    expected = f"{out_message().id} k orders 1970-01-01T00:00:01.234Z 1234 1 |<p> }}}} {{ {{"
    assert request.body.decode() == expected
    assert header(request, "content-type") == "text/plain"


def test_json_payloads_stand_in_a_body_as_they_are() -> None:
    options = HttpOptions(content_type="application/json", body='{"event": {{ payload_json }}}')
    assert request_of(options, payload=b'{"a": [1, 2.50]}').body == b'{"event": {"a": [1, 2.50]}}'
    assert request_of(options, payload=b'no "json"').body == b'{"event": "no \\"json\\""}'


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"headers": {"Host": "evil"}}, "options.headers"),
        ({"headers": {"content_length": "1"}}, "options.headers"),
        ({"headers": {"Idempotency-Key": "1"}}, "options.headers"),
        ({"headers": {"webhook-id": "1"}}, "options.headers"),
        ({"headers": {"authorization": "Bearer x"}}, "options.headers"),
        ({"headers": {"content-type": "text/plain"}}, "options.headers"),
        ({"headers": {"a b": "x"}}, "options.headers"),
        ({"headers": {"a": "x\r\ny: z"}}, "options.headers"),
        ({"headers": {"a": "1", "A": "2"}}, "options.headers"),
        ({"headers": {"a": "{{ payload }}"}}, "options.headers"),
        ({"headers": {"a": "{{ nothing }}"}}, "options.headers"),
        ({"headers": {"a": "x" * 2_001}}, "options.headers"),
        ({"headers": {f"a{number}": "x" for number in range(51)}}, "options.headers"),
        ({"body": "{{ key.__class__ }}"}, "options.body"),
        ({"body": "{{ 7 * 7 }}"}, "options.body"),
        ({"body": "{{"}, "options.body"),
        ({"body": "x" * 65_537}, "options.body"),
        ({"body": "x", "format": "cloudevents-binary"}, "options."),
        ({"content_type": "text/plain\r\nx: y"}, "options.content_type"),
        ({"on_4xx": "drop"}, "options.on_4xx"),
        ({"method": "GET"}, "options.method"),
        ({"message_headers": ["Authorization"]}, "options.message_headers"),
    ],
)
def test_options_that_are_none_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(Rejected) as refusal:
        read_destination({"name": "hook", "url": "https://hook.example/", "options": options})
    assert (refusal.value.field or "").startswith(field.rstrip("."))


@pytest.mark.parametrize("fields", [
    {"headers": {"host": "x"}}, {"headers": {"a": "x\r\ny: z"}}, {"headers": {"a:": "x"}}, {"token": "x\r\ny: z"},
    {"headers": {"duemq-id": "x"}}, {"headers": {"a": " x"}}, {"headers": {"Content-Type": "text/plain"}},
])  # fmt: skip
def test_credentials_that_would_break_a_request_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(Rejected):
        read_credentials(fields)


class TestCloudEvents:
    BINARY, STRUCTURED = "cloudevents-binary", "cloudevents-structured"

    @staticmethod
    def request(form: Literal["cloudevents-binary", "cloudevents-structured"], **message: Any) -> OutgoingRequest:
        return request_of(HttpOptions(format=form, type="com.example.due"), **message)

    def test_binary(self) -> None:
        own = [("content-type", b"image/png")]
        request = self.request("cloudevents-binary", key='ü "k"'.encode(), payload=b"\xff", headers=own)
        assert request.body == b"\xff"
        assert {name: value for name, value in request.headers if name.startswith(("ce-", "content-"))} == {
            "ce-specversion": "1.0", "ce-id": out_message().identity, "ce-source": "/duemq/orders",
            "ce-type": "com.example.due", "ce-time": "2026-11-18T11:06:40.000Z", "ce-subject": "%C3%BC%20%22k%22",
            "content-type": "image/png",
        }  # fmt: skip

    @pytest.mark.parametrize(("content_type", "payload", "data"), [
        (b"application/json", b'{"a": 1}', {"data": {"a": 1}}), (b"application/json", b"{", {"data_base64": "ew=="}),
        (b"text/plain", "ü".encode(), {"data": "ü"}), (b"text/plain", b"\xff", {"data_base64": "/w=="}),
        (b"a/b", b"", {}),
    ])  # fmt: skip
    def test_structured(self, content_type: bytes, payload: bytes, data: dict[str, Any]) -> None:
        request = self.request("cloudevents-structured", payload=payload, headers=[("content-type", content_type)])
        assert header(request, "content-type") == "application/cloudevents+json; charset=utf-8"
        assert orjson.loads(request.body) == data | {
            "specversion": "1.0", "id": out_message().identity, "source": "/duemq/orders", "type": "com.example.due",
            "time": "2026-11-18T11:06:40.000Z", "datacontenttype": content_type.decode(),
        }  # fmt: skip

    @given(values, st.binary(max_size=30))
    def test_no_key_breaks_out(self, key: bytes, payload: bytes) -> None:
        assert_wellformed(self.request("cloudevents-binary", key=key, payload=payload))
        orjson.loads(self.request("cloudevents-structured", key=key, payload=payload).body)
