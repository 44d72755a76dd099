"""What a message is in AMQP, before a broker sees it."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.client.consumer.message import Message
from duemq.model.destinations.destination import read_destination
from duemq.model.destinations.rabbitmq import RabbitMqOptions
from duemq.model.errors import Rejected
from duemq.relay.base import NotMapped, Result
from duemq.relay.rabbitmq.mapping import Mapping, message_id
from tests.support.outlets.site import OutRecord, out_message

ID = f"{7:032x}"


def mapped(headers: list[tuple[str, bytes]], **options: Any) -> dict[str, Any]:
    properties = Mapping(RabbitMqOptions(**options)).publication(out_message(7, headers=headers)).properties
    return dict(properties.headers)


def test_what_has_a_place_of_its_own() -> None:
    message = out_message(7, key=b"k", due_ms=1_795_000_000_999)
    publication = Mapping(RabbitMqOptions()).publication(message)
    properties = publication.properties
    assert publication.routing_key == "orders"
    assert (properties.message_id, properties.timestamp, properties.delivery_mode) == (
        message.identity,
        1_795_000_000,
        2,
    )
    assert properties.headers == {"duemq-id": ID, "duemq-due": 1_795_000_000_999, "duemq-key": "k"}
    assert Mapping(RabbitMqOptions(persistent=False)).publication(message).properties.delivery_mode == 1


@pytest.mark.parametrize("id_", ["é" * 20, "x" * 250])
def test_an_id_that_amqp_does_not_hold_has_a_digest_for_returns(id_: str) -> None:
    first, second = (Message(OutRecord(offset=n, headers=[("duemq-id", id_.encode())])) for n in (1, 2))
    ids = [message_id(message) for message in (first, second, first)]
    assert len(set(ids)) == 2 and all(len(each) == 64 for each in ids)
    properties = Mapping(RabbitMqOptions()).publication(first).properties
    assert (properties.message_id, properties.headers["duemq-id"]) == (ids[0], id_)


def test_content_type_and_encoding_are_properties() -> None:
    headers = [("Content-Type", b"text/plain"), ("content-encoding", b"gzip"), ("content-type", b"second")]
    properties = Mapping(RabbitMqOptions()).publication(out_message(7, headers=headers)).properties
    assert (properties.content_type, properties.content_encoding) == ("text/plain", "gzip")
    assert properties.headers["content-type"] == "second"
    for unfit in (b"\xff", b"x" * 256):
        assert mapped([("content-type", unfit)])["content-type"] in (unfit, unfit.decode(errors="replace"))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("a", b"1"), ("c", b"\xff"), ("b", "ü".encode()), ("d", b"")], {"a": "1", "c": b"\xff", "b": "ü", "d": ""}),
        ([("a", b"1"), ("b", b"x"), ("a", b"\xff"), ("a", b"")], {"a": ["1", b"\xff", ""], "b": "x"}),
        ([("CC", b"x"), ("BCC", b"y"), ("cc", b"z")], {"duemq-CC": "x", "duemq-BCC": "y", "cc": "z"}),
        ([("n" * 255, b"1")], {"n" * 255: "1"}),
    ],
)  # fmt: skip
def test_headers(headers: list[tuple[str, bytes]], expected: dict[str, Any]) -> None:
    found = mapped(headers)
    assert {name: value for name, value in found.items() if name not in ("duemq-id", "duemq-due")} == expected
    assert list(found)[2:] == list(expected)


def test_what_amqp_cannot_hold_is_rejected() -> None:
    with pytest.raises(NotMapped) as error:
        mapped([("ü" * 128, b"1")])
    assert (error.value.reply.result, error.value.reply.status) == (Result.REJECTED, "header_name")
    assert "256" in error.value.reply.detail


@pytest.mark.parametrize(
    ("template", "key", "expected"),
    [
        ("{{ topic }}", b"k", "orders"), ("fixed", b"k", "fixed"), ("", b"k", ""),
        ("{{topic}}.{{ key }}", b"k.1", "orders.k.1"),
        ("{{ key }}", None, ""), ("{{ key }}", b"{{ topic }}", "{{ topic }}"), ("{{ key }}", "ü".encode(), "ü"),
        ("{{ key }}", b"x" * 255, "x" * 255),
    ],
)  # fmt: skip
def test_routing_keys(template: str, key: bytes | None, expected: str) -> None:
    mapping = Mapping(RabbitMqOptions(routing_key=template))
    assert mapping.publication(out_message(key=key)).routing_key == expected


@pytest.mark.parametrize("key", [b"\xff", b"x" * 256, "ü".encode() * 128])
def test_keys_that_are_no_routing_keys_are_rejected(key: bytes) -> None:
    with pytest.raises(NotMapped) as error:
        Mapping(RabbitMqOptions(routing_key="{{ key }}")).publication(out_message(key=key))
    assert (error.value.reply.result, error.value.reply.status) == (Result.REJECTED, "routing_key")
    assert Mapping(RabbitMqOptions()).publication(out_message(key=key)).routing_key == "orders"


def test_an_id_that_is_too_long_is_a_header() -> None:
    message = out_message()
    message.record.headers = []
    message.record.topic = "t" * 249
    properties = Mapping(RabbitMqOptions()).publication(message).properties
    assert properties.message_id == message_id(message) and properties.timestamp is None
    assert properties.headers == {"duemq-id": message.id}


@pytest.mark.parametrize(
    "options",
    [
        {"routing_key": "{other}"}, {"routing_key": "{topic"}, {"routing_key": "}{"}, {"routing_key": "{}"},
        {"routing_key": "x" * 256}, {"exchange": "ü" * 128}, {"mandatory": "perhaps"}, {"vhost": "/"},
    ],
)  # fmt: skip
def test_options_that_are_none(options: dict[str, Any]) -> None:
    with pytest.raises(Rejected) as error:
        read_destination({"name": "rabbit", "url": "amqp://localhost", "options": options})
    assert next(iter(options)) in error.value.detail
