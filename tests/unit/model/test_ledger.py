"""Ledger entries: what is written is read, and other bytes are refused."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.model.errors import CorruptStore
from duemq.model.log.ledger import (
    START,
    Answer,
    Barrier,
    DeferredMessage,
    Entry,
    FileDecision,
    OutcomeCounts,
    read_ledger,
)

keys = st.binary(min_size=20, max_size=20)
numbers = st.integers(0, 2**53)
deferrals = st.builds(DeferredMessage, keys, st.none() | keys, st.integers(0, 65_535), st.text("ab ", max_size=9))
imports = st.builds(FileDecision, numbers, numbers, st.integers(0, 2**64 - 1), st.text("ab ", max_size=9))
entries = st.builds(
    Entry, numbers, numbers, keys, numbers,
    st.dictionaries(st.integers(0, 60), st.sampled_from(Answer)).map(lambda answers: dict(sorted(answers.items()))),
    st.lists(deferrals, max_size=4).map(tuple), numbers, st.integers(0, 2**64 - 1),
    st.tuples(numbers, numbers, numbers, numbers).map(lambda parts: OutcomeCounts(*parts)), numbers,
    st.lists(imports, max_size=3).map(tuple), numbers, st.none() | st.tuples(numbers, numbers), st.none() | numbers,
    st.dictionaries(numbers, keys, max_size=3),
)  # fmt: skip


@given(entries)
def test_round_trip(entry: Entry) -> None:
    assert Entry.decode(entry.encode()) == entry


@given(entries, numbers, numbers)
def test_barriers_are_told_from_entries(entry: Entry, number: int, at: int) -> None:
    barrier = Barrier(number, at)
    assert read_ledger(barrier.encode()) == barrier and read_ledger(entry.encode()) == entry
    with pytest.raises(CorruptStore):
        Entry.decode(barrier.encode())
    with pytest.raises(CorruptStore):
        read_ledger(barrier.encode()[:-3])


def test_entries_of_the_first_format_are_read() -> None:
    document = orjson.loads(START.encode()) | {"v": 1}
    assert Entry.decode(orjson.dumps(document)) == START


def test_consecutive_equal_answers_are_one_run() -> None:
    answers = dict.fromkeys(range(5, 10_005), Answer.OK) | {10_005: Answer.UNKNOWN, 10_007: Answer.UNKNOWN}
    entry = Entry(1, 10_008, b"\0" * 20, 9, answers)
    assert orjson.loads(entry.encode())["answers"] == [[5, 10_000, 0], [10_005, 1, 5], [10_007, 1, 5]]
    assert Entry.decode(entry.encode()).answers == answers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("v", 3),
        ("lost", [1]),
        ("named", [[1]]),
        ("named", [[1, "00"]]),
        ("cursor", "00"),
        ("cursor", "x"),
        ("answers", [[1, 1, 99]]),
        ("fates", [1, 2, 3, 4, 5]),
        ("checksum", "-"),
    ],
)
def test_what_this_version_does_not_know_is_refused(name: str, value: object) -> None:
    document = orjson.loads(START.encode()) | {name: value}
    with pytest.raises(CorruptStore):
        Entry.decode(orjson.dumps(document))


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"{}", START.encode()[:-1], b"\xff"])
def test_other_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(CorruptStore):
        Entry.decode(raw)


def test_a_barrier_names_its_cluster_in_a_field_that_older_versions_leave_out() -> None:
    barrier = Barrier(7, 1_000, "c1")
    assert barrier.encode() == b'{"v":2,"barrier":7,"at":1000,"cluster":"c1"}'
    assert read_ledger(barrier.encode()) == barrier
    assert read_ledger(b'{"v":2,"barrier":7,"at":1000}') == Barrier(7, 1_000, "")
