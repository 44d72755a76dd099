"""The topics that a successor checks: those that the ledger names, of the last hour."""

from __future__ import annotations

from collections.abc import Iterable

from duemq.delay.replica.written_topics import _MAX_TOPICS, WrittenTopics
from duemq.model.log.ledger import MAX_LISTED_TOPICS, START, Entry, read_ledger
from duemq.model.messages.key import LOWEST

HOUR_MS = 3_600_000


def entry(number: int, at: int, topics: Iterable[str] | None) -> Entry:
    return Entry(number, 0, LOWEST, at, topics=None if topics is None else tuple(topics))


def test_the_topics_of_the_last_hour_are_known() -> None:
    written = WrittenTopics(entry(7, 0, ["old"]))
    written.record(entry(8, HOUR_MS // 2, ["a"]))
    written.record(entry(9, HOUR_MS, []))
    assert written.names() == {"old", "a"}
    written.record(entry(10, HOUR_MS + 1, ["b"]))
    assert written.names() == {"a", "b"}


def test_a_shard_without_entries_has_written_to_none() -> None:
    assert WrittenTopics(START).names() == set()


def test_an_entry_of_an_older_duemq_leaves_them_unknown_for_an_hour() -> None:
    written = WrittenTopics(entry(7, 0, None))
    assert written.names() is None
    written.record(entry(8, HOUR_MS - 1, ["a"]))
    assert written.names() is None
    written.record(entry(9, HOUR_MS, ["b"]))
    assert written.names() == {"a", "b"}


def test_of_too_many_topics_none_is_forgotten_without_saying_so() -> None:
    written = WrittenTopics(START)
    for number in range(_MAX_TOPICS + 1):
        assert written.names() is not None
        written.record(entry(number, 5, [f"topic-{number}"]))
    assert written.names() is None and len(written.written_at) == _MAX_TOPICS


def test_an_entry_lists_its_topics_unless_they_are_too_many() -> None:
    few, many = entry(1, 5, ["a", "b"]), entry(1, 5, map(str, range(MAX_LISTED_TOPICS + 1)))
    assert read_ledger(few.encode()) == few
    read = read_ledger(many.encode())
    assert isinstance(read, Entry) and read.topics is None
    assert read_ledger(entry(1, 5, None).encode()) == entry(1, 5, None)
    assert read_ledger(entry(1, 5, []).encode()) == entry(1, 5, [])
