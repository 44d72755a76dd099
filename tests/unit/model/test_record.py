"""Records and their packed form."""

from hypothesis import given
from hypothesis import strategies as st

from duemq.model.record import Record, frame_of, pack_headers, pack_record, unpack_headers, unpack_record

headers_ = st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), st.binary(max_size=9)))


@given(st.none() | st.binary(max_size=20), headers_, st.binary(max_size=50))
def test_round_trip(key: bytes | None, headers: list[tuple[str, bytes]], value: bytes) -> None:
    frame = pack_record(key, headers, value)
    assert unpack_record(frame) == Record(key, tuple(headers), value)
    count, packed = pack_headers(headers)
    assert frame_of(key, count, packed, value) == frame
    assert unpack_headers(b"??" + packed, 2, count) == tuple(headers)


def test_an_empty_key_is_not_a_missing_one() -> None:
    assert unpack_record(pack_record(b"", (), b"")).key == b""
    assert unpack_record(pack_record(None, (), b"")).key is None


def test_the_first_of_two_headers_of_one_name_counts() -> None:
    record = Record(None, (("a", b"1"), ("b", b"2"), ("a", b"3")), b"")
    assert (record.header("a"), record.header("b"), record.header("c")) == (b"1", b"2", None)
