"""What is told of a declaration that cannot be: the field, what it may be, and an example where that helps."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.model.destinations.destination import read_credentials, read_destination
from duemq.model.errors import Rejected

URL = {"http": "https://h.example/", "nats": "nats://n.example", "amqp": "amqp://mq.example"}


def refused(**fields: Any) -> Rejected:
    with pytest.raises(Rejected) as raised:
        read_destination({"name": "a", "url": URL["http"]} | fields)
    return raised.value


@pytest.mark.parametrize(
    ("fields", "field", "detail"),
    [
        ({"retry": {"kind": "delays", "delays": "1s"}}, "retry.delays",
         'retry.delays: it is a list of up to 100, such as ["1s", "1m"]'),
        ({"retry": {"kind": "fast"}}, "retry.kind", "retry.kind: it is 'levels', 'delays' or 'exponential'"),
        ({"retry": {"kind": "delays"}}, "retry", 'retry: kind delays needs delays, such as ["1s", "1m"]'),
        ({"retry": {"delays": ["1s"]}}, "retry", "retry: delays goes with kind delays; give the kind, too"),
        ({"retry": {"first": "1s"}}, "retry", "retry: first goes with kind exponential; give the kind, too"),
        ({"retry": {"kind": "delays", "delays": ["1s"], "retries": 3}}, "retry",
         "retry: retries goes with kind levels or exponential; here it is delays"),
        ({"retry": {"retries": "many"}}, "retry.retries", "retry.retries: it is a whole number from 0 to 100"),
        ({"retry": {"retries": 101}}, "retry.retries", "retry.retries: it is a whole number from 0 to 100"),
        ({"retry": {"kind": "exponential", "factor": 0.5}}, "retry.factor",
         "retry.factor: it is a number from 1 to 100"),
        ({"retry": {"kind": "exponential", "first": 0}}, "retry.first",
         "retry.first: it is a duration of at least 1ms, such as 30s"),
        ({"retry": "levels"}, "retry", 'retry: it is an object, such as {"kind": "delays", "delays": ["1s", "1m"]}'),
        ({"timeout": 1}, "timeout", "timeout: it is a duration from 10ms to 10m, such as 30s"),
        ({"timeout": None}, "timeout", "timeout: it is a duration from 10ms to 10m, such as 30s"),
        ({"timeout": True}, "timeout", "timeout: it is a duration from 10ms to 10m, such as 30s"),
        ({"topics": ["duemq.buffer"]}, "topics", "topics: duemq.buffer is one of duemq's own topics"),
        ({"rate": 1.5}, "rate", "rate: it is a whole number from 0 to 1,000,000"),
        ({"ordered": "yes"}, "ordered", "ordered: it is true or false"),
        ({"topics": "orders"}, "topics", 'topics: it is a list of up to 50, such as ["orders"]'),
        ({"topics": [5]}, "topics.0", "topics.0: it is text"),
        ({"url": 5}, "url", "url: it is text, such as https://example.com/hooks"),
        ({"url": "x", "options": {"foo": 1}}, "url",
         "url: its scheme is one of http, https, amqp, amqps, nats, tls, redis, rediss, rocketmq, rocketmqs, such as "
         "https://example.com/hooks"),
        ({"url": "redis://r/abc"}, "url",
         "url: after host and port a Redis URL has at most the number of a database, such as /1"),
        ({"options": []}, "options", "options: it is an object of names and values"),
        ({"options": {"headers": "X"}}, "options.headers",
         'options.headers: it is an object of up to 50, such as {"x-team": "billing"}'),
        ({"options": {"method": "GET"}}, "options.method", "options.method: it is 'POST', 'PUT' or 'PATCH'"),
        ({"url": URL["amqp"], "options": {"exchange": 5}}, "options.exchange",
         "options.exchange: it is text of up to 255 characters"),
        ({"url": URL["nats"], "options": {"jetstream": False, "stream": "S"}}, "options",
         "options: stream: core NATS knows no streams; leave it out, or set jetstream"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_with_what_is_allowed(fields: dict[str, Any], field: str, detail: str) -> None:
    error = refused(**fields)
    assert (error.code, error.field, error.detail) == ("bad_field", field, detail)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(Rejected) as raised:
        read_destination({"name": "a"})
    assert raised.value.detail == "url: it is needed, such as https://example.com/hooks"


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"retry": {"tries": 3}},
         "retry.tries is no field here; known are kind, retries, first_level, delays, first, factor, most"),
        ({"url": URL["nats"], "options": {"subjekt": "x"}},
         "options.subjekt is no field here; known are subject, jetstream, stream"),
    ],
)  # fmt: skip
def test_an_unknown_name_is_told_with_those_that_are_known(fields: dict[str, Any], detail: str) -> None:
    error = refused(**fields)
    assert (error.code, error.detail) == ("unknown_field", detail)


@pytest.mark.parametrize("values", [{"password": 17_4711}, {"signing_secrets": "17_4711"}, {"token": ["17_4711"]}])
def test_of_credentials_no_value_is_told(values: dict[str, Any]) -> None:
    with pytest.raises(Rejected) as raised:
        read_credentials(values)
    (name,) = values
    assert raised.value.detail.startswith(f"credentials.{name}: it is ")
    assert "4711" not in str(raised.value)
    with pytest.raises(Rejected, match=r"credentials\.pasword is no field here; known are username, password, token, "):
        read_credentials({"pasword": "x"})
