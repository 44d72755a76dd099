"""The parts of the audit without Spark: what it sums up to, and the page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from duemq.model.log.ledger import OutcomeCounts
from duemq.pipeline.audit.job import OUTCOMES, AuditResult
from duemq.pipeline.audit.lateness import Late, Spread
from duemq.pipeline.audit.report import report, verdict
from duemq.pipeline.audit.window import ShardWindow
from duemq.pipeline.logs.ranges import TopicRange

WINDOW = ShardWindow(0, -1, 1, 0, 0, 20, (1, 0, 0), 0, 1_001, OutcomeCounts(20), 20)


def result(**more: Any) -> AuditResult:
    hours = {hour * 3_600_000: Spread(5, *[10**hour] * 5) for hour in range(5)}
    whole = Spread(25, 100, 10_000, 10_000, 10_000, 10_000)
    late = Late(whole, {"a<b": whole}, {0: whole}, hours, [(10**hour, 5) for hour in range(5)])
    plain: dict[str, Any] = {
        "account": dict.fromkeys(OUTCOMES, 0) | {"delivered": 25, "pending": 3}, "others": {"direct": 1},
        "violation_counts": {}, "shown": [], "late": late, "shards": [WINDOW], "notes": ["a & b"],
        "ranges": [TopicRange("orders", {0: 1}, {0: 9}, {0: 0})],
    }  # fmt: skip
    return AuditResult(**plain | more)


def test_the_page_says_it_at_a_glance() -> None:
    page = report(result(), "duemq on x<y", 0)
    assert "Every message is accounted for" in page and "<b>28</b>" in page and "0: 1..9" in page
    assert "a&lt;b" in page and "a<b" not in page and "x<y" not in page and "a &amp; b" in page
    assert "http" not in page and "<script" not in page
    assert page.count("<svg") == 2 and page.count("<circle") == 15
    wrong = {"kind": "early", "shard": 1, "id": "<id>", "topic": None, "asked": 5, "delivered_at": None, "detail": None}
    page = report(result(violation_counts={"early": 3}, shown=[wrong]), "x", 0)
    assert "3 violations" in page and "&lt;id&gt;" in page and "2 more are in the table" in page
    assert "cannot be known" in verdict(result(account=dict.fromkeys(OUTCOMES, 1)))
    assert verdict(result(violation_counts={"early": 1})) == "1 violation"
    assert "no entry" in verdict(result(shards=[])) and "<svg" not in report(result(late=Late(), shards=[]), "x", 0)


def test_shards_without_an_entry_are_in_the_verdict() -> None:
    waiting = result(waiting={3: 5_000})
    assert verdict(waiting) == "No violation; 5,000 messages wait in 1 shard without a ledger entry in this range"
    assert waiting.clean and waiting.unknown == 5_000
    assert "5,000 messages wait" in verdict(result(waiting={3: 5_000}, shards=[]))


def test_of_how_many_it_cannot_be_known() -> None:
    dropped = replace(WINDOW, base_applied=4, known_from=7)
    unproven = dict.fromkeys(OUTCOMES, 0) | {"unproven": 10}
    assert result(account=unproven, shards=[dropped], doubtful=100).unknown == 113
    assert result().unknown == 0
