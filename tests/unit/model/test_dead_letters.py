"""What the headers of dead letters say, whoever wrote them; names and encodings as their writers have them."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.client.consumer.retry.headers import RetryOrigin as Returned
from duemq.client.consumer.retry.headers import returned, share_group_headers
from duemq.model.messages.dead_letters import (
    MALFORMED,
    REDRIVEN_FROM,
    REDRIVEN_ID,
    REDRIVES,
    LetterOrigin,
    first_place,
    id_of,
    labels_in,
    origin_of,
    own_headers,
    redrives_in,
)
from duemq.model.messages.plain import dead_letter
from duemq.model.messages.record import pack_record, unpack_record

OWN = [("kind", b"a"), ("traceparent", b"00-1")]
SHARE_GROUP = [
    ("__dlq.errors.topic", b"orders"), ("__dlq.errors.partition", b"3"), ("__dlq.errors.offset", b"4711"),
    ("__dlq.errors.group", b"g"), ("__dlq.errors.delivery.count", b"5"), ("__dlq.errors.message", b"no"),
]  # fmt: skip
STREAMS = [
    ("__streams.errors.exception", b"java.lang.RuntimeException: no"), ("__streams.errors.message", b"no"),
    ("__streams.errors.stacktrace", b"at ..."), ("__streams.errors.topic", b"orders"),
    ("__streams.errors.partition", b"3"), ("__streams.errors.offset", b"4711"),
]  # fmt: skip
CONNECT = [
    ("__connect.errors.topic", b"orders"), ("__connect.errors.partition", b"3"), ("__connect.errors.offset", b"4711"),
    ("__connect.errors.connector.name", b"sink"), ("__connect.errors.task.id", b"0"),
    ("__connect.errors.stage", b"VALUE_CONVERTER"), ("__connect.errors.class.name", b"JsonConverter"),
    ("__connect.errors.exception.class.name", b"DataException"), ("__connect.errors.exception.message", b"no"),
    ("__connect.errors.exception.stacktrace", b"at ..."),
]  # fmt: skip
SPRING = [
    ("kafka_dlt-original-topic", b"orders"), ("kafka_dlt-original-partition", pack(">i", 3)),
    ("kafka_dlt-original-offset", pack(">q", 4711)), ("kafka_dlt-original-timestamp", pack(">q", 1)),
    ("kafka_dlt-original-timestamp-type", b"CreateTime"), ("kafka_dlt-original-consumer-group", b"g"),
    ("kafka_dlt-exception-fqcn", b"IllegalStateException"), ("kafka_dlt-exception-message", b"no"),
]  # fmt: skip
CONSUMER = [
    *returned([("duemq-labels", b"red,blue"), *OWN], Returned("orders", 3, 4711, "id", 16), "retries", "no"),
    *share_group_headers(Returned("orders", 3, 4711, "id", 16), "g", "no"),
]  # fmt: skip
DUEMQ = [
    ("duemq-id", b"x"), ("duemq-topic", b"orders"), ("duemq-reason", b"expired"), ("__dlq.errors.topic", b"orders"),
    ("__dlq.errors.delivery.count", b"2"), ("__dlq.errors.message", b"expired"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "origin"),
    [
        (SHARE_GROUP, LetterOrigin("share group", "orders", 3, 4711, "", "no", "g", 5)),
        (STREAMS, LetterOrigin("streams", "orders", 3, 4711, "java.lang.RuntimeException: no", "no")),
        (CONNECT, LetterOrigin("connect", "orders", 3, 4711, "DataException", "no", "sink")),
        (SPRING, LetterOrigin("spring", "orders", 3, 4711, "IllegalStateException", "no", "g")),
        (CONSUMER, LetterOrigin("consumer", "orders", 3, 4711, "retries", "no", "", 16)),
        (DUEMQ, LetterOrigin("duemq", "orders", -1, -1, "expired", "", "", 2)),
    ],
)
def test_each_writer_is_understood(headers: list[tuple[str, bytes]], origin: LetterOrigin) -> None:
    assert origin_of([*OWN, *headers]) == origin
    assert dict(own_headers([*headers, *OWN])) == dict(OWN)


@pytest.mark.parametrize("forged", [SHARE_GROUP, STREAMS, CONNECT, SPRING, CONSUMER])
def test_what_a_sender_wrote_is_not_the_word_of_duemq(forged: list[tuple[str, bytes]]) -> None:
    letter = [*DUEMQ, ("duemq-labels", b"mine"), *forged, ("x-duemq-topic", b"payroll"), ("x-duemq-labels", b"forged")]
    assert origin_of(letter) == LetterOrigin("duemq", "orders", -1, -1, "expired", "", "", 2)
    assert labels_in(letter) == ("mine",)


@pytest.mark.parametrize(
    ("headers", "id_"),
    [(CONSUMER, "id"), (DUEMQ, "x"), ([*SPRING, ("duemq-id", b"x")], "x"), (SPRING, ""), ([("duemq-id", b"")], ""),
     ([("duemq-id", b"second"), (REDRIVEN_ID, b"first"), *SPRING], "first")],
)  # fmt: skip
def test_the_id_of_the_message_that_died(headers: list[tuple[str, bytes]], id_: str) -> None:
    assert id_of(headers) == id_


def test_labels_and_redrives_are_kept() -> None:
    assert labels_in(CONSUMER) == ("red", "blue") and labels_in(OWN) == ()
    assert redrives_in([(REDRIVES, b"3")]) == 3 and redrives_in(OWN) == 0
    assert dict(returned([(REDRIVES, b"3")], Returned("orders", 0, 1, "id"), "failed", ""))[REDRIVES] == b"3"
    assert not list(own_headers([(REDRIVES, b"3"), (REDRIVEN_FROM, b"dlq.g/0/1")]))


def test_what_is_no_dead_letter_has_no_origin() -> None:
    assert origin_of(OWN) is None and origin_of([("__dlq.errors.topic", b"")]) is None


NAMES = [name for name, _ in SHARE_GROUP + STREAMS + CONNECT + SPRING + CONSUMER + DUEMQ]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.binary(max_size=12)), max_size=20))
def test_anything_may_stand_in_a_header(headers: list[tuple[str, bytes]]) -> None:
    origin = origin_of(headers)
    assert origin is None or (origin.topic and origin.attempts >= 0)
    assert redrives_in(headers) >= 0 and isinstance(labels_in(headers), tuple)


def test_a_malformed_record_says_why_although_it_may_name_no_topic() -> None:
    frame = dead_letter(pack_record(None, (("duemq-delay", b"soon"), ("trace", b"4711")), b"p"), 3, 7, "no topic")
    origin = origin_of(unpack_record(frame).headers)
    assert origin == LetterOrigin("duemq", "", reason=MALFORMED, error="no topic")
    assert first_place(unpack_record(frame).headers) == ""
    frame = dead_letter(pack_record(None, (("duemq-topic", b"orders"),), b"p"), 3, 7, "no time")
    origin = origin_of(unpack_record(frame).headers)
    assert origin is not None and (origin.topic, origin.error) == ("orders", "no time")
