"""The audit of a real history: clean as it is, and with each kind of violation exactly these are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duemq.pipeline.audit import sums
from duemq.pipeline.audit.job import AuditResult, audit
from tests.support.audit.audit_site import IMPORTED, Past
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests


def said(result: AuditResult) -> str:
    return "\n".join(map(str, [result.account, result.others, result.violation_counts, *result.shown, *result.notes]))


def test_a_real_history_is_clean(
    spark: SparkSession, past: Past, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "FEW", 0)
    result = audit(spark, past.bootstrap, tmp_path)
    history = past.history
    assert result.clean, said(result)
    assert result.account == {
        "delivered": len(history.delivered) + 2 + 1,  # two by a plain client, one redriven
        "cancelled": len(history.cancelled) + 1 + 1,  # one by a plain client, one of the file
        "moved": len(history.moved_on), "dead": 2, "pending": len(history.pending) + IMPORTED - 2,
        "lost": 0, "unproven": 0,
    }, said(result)  # fmt: skip
    assert result.others == {"direct": len(history.direct)}
    assert result.accepted == sum(one.gained.accepted for one in result.shards)
    whole = audit(spark, past.bootstrap, tmp_path, outcomes_table=True)
    for name in ("account", "others", "violation_counts", "shown", "late", "answers", "notes"):
        assert getattr(whole, name) == getattr(result, name), name


def test_a_time_range_is_accounted_for_itself(spark: SparkSession, past: Past, tmp_path: Path) -> None:
    """What was accepted before a range and is delivered, moved or cancelled in it is no violation, and no message is
    accounted in two ranges that meet, or in none."""
    at = past.history.halfway
    before, after = audit(spark, past.bootstrap, tmp_path, until=at), audit(spark, past.bootstrap, tmp_path, since=at)
    assert before.clean, said(before)
    assert after.clean, said(after)
    assert before.accepted == past.history.before, said(before)
    whole = sum(one.gained.accepted for one in (*before.shards, *after.shards))
    assert before.accepted + after.accepted == whole
    assert before.account["pending"] == 5 and after.account["moved"] == len(past.history.moved_on)
    assert after.others["earlier"] == past.history.before - 6 - 5 + 1, said(after)
