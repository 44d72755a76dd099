"""What the types of the SDK refuse is refused before a request as well.

mypy reads this file: it reports a `type: ignore` of a call that has become well typed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import assert_type

import httpx
import orjson
import pytest

from duemq.client import Admin, AsyncClient, Cancelled, Client, Draft, EpochMs, Message, RecordPage
from duemq.client.http.errors import BadField, BadHeader, BadPayload, BadTime, RejectedError
from duemq.client.http.requests import message_body

SECONDS = 1_924_992_000
RECEIPT = {"id": "m", "status": "scheduled", "topic": "t", "deliver_at_ms": 1_924_992_000_000, "cancelled_at_ms": 1}


def never(request: httpx.Request) -> httpx.Response:
    raise AssertionError(f"{request.method} {request.url} was sent")


CLIENT = Client("http://duemq.test", transport=httpx.MockTransport(never))
ADMIN = Admin("http://duemq.test", transport=httpx.MockTransport(never))

WRONG_TIMES: dict[str, Callable[[], object]] = {
    "deliver_after": lambda: CLIENT.send("t", deliver_after=5),  # type: ignore[arg-type]
    "expires_after": lambda: CLIENT.send("t", expires_after=5.5),  # type: ignore[arg-type]
    "deliver_at": lambda: CLIENT.send("t", deliver_at=SECONDS),  # type: ignore[arg-type]
    "expires_at": lambda: CLIENT.send("t", expires_at=time.time()),  # type: ignore[arg-type]
    "deliver_at ": lambda: CLIENT.send("t", deliver_at=None),  # type: ignore[arg-type]
    "deliver_at  ": lambda: CLIENT.send("t", deliver_at=EpochMs(SECONDS)),
    "deliver_after ": lambda: CLIENT.reschedule("m", deliver_after=5),  # type: ignore[arg-type]
    "deliver_at   ": lambda: CLIENT.reschedule_many([("m", {"deliver_at": SECONDS})]),  # type: ignore[typeddict-item]
    "deliver_after  ": lambda: CLIENT.send_batch([Draft("t", deliver_after=5)]),  # type: ignore[arg-type]
    "expires_at ": lambda: CLIENT.send_batch([Draft("t", expires_at=SECONDS)]),  # type: ignore[arg-type]
    "due_from": lambda: list(CLIENT.list(due_from=SECONDS)),  # type: ignore[arg-type]
    "due_to": lambda: CLIENT.cancel_many(filter={"due_to": SECONDS}),  # type: ignore[arg-type]
    "wait": lambda: CLIENT.records("t", wait=5),  # type: ignore[arg-type]
    "expires_after ": lambda: ADMIN.create_key("shop", "send", expires_after=90),  # type: ignore[arg-type]
    "overlap": lambda: ADMIN.rotate_key("shop", overlap=90),  # type: ignore[arg-type]
}
WRONG_FIELDS: dict[str, tuple[type[RejectedError], Callable[[], object]]] = {
    "key": (BadField, lambda: CLIENT.send("t", key=4.2)),  # type: ignore[arg-type]
    "name": (BadField, lambda: CLIENT.send("t", name=b"n")),  # type: ignore[arg-type]
    "labels": (BadField, lambda: CLIENT.send("t", labels=[None])),  # type: ignore[list-item]
    "headers": (BadHeader, lambda: CLIENT.send("t", headers={"a": 1.5})),  # type: ignore[arg-type]
    "payload": (BadPayload, lambda: CLIENT.send("t", Decimal("1.10"))),  # type: ignore[arg-type]
    "id": (BadField, lambda: CLIENT.cancel(4.2)),  # type: ignore[arg-type]
}
WRONG_ARGUMENTS: dict[str, Callable[[], object]] = {
    "send() has no argument 'delay'; did you mean 'deliver_after'?": lambda: CLIENT.send("t", delay=5),  # type: ignore[call-arg]
    "reschedule() has no argument 'eta'; did you mean 'deliver_at'?": lambda: CLIENT.reschedule("m", eta=5),  # type: ignore[call-arg]
    "list() has no argument 'tpic'; did you mean 'topic'?": lambda: CLIENT.list(tpic="t"),  # type: ignore[call-arg]
    "page() has no argument 'tpic'; did you mean 'topic'?": lambda: CLIENT.page(tpic="t"),  # type: ignore[call-arg]
    "dlq() has no argument 'tpic'; did you mean 'topic'?": lambda: ADMIN.dlq(tpic="t"),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("field", WRONG_TIMES)
def test_a_time_without_a_unit_is_refused_before_the_request(field: str) -> None:
    with pytest.raises(BadTime) as caught:
        WRONG_TIMES[field]()
    assert caught.value.field == field.strip() and caught.value.status is None
    assert field.strip() in str(caught.value)


def test_seconds_are_named_with_their_ms() -> None:
    with pytest.raises(BadTime, match="1924992000 looks like seconds; ms are 1924992000000"):
        message_body(Draft("t", deliver_at=EpochMs(SECONDS)))


@pytest.mark.parametrize("field", WRONG_FIELDS)
def test_a_value_of_another_type_is_refused_before_the_request(field: str) -> None:
    kind, call = WRONG_FIELDS[field]
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.field == field and caught.value.status is None


@pytest.mark.parametrize("sentence", WRONG_ARGUMENTS)
def test_a_wrong_argument_names_the_method_that_was_called(sentence: str) -> None:
    with pytest.raises(TypeError) as caught:
        WRONG_ARGUMENTS[sentence]()
    assert str(caught.value) == sentence


def test_what_operates_duemq_is_not_in_the_client_of_senders_and_readers() -> None:
    assert not hasattr(Client, "keys") and not hasattr(AsyncClient, "drain")
    assert len([name for name in dir(Client) if not name.startswith("_")]) < 25


@dataclass
class Order:
    id: int
    paid: bool


def test_what_is_meant_is_well_typed_and_sent() -> None:
    bodies = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(orjson.loads(request.content or b"{}"))
        return httpx.Response(200, json=RECEIPT | {"records": [], "cursor": "c"})

    client = Client("http://duemq.test", transport=httpx.MockTransport(answer))
    message = client.send("t", Order(17, False), key=17, labels="eu", headers={"n": 7}, deliver_after=timedelta(1))
    assert_type(message, Message)
    assert bodies == [
        {"topic": "t", "payload": '{"id":17,"paid":false}', "key": "17", "labels": ["eu"], "headers": {"n": "7"},
         "deliver_after": 86_400_000}
    ]  # fmt: skip
    for at in (
        message.deliver_at,
        message.deliver_at_ms,
        EpochMs(1_924_992_000_000),
        datetime.now(UTC),
        "2031-01-01T0:0Z",
    ):
        client.send("t", deliver_at=at)
    assert_type(client.cancel(17), Cancelled)
    assert_type(client.records("t", wait=timedelta(seconds=5)), RecordPage)
