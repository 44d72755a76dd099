"""What a caller says becomes the JSON of the API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import orjson
import pytest

from duemq.client.http.errors import BadTime, NaiveTimeError
from duemq.client.http.operations import BATCH_BYTES, batch_body, batch_requests
from duemq.client.http.requests import ABSENT, Draft, filter_fields, message_body, time_fields
from duemq.client.http.times import EpochMs
from duemq.client.http.values import MessageState, Record


def body_of(draft: Draft) -> Any:
    return orjson.loads(message_body(draft))


@pytest.mark.parametrize("payload", [b"", b"text", "grüße \u2028 \0".encode(), b"\xff\xfe", bytes(range(256))])
def test_payloads_survive_both_ways(payload: bytes) -> None:
    body = body_of(Draft("t", payload))
    assert ("payload_base64" in body) != ("payload" in body)
    record = Record.from_json("t", {"partition": 0, "offset": 1, "timestamp_ms": 2, **body})
    assert record.payload == payload


def test_none_is_null_and_comes_back_apart_from_empty() -> None:
    body = body_of(Draft("t", None, headers={"b": ""}))
    assert body == {"topic": "t", "payload": None, "headers": {"b": ""}}
    null, empty = (
        Record.from_json("t", {"partition": 0, "offset": 1, "timestamp_ms": 2, "payload": text, "headers": {"a": None}})
        for text in (None, "")
    )
    assert (null.payload, null.value, empty.payload, empty.value) == (b"", None, b"", b"")
    assert null.headers == {"a": None}
    state = {"id": "m", "status": "scheduled", "topic": "t", "deliver_at_ms": 1}
    states = [MessageState.from_json(state | more) for more in ({"payload": None}, {"payload": ""}, {})]
    assert [(each.payload, each.is_null) for each in states] == [(None, True), (b"", False), (None, False)]


def test_dicts_and_lists_are_sent_as_json_text() -> None:
    assert orjson.loads(body_of(Draft("t", {"a": [1, None]}))["payload"]) == {"a": [1, None]}
    assert body_of(Draft("t", ["x"]))["payload"] == '["x"]'


def test_only_what_was_said_is_sent() -> None:
    assert body_of(Draft("t", "p")) == {"topic": "t", "payload": "p"}
    full = Draft(
        "t", "p", key="k", headers={"h": "v"}, labels=("a",), delay_level=3, expires_at=EpochMs(1_924_992_000_000)
    )
    assert body_of(full) == {
        "topic": "t",
        "payload": "p",
        "key": "k",
        "headers": {"h": "v"},
        "labels": ["a"],
        "delay_level": 3,
        "expires_at": 1_924_992_000_000,
    }


def test_times_are_rounded_up_to_whole_milliseconds() -> None:
    berlin = timezone(timedelta(hours=1))
    assert time_fields({"deliver_at": datetime(1970, 1, 1, 1, 0, 1, 1, berlin)}) == {"deliver_at": 1001}
    assert time_fields({"deliver_at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}) == {"deliver_at": 1000}
    assert time_fields({"deliver_after": timedelta(microseconds=1500)}) == {"deliver_after": 2}
    assert time_fields({"expires_after": "2h30m", "zone": ABSENT}) == {"expires_after": "2h30m"}


@pytest.mark.parametrize("field", ["deliver_at", "deliver_after", "delay_level", "expires_at", "expires_after", "zone"])
def test_none_is_no_time_and_absent_is(field: str) -> None:
    refused: Any = {field: None}
    with pytest.raises(BadTime, match=f"^{field} is None") as caught:
        message_body(Draft("t", **refused))
    assert caught.value.field == field
    absent: Any = {field: ABSENT}
    assert body_of(Draft("t", **absent)) == {"topic": "t", "payload": ""}


@pytest.mark.parametrize("field", ["due_from", "due_to"])
def test_a_filter_whose_bound_got_lost_is_refused(field: str) -> None:
    filters: Any = {"topic": "t", field: None}
    with pytest.raises(BadTime, match=f"^{field} is None"):
        filter_fields(filters)


@pytest.mark.parametrize("value", [5, 0.5, 60.0, 0, True])
@pytest.mark.parametrize("field", ["deliver_after", "expires_after"])
def test_a_number_is_no_delay(field: str, value: Any) -> None:
    for send in (lambda: message_body(Draft("t", **{field: value})), lambda: time_fields({field: value})):
        with pytest.raises(BadTime, match=f"^{field} is {value}, which has no unit: pass timedelta"):
            send()


def test_times_without_a_zone_are_refused_before_sending() -> None:
    naive = datetime(2031, 1, 1)
    for refused in (
        lambda: time_fields({"deliver_at": naive}),
        lambda: message_body(Draft("t", expires_at=naive)),
        lambda: filter_fields({"due_to": naive}),
    ):
        with pytest.raises(NaiveTimeError) as caught:
            refused()
        assert isinstance(caught.value, ValueError)
        assert (caught.value.code, caught.value.status) == ("naive_time", None)


def test_batches_keep_within_the_limits_of_a_request() -> None:
    counted = list(batch_requests(b'{"topic":"t"}' for _ in range(25_000)))
    assert [len(orjson.loads(batch_body(part))["messages"]) for part in counted] == [10_000, 10_000, 5_000]

    item = b'"' + b"x" * (1 << 20) + b'"'
    heavy = [batch_body(part) for part in batch_requests([item] * 40)]
    assert max(map(len, heavy)) <= BATCH_BYTES
    assert sum(len(orjson.loads(body)["messages"]) for body in heavy) == 40
    assert list(batch_requests([])) == []
