"""The parts of the audit without Spark: windows of the ledger, percentiles, and the page."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.model.ledger import Fates
from duemq.pipeline.audit.job import FATES, Result
from duemq.pipeline.audit.lateness import Spread, spreads
from duemq.pipeline.audit.report import report, verdict
from duemq.pipeline.audit.window import windows
from duemq.pipeline.ranges import TopicRange


def entry(n: int, **more: Any) -> dict[str, Any]:
    """Entry `n` of shard 0: it applied ten commands, all of them messages that wait."""
    plain = {
        "shard": 0, "ledger_offset": 2 * n, "written": 1_000 + n, "n": n, "applied": 10 * (n + 1), "cursor_due": n,
        "cursor_offset": 0, "cursor_row": 0, "at": 1_000 + n, "pending": 10 * (n + 1), "accepted": 10 * (n + 1),
        "delivered": 0, "cancelled": 0, "dead": 0, "problem": None,
    }  # fmt: skip
    return plain | more


def test_a_window_begins_with_the_first_entry_or_behind_a_base() -> None:
    found, wrong = windows([entry(n) for n in (2, 0, 1)])
    assert (found[0].base_n, found[0].known_from, found[0].applied, found[0].gained) == (-1, 0, 30, Fates(30))
    assert found[0].whole and not wrong
    found, wrong = windows([entry(5), entry(6)])
    assert (found[0].base_n, found[0].known_from, found[0].gained) == (5, 60, Fates(10)) and not wrong
    found, _ = windows([entry(n) for n in range(4)], since=1_002)
    assert (found[0].base_n, found[0].last_n, found[0].gained) == (1, 3, Fates(20))
    found, _ = windows([entry(n) for n in range(4)], since=1_000)
    assert found[0].base_n == -1
    assert windows([entry(n) for n in range(4)], since=2_000) == ({}, [])
    assert windows([]) == ({}, [])
    reading = windows([entry(5), entry(6)])[0][0].reading(65, 99)
    assert (reading.known_from, reading.complete, reading.buffer_end) == (65, False, 99)
    assert not windows([entry(0)])[0][0].reading(3, 99).whole


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([entry(0), entry(2)], "entry 2 follows entry 0"),
        ([entry(0), entry(1), entry(1, ledger_offset=9)], "entry 1 follows entry 1"),
        ([entry(0), entry(1, applied=5)], "goes back"),
        ([entry(0, cursor_due=9), entry(1)], "goes back"),
        ([entry(0, delivered=1)], "10 accepted, but 1 delivered"),
        ([entry(0), entry(1, accepted=9, pending=9)], "counts fewer"),
        ([entry(0), entry(1, problem="not a ledger entry: b'x'", at=None)], "record 2 of the ledger"),
    ],
)
def test_entries_that_do_not_fit_together(rows: list[dict[str, Any]], said: str) -> None:
    _, wrong = windows(rows)
    assert [one.kind for one in wrong] == ["ledger"] and said in wrong[0].detail


def test_percentiles_of_counts() -> None:
    one = Spread.of([5, 0, 1_000], [98, 1, 1])
    assert one == Spread(100, 5, 5, 5, 1_000, 1_000)
    rows = [{"topic": topic, "late_ms": ms, "messages": 1} for topic, ms in (("b", 3), ("a", 1), ("b", 5), (None, 7))]
    assert list(spreads(rows, "topic")) == ["a", "b", None]
    assert spreads(rows)[()].messages == 4 and spreads(rows, "topic")["b"].highest == 5


def result(**more: Any) -> Result:
    window = windows([entry(0), entry(1)])[0][0]
    late = [
        {"topic": "a<b", "shard": 0, "hour": hour * 3_600_000, "late_ms": 10**hour, "messages": 5} for hour in range(5)
    ]
    plain: dict[str, Any] = {
        "account": dict.fromkeys(FATES, 0) | {"delivered": 25, "pending": 3}, "others": {"direct": 1}, "found": {},
        "shown": [], "late": late, "shards": [window], "notes": ["a & b"],
        "ranges": [TopicRange("orders", {0: 1}, {0: 9}, {0: 0})],
    }  # fmt: skip
    return Result(**plain | more)


def test_the_page_says_it_at_a_glance() -> None:
    page = report(result(), "duemq on x<y", 0)
    assert "Every message is accounted for" in page and "<b>28</b>" in page and "0: 1..9" in page
    assert "a&lt;b" in page and "a<b" not in page and "x<y" not in page and "a &amp; b" in page
    assert "http" not in page and "<script" not in page
    assert page.count("<svg") == 2 and page.count("<circle") == 15
    wrong = {"kind": "early", "shard": 1, "id": "<id>", "topic": None, "asked": 5, "delivered_at": None, "detail": None}
    page = report(result(found={"early": 3}, shown=[wrong]), "x", 0)
    assert "3 violations" in page and "&lt;id&gt;" in page and "2 more are in the table" in page
    assert "cannot be known" in verdict(result(account=dict.fromkeys(FATES, 1)))
    assert verdict(result(found={"early": 1})) == "1 violation"
    assert "no entry" in verdict(result(shards=[])) and "<svg" not in report(result(late=[], shards=[]), "x", 0)
