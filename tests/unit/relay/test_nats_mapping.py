"""Messages as NATS holds them: one subject that means what was meant, and headers that can be read back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from duemq.client.consumer.message import Message
from duemq.model.destinations.destination import read_destination
from duemq.model.destinations.nats import NatsOptions
from duemq.model.errors import Rejected
from duemq.relay.base import NotMapped
from duemq.relay.nats.mapping import Mapping, key_token
from tests.support.outlets.nats_site import read_headers
from tests.support.outlets.site import OutRecord, out_message


def mapped(message: Message, **options: Any) -> tuple[str, dict[str, str]]:
    return Mapping("there", NatsOptions(**options)).publication(message)[:2]


def on_the_wire(headers: dict[str, str]) -> bytes:
    """As nats-py writes them."""
    lines = "".join(f"{name.strip()}: {value.strip()}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


NAMES = some.text(max_size=20).filter(lambda name: not name.lower().startswith(("duemq-", "x-duemq-")))
HEADERS = some.lists(some.tuples(NAMES, some.binary(max_size=30) | some.text(max_size=20).map(str.encode)), max_size=5)


@given(HEADERS)
def test_any_headers_can_be_read_back(headers: list[tuple[str, bytes]]) -> None:
    headers = [(name, value) for name, value in headers if name not in ("x-delay", "DELAY") and "\ud800" not in name]
    publication = Mapping("there", NatsOptions()).publication(out_message(headers=headers))
    wire = on_the_wire(publication.headers)
    assert read_headers(wire)[3:] == headers
    assert publication.header_bytes == len(wire)


def test_text_goes_as_it_is() -> None:
    headers = [("Trace-Id", b"4711"), ("name", "Zoë".encode()), ("empty", b"")]
    message = out_message(headers=headers, key=b"k-1")
    _, lines = mapped(message)
    assert lines == {
        "Nats-Msg-Id": f"there:{message.identity}", "duemq-id": "0" * 32, "duemq-due": "1795000000000",
        "duemq-key": "k-1", "Trace-Id": "4711", "name": "Zoë", "empty": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("raw", b"\xff\x00", "duemq-base64-raw"),
        ("lines", b"a\r\nNats-Rollup: all", "duemq-base64-lines"),
        ("around", b" a ", "duemq-base64-around"),
        ("with space", b"a", "duemq-base64-with%20space"),
        ("a:b", b"a", "duemq-base64-a%3Ab"),
        ("a%20b", b" ", "duemq-base64-a%2520b"),
        ("ü", b"a", "duemq-base64-%C3%BC"),
        ("", b"a", "duemq-base64-"),
        ("Nats-Rollup", b"all", "duemq-base64-Nats-Rollup"),
        ("nats-msg-id", b"another", "duemq-base64-nats-msg-id"),
        ("Status", b"503", "duemq-base64-Status"),
    ],
)
def test_what_nats_cannot_hold_or_would_obey_is_encoded(name: str, value: bytes, line: str) -> None:
    _, lines = mapped(out_message(headers=[(name, value)]))
    assert list(lines)[3:] == [line]


def test_an_id_of_a_stranger_stays_one_line() -> None:
    message = Message(OutRecord(headers=[("duemq-id", b"a\r\nNats-Rollup: all")]))
    _, lines = mapped(message)
    assert lines["Nats-Msg-Id"].startswith("there:a%0D%0ANats-Rollup:%20all:")
    assert list(lines)[1:] == ["duemq-base64-duemq-id"]


def test_a_message_that_did_not_come_by_duemq_has_no_due_time() -> None:
    _, lines = mapped(Message(OutRecord()))
    assert lines == {"Nats-Msg-Id": "there:orders:0:0:1795000000000", "duemq-id": "orders:0:0:1795000000000"}


def test_the_stream_is_named_and_core_nats_has_no_headers_of_jetstream() -> None:
    assert mapped(out_message(), stream="ORDERS")[1]["Nats-Expected-Stream"] == "ORDERS"
    assert list(mapped(out_message(), jetstream=False)[1]) == ["duemq-id", "duemq-due"]


@pytest.mark.parametrize(
    ("template", "key", "subject"),
    [
        ("{{ topic }}", b"k", "orders.new"),
        ("fixed", b"k", "fixed"),
        ("{{ topic }}.{{ key }}", b"k-1", "orders.new.k-1"),
        ("{{ topic }}.{{ key }}", None, "orders.new._"),
        ("{{ topic }}.{{ key }}", b"", "orders.new._"),
        ("a.{{ key }}.z", b"a.b c*>", "a.a%2Eb%20c%2A%3E.z"),
        ("{{ key }}", b"$JS.API.STREAM.DELETE.ORDERS", "%24JS%2EAPI%2ESTREAM%2EDELETE%2EORDERS"),
        ("{{ key }}", b"{{ topic }}\r\nPUB x", "%7B%7B%20topic%20%7D%7D%0D%0APUB%20x"),
        ("{{ key }}", b"\xff", "%FF"),
    ],
)
def test_a_template_makes_the_subject(template: str, key: bytes | None, subject: str) -> None:
    message = Message(OutRecord(topic="orders.new", key=key))
    assert mapped(message, subject=template)[0] == subject


@given(some.binary(min_size=1), some.binary(min_size=1))
def test_keys_have_tokens_of_their_own(key: bytes, other: bytes) -> None:
    tokens = key_token(key), key_token(other)
    assert (tokens[0] == tokens[1]) == (key == other)
    assert all(token.isascii() and not set(token) & set(" .*>$\r\n") for token in tokens)


@pytest.mark.parametrize(("topic", "subject"), [("a..b.", "a._.b._"), (".", "_._"), ("a b\r\n*", "a%20b%0D%0A%2A")])
def test_no_token_of_a_topic_is_empty(topic: str, subject: str) -> None:
    assert mapped(Message(OutRecord(topic=topic)))[0] == subject


def test_a_subject_is_not_too_long_for_a_line_of_the_protocol() -> None:
    assert len(mapped(out_message(key=b"k" * 2_000), subject="{{ key }}")[0]) == 2_000
    with pytest.raises(NotMapped) as refused:
        mapped(out_message(key=b"k" * 2_001), subject="{{ key }}")
    assert refused.value.reply.status == "bad_subject"


@pytest.mark.parametrize(
    ("options", "field", "why"),
    [
        ({"subject": ""}, "options.subject", "none of them empty"),
        ({"subject": "a..b"}, "options.subject", "none of them empty"),
        ({"subject": ".{{ topic }}"}, "options.subject", "none of them empty"),
        ({"subject": "a b"}, "options.subject", "no spaces"),
        ({"subject": "ü"}, "options.subject", "ASCII"),
        ({"subject": "orders.*"}, "options.subject", "subscriptions"),
        ({"subject": "orders.>"}, "options.subject", "subscriptions"),
        ({"subject": "{{ id }}"}, "options.subject", "there are {{ topic }}, {{ key }}"),
        ({"subject": "{key}"}, "options.subject", "there are {{ topic }}, {{ key }}"),
        ({"subject": "{{key"}, "options.subject", "there are {{ topic }}, {{ key }}"),
        ({"subject": "{topic"}, "options.subject", "placeholders"),
        ({"subject": "$JS.API.STREAM.PURGE.A"}, "options.subject", "commands"),
        ({"subject": "$SYS.x"}, "options.subject", "commands"),
        ({"subject": "x" * 501}, "options.subject", "500"),
        ({"stream": "a.b"}, "options.stream", "name"),
        ({"stream": "ORDERS", "jetstream": False}, "options", "core NATS"),
        ({"jetstream": 1}, "options.jetstream", "true or false"),
        ({"durable": True}, "options.durable", "no field"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], field: str, why: str) -> None:
    with pytest.raises(Rejected) as refused:
        read_destination({"name": "there", "url": "nats://localhost", "options": options})
    assert why in refused.value.detail
    assert refused.value.detail.startswith(field)


@pytest.mark.parametrize("subject", ["{{ topic }}", "$KV.bucket.{{ key }}", "a.{{ topic }}-{{ key }}.z", "orders"])
def test_subjects_that_can_be(subject: str) -> None:
    NatsOptions(subject=subject)
