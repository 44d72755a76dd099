"""What a message is in RocketMQ, before a proxy sees it."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest

from duemq.client.consumer.message import Message
from duemq.model.destinations.destination import read_destination
from duemq.model.destinations.rocketmq import RocketMqOptions
from duemq.model.errors import Rejected
from duemq.relay.base import NotMapped, Result
from duemq.relay.rocketmq.mapping import Mapping, Publication
from tests.support.outlets.site import OutRecord, out_message

ID = f"{7:032x}"
DUE = "1795000000000"


def mapped(headers: list[tuple[str, bytes]] | None = None, *, key: bytes | None = None, **options: Any) -> Publication:
    return Mapping(RocketMqOptions(**options)).publication(out_message(7, headers=headers or [], key=key))


def labelled(labels: str) -> str | None:
    message = out_message(7)
    record = message.record
    assert isinstance(record, OutRecord)
    record.headers = [*record.headers, ("duemq-labels", labels.encode())]
    return Mapping(RocketMqOptions()).publication(message).tag


def test_what_has_a_place_of_its_own() -> None:
    made = mapped(key=b"k")
    assert (made.topic, made.body, made.tag, made.message_group) == ("orders", b"payload", None, None)
    assert made.keys == [ID, "k"]
    assert made.properties == {"duemq-id": ID, "duemq-due": DUE, "duemq-key": "k"}


def test_an_empty_payload_is_marked() -> None:
    made = Mapping(RocketMqOptions()).publication(out_message(7, payload=b""))
    assert (made.body, made.properties["duemq-empty"]) == (b"\x00", "true")
    assert "duemq-empty" not in mapped().properties


@pytest.mark.parametrize(
    ("key", "properties", "keys"),
    [
        (b"", {}, []),
        ("ü".encode(), {"duemq-key": "ü"}, ["ü"]),
        (b"a b", {"duemq-key": "a b"}, []),
        (b"x" * 256, {"duemq-key": "x" * 256}, []),
        (b"\xff", {"duemq-key-base64": "/w=="}, []),
        (b"a\n", {"duemq-key-base64": "YQo="}, []),
        ("\x85".encode(), {"duemq-key-base64": "woU="}, []),
    ],
)
def test_keys(key: bytes, properties: dict[str, str], keys: list[str]) -> None:
    made = mapped(key=key)
    assert made.properties == {"duemq-id": ID, "duemq-due": DUE} | properties
    assert made.keys == [ID, *keys]


def test_plain_headers_are_properties() -> None:
    headers = [("traceparent", b"00-abc"), ("b", "ü".encode()), ("X-Tenant", b" "), ("Wait", b"1")]
    assert mapped(headers).properties == {
        "duemq-id": ID, "duemq-due": DUE, "traceparent": "00-abc", "b": "ü", "X-Tenant": " ", "Wait": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        ("a", b"2"), ("c", b"\xff"), ("c", b""), ("c", b"\x7f"), ("c\n", b"1"), ("", b"1"), (" ", b"1"),
        ("KEYS", b"1"), ("1ST_POP_TIME", b"1"), ("__SHARDINGKEY", b"1"), ("__transactionId__", b"1"),
        ("c\x7f", b"1"), ("\ud800", b"1"), ("c\x85", b"1"),
    ],
)  # fmt: skip
def test_what_no_property_can_hold_is_packed_with_all_others(other: tuple[str, bytes]) -> None:
    headers = [("a", b"1"), other, ("b", "ü".encode())]
    properties = mapped(headers).properties
    packed = properties.pop("duemq-headers")
    assert properties == {"duemq-id": ID, "duemq-due": DUE, "a": "1", "b": "ü"}
    assert [(name, b64decode(text) if rest else text.encode()) for name, text, *rest in json.loads(packed)] == headers
    assert packed.isascii() and packed.isprintable()


@pytest.mark.parametrize(("count", "packed"), [(126, False), (127, True), (300, True)])
def test_more_than_it_has_room_for_are_packed(count: int, packed: bool) -> None:
    properties = mapped([(f"h{number}", b"1") for number in range(count)]).properties
    assert ("duemq-headers" in properties) is packed
    assert len(properties) == (3 if packed else count + 2)


def test_headers_are_not_there_twice_where_both_are_too_much() -> None:
    for size, names in ((7_000, {"duemq-headers", "large"}), (8_200, {"duemq-headers"})):
        assert set(mapped([("large", b"x" * size), ("raw", b"\xff")]).properties) - {"duemq-id", "duemq-due"} == names


def test_the_first_label_is_the_tag() -> None:
    assert labelled("paid,late") == "paid"
    assert labelled("ü x") == "ü x"
    assert labelled("a|b") is None
    assert labelled(" ") is None
    assert mapped().tag is None
    assert mapped(tag="fixed").tag == "fixed"
    assert mapped(tag="").tag is None


@pytest.mark.parametrize("key", [b"k", b"x" * 63, b"x" * 64, b"\xff", b" ", b"", None])
def test_a_message_group_is_short_and_of_the_key(key: bytes | None) -> None:
    group = mapped(key=key, fifo=True).message_group
    assert group is not None and group.strip() and len(group.encode()) <= 63
    assert group == mapped(key=key, fifo=True).message_group
    assert group != mapped(key=b"other", fifo=True).message_group
    if key in (b"k", b"x" * 63):
        assert group == key.decode()
    if not key:
        assert group == ID


def test_an_id_that_anybody_wrote() -> None:
    message = out_message(7)
    record = message.record
    assert isinstance(record, OutRecord)
    record.headers = [("duemq-id", "ü a\n".encode())]
    made = Mapping(RocketMqOptions()).publication(message)
    assert made.keys == ["%C3%BC%20a%0A"] and made.message_id.startswith("%C3%BC%20a%0A:")
    record.headers = [("duemq-id", b"\xff" * 1_000)]
    assert len(Mapping(RocketMqOptions()).publication(out_message()).message_id) <= 255


def test_topics() -> None:
    def topic(of: str, **options: Any) -> str:
        return Mapping(RocketMqOptions(**options)).publication(Message(OutRecord(topic=of))).topic

    assert topic("orders", topic="duemq-{{ topic }}") == "duemq-orders"
    assert topic("orders.eu") == "orders_eu"
    assert topic("x" * 127) == "x" * 127
    with pytest.raises(NotMapped) as error:
        topic("x" * 128)
    assert (error.value.reply.result, error.value.reply.status) == (Result.REJECTED, "bad_topic")


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"options": {"topic": ""}}, "options.topic"),
        ({"options": {"topic": "a.b"}}, "options.topic"),
        ({"options": {"topic": "%RETRY%x"}}, "options.topic"),
        ({"options": {"topic": "{{ key }}"}}, "options.topic"),
        ({"options": {"topic": "x" * 128}}, "options.topic"),
        ({"options": {"tag": "a|b"}}, "options.tag"),
        ({"options": {"tag": " "}}, "options.tag"),
        ({"options": {"tag": "{{ key }}"}}, "options.tag"),
        ({"options": {"tag": "x{{ label }}"}}, "options.tag"),
        ({"options": {"tag": "{label}"}}, "options.tag"),
        ({"options": {"topic": "{topic}"}}, "options.topic"),
        ({"options": {"tag": "x" * 129}}, "options.tag"),
        ({"options": {"fifo": 1}}, "options.fifo"),
        ({"options": {"other": 1}}, "options.other"),
        ({"url": "rocketmq://host:8081/topic"}, "url"),
        ({"url": "rocketmq://host:8081?tag=x"}, "url"),
        ({"url": "rocketmq://[::1]:8081"}, "url"),
    ],
)
def test_what_cannot_be_declared(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(Rejected) as error:
        read_destination({"name": "rocket", "url": "rocketmqs://host:8081"} | fields)
    assert error.value.field == where
