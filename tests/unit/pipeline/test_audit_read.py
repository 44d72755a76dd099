"""The edge of the audit: which offsets are read, what may have been dropped, and what is said of both."""

from __future__ import annotations

import time
from typing import Any

import pytest

from duemq.pipeline.audit import read
from duemq.pipeline.audit.read import FOREVER, MARGIN_MS, dropped_before, ledger_range, topic_ranges
from duemq.pipeline.errors import BadInput
from duemq.pipeline.logs.ranges import Retention
from tests.support.servers.fake_kafka import FakeKafka, FakePartition, records

HOUR, DAY = 3_600_000, 86_400_000
NOW = time.time_ns() // 1_000_000
OLD = NOW - 30 * DAY
WEEK = {"cleanup_policy": "delete", "retention_ms": str(7 * DAY), "retention_bytes": "-1"}
KEPT = {"cleanup_policy": "delete", "retention_ms": "-1", "retention_bytes": "-1"}


def kafka(*partitions: FakePartition, **config: str) -> FakeKafka:
    found = FakeKafka().topic("duemq.buffer", records([1])).topic("duemq.ledger", records([1]))
    return found.topic("orders", *partitions, **(config or WEEK))


def about(found: int, ago_ms: int) -> bool:
    """Whether a time is so long ago, but for the time the test takes."""
    return abs(found - (NOW - ago_ms)) < HOUR


CUT = [
    pytest.param(Retention(7 * DAY), None, 7 * DAY, id="a quiet partition that is empty by now"),
    pytest.param(Retention(7 * DAY), NOW - 300_000, 7 * DAY, id="a quiet partition with one new record"),
    pytest.param(Retention(7 * DAY), NOW - 9 * DAY, 9 * DAY, id="older segments that are not dropped yet"),
    pytest.param(Retention(-1, 1_000), NOW - DAY, DAY, id="a limit of size"),
    pytest.param(Retention(7 * DAY, 1_000), NOW - DAY, DAY, id="a limit of size that is reached before that of time"),
    pytest.param(Retention(7 * DAY, 1_000), None, 7 * DAY, id="a limit of size empties no partition"),
    pytest.param(None, NOW - DAY, DAY, id="a configuration that we may not read"),
    pytest.param(Retention(), NOW - DAY, DAY, id="records that somebody deleted"),
]
UNKNOWABLE = [
    pytest.param(None, id="no configuration, and nothing left"),
    pytest.param(Retention(), id="deleted by somebody, and nothing left"),
    pytest.param(Retention(-1, 1_000), id="emptied in spite of a limit of size only"),
    pytest.param(Retention(7 * DAY, 0), id="no byte is kept"),
]


@pytest.mark.parametrize(("policy", "first", "ago_ms"), CUT)
def test_what_is_configured_says_what_may_have_been_dropped(
    policy: Retention | None, first: int | None, ago_ms: int
) -> None:
    found = dropped_before(policy, first, NOW)
    assert NOW - ago_ms <= found <= NOW - ago_ms + MARGIN_MS


@pytest.mark.parametrize("policy", UNKNOWABLE)
def test_what_nobody_can_say(policy: Retention | None) -> None:
    assert dropped_before(policy, None, NOW) == FOREVER


def test_one_quiet_partition_does_not_switch_off_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = kafka(records(range(NOW - 6 * DAY, NOW, HOUR), start=1_000), records([], start=500))
    found = topic_ranges(quiet.answers(monkeypatch), [], None, None)
    assert about(found.known_from["orders"], 7 * DAY) and found.anywhere_from == found.known_from["orders"]
    (note,) = found.notes
    assert "retention.ms=604800000" in note and "orders: records from before" in note
    later = topic_ranges(quiet.answers(monkeypatch), [], NOW - DAY, None)
    assert later.known_from["orders"] < NOW - DAY and later.notes == (), "all of the range is there"


def test_nothing_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    found = topic_ranges(kafka(records([OLD, NOW]), records([])).answers(monkeypatch), [], None, None)
    assert (found.known_from, found.anywhere_from, found.letters, found.notes) == ({"orders": -1}, -1, None, ())
    assert found.ranges["orders"].ends == {0: 2, 1: 0} and found.all_read


def test_since_and_until_have_a_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    times = range(OLD, OLD + 10 * MARGIN_MS, MARGIN_MS // 2)
    (since, until) = OLD + 3 * MARGIN_MS, OLD + 5 * MARGIN_MS
    found = topic_ranges(kafka(records(times), **KEPT).answers(monkeypatch), [], since, until).ranges["orders"]
    assert (found.starts, found.ends) == ({0: 4}, {0: 12})


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    compacted = kafka(records([OLD]), cleanup_policy=policy, retention_ms="1000").answers(monkeypatch)
    found = topic_ranges(compacted, [], None, None)
    assert found.known_from == {"orders": FOREVER} and "orders is compacted" in found.notes[0]


def test_a_topic_about_which_we_may_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    forbidden = kafka(records([NOW - DAY], start=7))
    del forbidden.configurations["orders"]
    found = topic_ranges(forbidden.answers(monkeypatch), [], None, None)
    assert found.known_from["orders"] == NOW - DAY and "may have been dropped;" in found.notes[0]


def test_a_transaction_that_ends_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = topic_ranges(kafka(records([1, 2, 3, 4], open=2, looks=3), **KEPT).answers(monkeypatch), [], None, None)
    assert found.ranges["orders"].ends == {0: 4} and found.notes == ()


def test_a_transaction_that_stays_open_holds_its_topic_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_PATIENCE_S", 0.1)
    found = topic_ranges(kafka(records([1, 2, 3, 4], open=2), **KEPT).answers(monkeypatch), [], None, None)
    assert found.ranges["orders"].ends == {0: 2} and found.known_from == {"orders": FOREVER}
    assert "orders 0: a transaction is open" in found.notes[0]


def test_topics_that_are_named_and_those_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = kafka(records([1]), **KEPT).topic("mails", records([1, 2]), **KEPT).answers(monkeypatch)
    found = topic_ranges(logs, ["mails"], None, None)
    assert set(found.ranges) == {"mails"} and not found.all_read and found.anywhere_from is None
    assert found.notes == ("not read: orders",)
    with pytest.raises(BadInput, match="no topic nothing to deliver to"):
        topic_ranges(logs, ["nothing"], None, None)


@pytest.mark.parametrize("name", ["duemq.dlq", "failed"])
def test_dead_letters_of_any_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    logs = kafka(records([1]), **KEPT).topic(name, records([], start=5), **WEEK).answers(monkeypatch)
    found = topic_ranges(logs, [], None, None, name)
    assert set(found.ranges) == {"orders"} and found.letters is not None and found.letters.topic == name
    assert found.letters_from is not None and about(found.letters_from, 7 * DAY)


def test_dead_letters_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = kafka(records([1]), **KEPT).answers(monkeypatch)
    assert topic_ranges(logs, [], None, None).letters_from is None
    with pytest.raises(BadInput, match="no topic failed for dead letters"):
        topic_ranges(logs, [], None, None, "failed")


def test_the_ledger_is_read_with_some_entries_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = FakeKafka().topic("duemq.buffer", records([1])).topic("duemq.ledger", records(range(500, 900)))
    found = ledger_range(logs.answers(monkeypatch), 700, 800)
    assert (found.starts, found.ends) == ({0: 200 - 64}, {0: 300})
    with pytest.raises(BadInput, match="ends before it begins"):
        ledger_range(logs.answers(monkeypatch), 5, 5)
    with pytest.raises(BadInput, match=r"no topic duemq\.buffer: no duemq has run"):
        ledger_range(FakeKafka().answers(monkeypatch), None, None)


def test_a_thousand_topics_are_asked_about_with_as_many_requests_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def requests(topics: int) -> dict[str, int]:
        many = kafka(records([1]))
        for number in range(topics):
            many.topic(f"t{number}", records([OLD]), records([], start=3), **WEEK)
        found = topic_ranges(many.answers(monkeypatch), [], NOW - DAY, NOW)
        assert len(found.ranges) == topics + 1
        return dict(many.requests)

    one: dict[str, Any] = requests(1)
    assert one == requests(1_000)
    assert (one["topics"], one["configs"], one["opened"]) == (1, 1, 1) and one["offsets"] <= 7


def test_of_dead_letters_of_groups_duemq_may_have_purged_any_before_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = kafka(records([1]), **KEPT).topic("dlq.billing", records([NOW - HOUR], start=6), **WEEK)
    logs.topic("dlq.mails", records([], start=6), **WEEK).topic("dlq.whole", records([OLD]), **WEEK)
    found = topic_ranges(logs.answers(monkeypatch), [], None, None)
    assert found.known_from == {"orders": -1, "dlq.billing": NOW - HOUR, "dlq.mails": FOREVER, "dlq.whole": -1}
    assert [note.partition(":")[0] for note in found.notes] == ["dlq.billing", "dlq.mails"]


def test_topics_that_duemq_does_not_deliver_to_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = kafka(records([1]), **KEPT).topic("huge", records([OLD], start=5), **WEEK).answers(monkeypatch)
    every = topic_ranges(logs, ["*"], None, None)
    assert set(every.ranges) == {"orders", "huge"} and every.all_read and every.within(["orders", "huge"]) is every
    mine = every.within(["orders", "gone"])
    assert (set(mine.ranges), mine.known_from, mine.anywhere_from) == ({"orders"}, {"orders": -1}, None)
    assert mine.notes == ("not read, for duemq delivers nothing there: huge",)


def test_a_purge_of_another_topic_has_left_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    there = kafka(records([NOW - HOUR], start=6), records([], start=6))
    there.purged["orders"] = NOW - DAY
    assert topic_ranges(there.answers(monkeypatch), [], None, None).known_from == {"orders": NOW - DAY + MARGIN_MS}
    there.purged.clear()
    assert about(topic_ranges(there.answers(monkeypatch), [], None, None).known_from["orders"], 7 * DAY)
