"""Records and their packed form."""

from hypothesis import given
from hypothesis import strategies as st

from duemq.bus.kafka.record_batches import to_frame, to_kafka
from duemq.model.messages.message import are_headers
from duemq.model.messages.plain import read_record
from duemq.model.messages.record import (
    HEAD,
    HEADER,
    NULL_HEADERS,
    NULL_VALUE,
    Header,
    Record,
    frame_of,
    pack_headers,
    pack_record,
    shorten,
    unpack_headers,
    unpack_record,
)

# Values that end as nulls do must not be taken for them.
values = st.none() | st.binary(max_size=9) | st.sampled_from([NULL_VALUE, NULL_HEADERS, b"\0\0" + NULL_HEADERS])
headers_ = st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), values), max_size=6)
keys = st.none() | st.binary(max_size=20)


@given(keys, headers_, values | st.binary(max_size=50))
def test_round_trip(key: bytes | None, headers: list[Header], value: bytes | None) -> None:
    frame = pack_record(key, headers, value)
    assert unpack_record(frame) == Record(key, tuple(headers), value)
    count, packed = pack_headers(headers)
    assert frame_of(key, count, packed, value) == frame
    assert unpack_headers(b"??" + packed, 2, count, 2 + len(packed)) == tuple(headers)
    assert read_record(frame) == unpack_record(frame)
    assert unpack_record(to_frame(*(key, value, headers))) == Record(key, tuple(headers), value)
    assert to_kafka(frame) == (key, value, headers)


@given(keys, headers_, headers_, values)
def test_headers_can_be_put_before_packed_ones(
    key: bytes | None, more: list[Header], headers: list[Header], value: bytes | None
) -> None:
    before = [(name, b"" if content is None else content) for name, content in more]
    (some, start), (count, packed) = pack_headers(before), pack_headers(headers)
    assert unpack_record(frame_of(key, some + count, start + packed, value)) == (key, (*before, *headers), value)


@given(keys, headers_, values)
def test_a_reader_that_knows_no_nulls_reads_empty_values(
    key: bytes | None, headers: list[Header], value: bytes | None
) -> None:
    """That of version 0.1.0, whose nodes may be given rows by newer ones."""
    frame = pack_record(key, headers, value)
    key_bytes, count, header_bytes = HEAD.unpack_from(frame)
    start = HEAD.size + max(key_bytes, 0)
    found, at = [], start
    for _ in range(count):
        name_bytes, value_bytes = HEADER.unpack_from(frame, at)
        middle = at + HEADER.size + name_bytes
        found.append((frame[at + HEADER.size : middle].decode(), frame[middle : middle + value_bytes]))
        at = middle + value_bytes
    assert found == [(name, content or b"") for name, content in headers]
    assert frame[start + header_bytes :] == (value or b"")


@given(headers_, st.binary(max_size=6))
def test_nulls_say_only_what_is_empty_to_be_null(headers: list[Header], nulls: bytes) -> None:
    """Whatever stands there: an envelope may be anybody's."""
    plain = [(name, content or b"") for name, content in headers]
    count, packed = pack_headers(plain)
    record = unpack_record(frame_of(b"k", count, packed + nulls, b"v"))
    assert record.value == b"v"
    assert [(name, content or b"") for name, content in record.headers] == plain


def test_a_shortened_record_without_a_value_stays_so() -> None:
    frame = pack_record(b"k", [("h", b"x" * 500), ("null", None)], None)
    assert unpack_record(shorten(frame, 100)).value is None
    assert unpack_record(shorten(pack_record(b"k", (), b"x" * 500), 100)).value == b""


def test_a_frame_with_something_else_after_its_headers_is_damaged() -> None:
    count, packed = pack_headers([("a", None)])
    for after in (b"\0", b"\0\0", packed[-3:], b"\xff\xfe\0"):
        assert read_record(frame_of(None, count, packed[:-4] + after, b"")) is None
    assert not are_headers(packed, 0, len(packed), count)  # an envelope has none there


def test_an_empty_key_is_not_a_missing_one() -> None:
    assert unpack_record(pack_record(b"", (), b"")).key == b""
    assert unpack_record(pack_record(None, (), b"")).key is None


def test_the_first_of_two_headers_of_one_name_counts() -> None:
    record = Record(None, (("a", b"1"), ("b", b"2"), ("a", b"3")), b"")
    assert (record.header("a"), record.header("b"), record.header("c")) == (b"1", b"2", None)
