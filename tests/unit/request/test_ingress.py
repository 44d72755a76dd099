from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from duemq.model.errors import Rejected
from duemq.model.messages.message import Draft, schedule_frame
from duemq.model.messages.names import fingerprint
from duemq.model.messages.record import unpack_headers
from duemq.model.messages.row import read_row, row_of
from duemq.model.timing import TimePolicy
from duemq.proxy.request.caller_names import client_name, idempotency_name
from duemq.proxy.request.ingress import Ingress, MessageLimits
from duemq.proxy.request.json_body import parse_json

NOW = 1_795_255_200_123
MIB = 1 << 20
GATE = Ingress(MessageLimits())
BAD_FIELDS: list[tuple[str, str, list[object]]] = [
    ("payload", "payload_too_large", ["x" * (MIB + 1), "é" * (MIB // 2 + 1)]),
    ("payload", "bad_field", [7, True, {}]),
    ("payload_base64", "payload_too_large", [b64encode(b"x" * (MIB + 1)).decode()]),
    ("payload_base64", "bad_base64", ["***", "abc", "eA==eA==!", "eA", "é", "eA==\n", 7, [], None]),
    ("headers", "bad_header", [[], "a: b", None, {"a": 1}, {"a": None}, {"a": ["b"]}, {"": "v"}, {"n" * 257: "v"}]),
    ("headers", "bad_header", [{n: "x"} for n in ("duemq-id", "duemq-due", "DUEMQ-Attempt", "duemq-mine")]),
    ("headers", "bad_header", [{n: "x"} for n in ("x-duemq-topic", "X-Duemq-Reason", "x-duemq-return", "x-duemq-new")]),
    ("headers", "bad_header", [{f"h{i}": "" for i in range(65)}, {"big": "x" * 65_536}]),
    ("labels", "bad_field", [3, "a", None, [1], [""], ["a,b"], ["a\n"], ["x" * 129], [f"l{i}" for i in range(17)]]),
    ("key", "bad_field", [5, None, [], "é" * 16_385]),
    ("expires_at", "bad_time", ["never", None, 10**30, NOW - 1]),
    ("expires_at", "naive_time", ["2031-01-01T00:00:00"]),
    ("deliver_at", "naive_time", ["2031-01-01T00:00:00"]),
    ("deliver_after", "negative_delay", [-1]),
    ("delay_level", "bad_level", ["3", True]),
]


def refusal(item: Any, gate: Ingress = GATE) -> Rejected:
    with pytest.raises(Rejected) as refused:
        gate.draft(item, NOW)
    assert refused.value.detail
    return refused.value


def code_of(item: Any, gate: Ingress = GATE) -> str:
    return refusal(item, gate).code


def message(**change: Any) -> dict[str, Any]:
    return {"topic": "orders", **change}


def test_a_full_message() -> None:
    draft = GATE.draft(
        message(
            payload="grüße\0",
            key="k",
            headers={"X-Trace": "ä", "empty": ""},
            labels=["a", "b c"],
            deliver_at=NOW + 5,
            expires_at=NOW + 5,
        ),
        NOW,
    )
    assert draft[:4] == ("orders", "grüße\0".encode(), NOW + 5, b"k")
    assert unpack_headers(draft.headers, 0, draft.header_count, len(draft.headers)) == (
        ("X-Trace", "ä".encode()),
        ("empty", b""),
    )
    assert (draft.labels, draft.expires, draft.name, draft.fingerprint) == (("a", "b c"), NOW + 5, b"", b"")


def test_a_client_tells_what_died_in_a_topic_of_dead_letters_alone() -> None:
    death = {"x-duemq-topic": "orders"}
    assert GATE.draft({"topic": "dlq.billing", "headers": death}, NOW).header_count == 1
    assert GATE.draft({"topic": "orders", "headers": {"x-duemq-redrives": "1"}}, NOW).header_count == 1
    for topic in ("orders", "dlqx"):
        with pytest.raises(Rejected, match="duemq's own"):
            GATE.draft({"topic": topic, "headers": death}, NOW)


def test_a_bare_message_goes_straight_to_its_target() -> None:
    assert GATE.draft({"topic": "orders"}, NOW) == Draft("orders", b"", None)
    assert GATE.draft(message(deliver_after="90s"), NOW).due == NOW + 90_000
    assert GATE.draft(message(deliver_at=NOW - 9), NOW).due == NOW - 9
    assert GATE.draft(message(key=""), NOW).key == b""


def test_null_is_null_and_absent_is_empty() -> None:
    assert GATE.draft(message(payload=None), NOW).payload is None
    assert GATE.draft({"topic": "orders"}, NOW).payload == GATE.draft(message(payload=""), NOW).payload == b""
    assert code_of(message(payload_base64=None)) == "bad_base64"


@given(st.binary(max_size=200))
def test_payloads_are_binary_safe(payload: bytes) -> None:
    assert GATE.draft(message(payload_base64=b64encode(payload).decode()), NOW).payload == payload
    assert GATE.draft_from_raw([(b"duemq-topic", b"orders")], payload, NOW).payload == payload


@pytest.mark.parametrize("topic", ["a", "A-z_0.9", "t" * 249, "...", "_"])
def test_good_topics(topic: str) -> None:
    assert GATE.draft({"topic": topic}, NOW).topic == topic


@pytest.mark.parametrize(
    "topic",
    ["", "t" * 250, "a/b", "a b", "abc\n", "tröpic", "t٣", ".", "..", "duemq.ledger", "__x", 5, ["a"], {}, None, True],
)
def test_bad_topics(topic: object) -> None:
    assert code_of({"topic": topic, "deliver_after": "1h"}) == "bad_topic"


@pytest.mark.parametrize(
    ("field", "code", "value"), [(field, code, value) for field, code, values in BAD_FIELDS for value in values]
)
def test_refused_values(field: str, code: str, value: object) -> None:
    error = refusal(message(**{field: value}))
    assert (error.code, error.field) == (code, field)


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"payload": "x", "payload_base64": "eA=="}, "both_payloads", "payload_base64"),
        ({"deliverAfter": "1h"}, "unknown_field", "deliverAfter"),
        ({"id": "x"}, "unknown_field", "id"),
        ({"deliver_after": 5, "expires_at": NOW + 4}, "bad_time", "expires_at"),
        ({"deliver_at": NOW - 9, "expires_at": NOW - 5}, "bad_time", "expires_at"),
        ({"deliver_after": 5, "deliver_at": NOW}, "both_times", "deliver_after"),
    ],
)
def test_refused_together(change: dict[str, Any], code: str, field: str) -> None:
    error = refusal(message(**change))
    assert (error.code, error.field) == (code, field)


def test_missing_topic_and_no_object() -> None:
    assert code_of({"payload": "x"}) == "missing_topic"
    no_objects: list[object] = [5, "text", None, []]
    for item in no_objects:
        assert code_of(item) == "bad_field"


def test_limits_are_named() -> None:
    gate = Ingress(MessageLimits(max_payload_bytes=3, time=TimePolicy(max_delay_ms=1000)))
    assert gate.draft(message(payload="abc"), NOW).payload == b"abc"
    assert refusal(message(payload="abcd"), gate).detail == "the payload has 4 bytes, the limit is 3"
    assert "1s (1000 ms)" in refusal(message(deliver_after=1001), gate).detail


def test_restricted_topics() -> None:
    gate = Ingress(MessageLimits(topics=("orders.*", "mail")))
    for topic in ("orders.eu", "mail", "mail"):
        assert gate.draft({"topic": topic}, NOW).topic == topic
    for topic in ("orders", "mail2", "xmail", "MAIL"):
        assert code_of({"topic": topic}, gate) == "unknown_topic"


def test_whatever_passes_fits_the_envelope() -> None:
    gate = Ingress(MessageLimits(max_key_bytes=60 << 10))
    draft = gate.draft(
        {
            "topic": "t" * 249,
            "key": "k" * (60 << 10),
            "labels": ["☃" * 128] * 16,
            "headers": {"☃" * 255 + chr(97 + i): "v" for i in range(26)},
            "expires_at": "9999-12-31T23:59:59.999Z",
        },
        NOW,
    )
    row = read_row(row_of(schedule_frame(draft, NOW), b"i" * 32))
    headers = unpack_headers(draft.headers, 0, draft.header_count, len(draft.headers))
    assert (row.topic, row.key, row.labels, row.headers) == (draft.topic, draft.key, draft.labels, headers)


def test_raw_bodies_take_their_fields_from_dashed_headers() -> None:
    headers = [
        (b"content-type", b"text/plain"),
        (b"duemq-topic", b"orders"),
        (b"duemq-key", "ключ".encode()),
        (b"duemq-deliver-at", str(NOW + 9).encode()),
        (b"duemq-expires-at", str(NOW + 10).encode()),
        (b"duemq-labels", b"a, b"),
        (b"duemq-header-trace-id", b"4711"),
    ]
    draft = GATE.draft_from_raw(headers, b"\xff\0", NOW)
    assert draft[:4] == ("orders", b"\xff\0", NOW + 9, "ключ".encode())
    assert (draft.labels, draft.expires) == (("a", "b"), NOW + 10)
    assert unpack_headers(draft.headers, 0, draft.header_count, len(draft.headers)) == (("trace-id", b"4711"),)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([], "missing_topic"),
        ([(b"duemq-colour", b"red")], "unknown_field"),
        ([(b"duemq-payload", b"x")], "unknown_field"),
        ([(b"duemq-header-", b"x")], "bad_header"),
        ([(b"duemq-header-duemq-id", b"x")], "bad_header"),
        ([(b"duemq-key", b"\xff")], "bad_header"),
        ([(b"duemq-key", b"a"), (b"duemq-key", b"a")], "bad_header"),
        ([(b"duemq-deliver-at", b"2031-01-01T00:00:00")], "naive_time"),
        ([(b"duemq-deliver-after", b"1h"), (b"duemq-delay-level", b"3")], "both_times"),
        ([(b"duemq-delay-level", b"high")], "bad_level"),
    ],
)
def test_refused_raw_bodies(headers: list[tuple[bytes, bytes]], code: str) -> None:
    topic = [(b"duemq-topic", b"orders")] if headers else []
    with pytest.raises(Rejected) as refused:
        GATE.draft_from_raw(topic + headers, b"x", NOW)
    assert refused.value.code == code


def test_when_to_move_to() -> None:
    for good, due in (({"deliver_after": 5}, NOW + 5), ({"delay_level": 0}, NOW), ({"deliver_at": NOW - 5}, NOW)):
        assert GATE.when(good, NOW) == due
    bad: list[tuple[dict[str, Any], str]] = [
        ({}, "bad_field"),
        ({"deliver_after": "1h", "payload": "y"}, "unknown_field"),
        ({"deliver_after": "1h", "delay_level": 1}, "both_times"),
        ({"deliver_at": None}, "bad_time"),
    ]
    for item, code in bad:
        with pytest.raises(Rejected) as refused:
            GATE.when(item, NOW)
        assert refused.value.code == code


def test_batches() -> None:
    gate = Ingress(MessageLimits(max_batch_items=2))
    assert gate.batch({"messages": [1, 2]}) == [1, 2]
    bad: list[tuple[dict[str, Any], str]] = [
        ({"messages": [1, 2, 3]}, "batch_too_large"),
        ({"messages": "all"}, "bad_field"),
        ({}, "bad_field"),
        ({"messages": [], "atomic": True}, "unknown_field"),
    ]
    for body, code in bad:
        with pytest.raises(Rejected) as refused:
            gate.batch(body)
        assert refused.value.code == code


@pytest.mark.parametrize(
    "body", [b"", b"hello", b"[]", b'"text"', b"null", b"\xff{}", b'{"topic": "a"', b"[" * 100_000, b'{"a": NaN}']
)
def test_bad_json(body: bytes) -> None:
    with pytest.raises(Rejected) as refused:
        parse_json(body)
    assert refused.value.code == "bad_json"


def test_names_and_idempotency_keys() -> None:
    request = Request({"type": "http"})
    assert client_name(request, "order:1.a_b-c") == b"n:order:1.a_b-c"
    assert len({idempotency_name(request, key) for key in ("k" * 255, "k" * 254, "l")}) == 3
    assert client_name(request, "größe/2 x") == "n:größe/2 x".encode()
    for name in ("", "a" * 129, "a\n", "\x00", "\x85", "ä" * 101, "\udcff"):
        with pytest.raises(Rejected):
            client_name(request, name)
    for key in ("", "k" * 256, "a\tb", "a\x7f"):
        with pytest.raises(Rejected):
            idempotency_name(request, key)


def test_fingerprints_keep_parts_apart() -> None:
    prints = [fingerprint(*parts) for parts in ([], [b""], [b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"abc", b""])]
    assert len(set(prints)) == len(prints)
    assert {len(found) for found in prints} == {16}
