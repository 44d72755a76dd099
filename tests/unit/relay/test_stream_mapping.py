"""The sections of a message, as rstream reads them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rstream import amqp_decoder

from duemq.relay.rabbitmq.stream.mapping import encoded
from tests.support.outlets.site import out_message

_NOT_PLAIN = ("content-type", "content-encoding", "duemq-id", "duemq-key", "duemq-due", "x-delay", "delay")


def _plain(name: str) -> bool:
    return name.lower() not in _NOT_PLAIN


_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=300).filter(_plain)


@given(
    st.binary(max_size=500), st.none() | st.binary(max_size=300),
    st.lists(st.tuples(_NAMES, st.binary(max_size=300)), max_size=6, unique_by=lambda pair: pair[0]),
)  # fmt: skip
def test_all_arrives_byte_for_byte(payload: bytes, key: bytes | None, headers: list[tuple[str, bytes]]) -> None:
    message = out_message(7, payload=payload, key=key, headers=headers)
    read = amqp_decoder(encoded(message))
    assert bytes(read.body) == payload
    fields = dict(read.application_properties)
    assert (fields.pop(b"duemq-id"), read.properties.message_id) == (message.id.encode(), message.identity.encode())
    assert fields.pop(b"duemq-due") == message.due_ms
    assert fields.pop(b"duemq-key", None) == key
    assert list(fields.items()) == [(name.encode(), value) for name, value in message.headers]


def test_a_header_that_comes_again_has_a_number() -> None:
    headers = [("a", b"1"), ("a", b"2"), ("a#2", b"3"), ("a", b"4"), ("duemq-key", b"5")]
    read = amqp_decoder(encoded(out_message(7, key=b"k", headers=headers)))
    fields = dict(read.application_properties)
    assert [fields[name] for name in (b"a", b"a#2", b"a#2#2", b"a#3")] == [b"1", b"2", b"3", b"4"]
    assert fields[b"duemq-key"] == b"k"


def test_types_that_a_symbol_cannot_hold_stay_headers() -> None:
    headers = [("Content-Type", b"text/plain"), ("content-encoding", "ü".encode()), ("content-type", b"x" * 256)]
    read = amqp_decoder(encoded(out_message(7, headers=headers)))
    assert (read.properties.content_type, read.properties.content_encoding) == (b"text/plain", None)
    fields = dict(read.application_properties)
    assert (fields[b"content-encoding"], fields[b"content-type"]) == ("ü".encode(), b"x" * 256)
