"""A shard that has had no master for a day, beside one that works."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duemq.model.messages.key import CHECKSUM_MASK, checksum, make_key
from duemq.pipeline.audit import sums, window
from duemq.pipeline.audit.evidence import Extent, Frames, Gathered
from duemq.pipeline.audit.job import AuditResult, conclude
from duemq.pipeline.logs import decode
from duemq.pipeline.logs.ranges import TopicRange
from tests.functional.audit.test_audit_review import LAST, Row, T, entry, record, schedule
from tests.support.spark.log_frames import frame_of
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

DAY = 86_400_000


def audited(spark: SparkSession, out: Path, others: list[Row], seen_at: int = 0) -> AuditResult:
    """Ten messages of shard 0 are due a second after its last entry, ten more are not applied. Shard 1 has delivered
    one, and then `others`."""
    commands = [schedule(n, T + 1_000 + n, n) for n in range(10)]
    commands += [schedule(n, T + 2 * DAY + n, n) for n in range(10, 20)]
    commands += [schedule(0, T + 500, 7) | {"shard": 1}]
    pending = checksum([make_key(T + 1_000 + n, n, 0) for n in range(10)]) & CHECKSUM_MASK
    empty = {"delivered": 0, "dead": 0, "answers": []}
    entries = [
        entry(0, 10, (T + 100, LAST, 0), T + 101, 10, accepted=10, checksum=f"{pending:016x}", **empty),
        entry(0, 1, (T + 1_000, LAST, 0), T + 1_001, 0, **empty | {"accepted": 1, "delivered": 1}) | {"shard": 1},
        *others,
    ]
    deliveries = [record(0, T + 500, 0, 7, T + 501) | {"shard": 1}]
    frames = Frames(
        frame_of(spark, decode.ENTRIES, entries), frame_of(spark, decode.COMMANDS, commands),
        frame_of(spark, decode.DELIVERIES, deliveries), frame_of(spark, decode.DEAD_LETTERS, []),
    )  # fmt: skip
    windows, findings = window.windows(frames.entries, None, 10**10)
    windows = {0: windows[0].reading(0, 20), 1: windows[1].reading(0, 1)}
    extent = Extent(windows, {"orders": -1}, -1, -1, seen_at=seen_at)
    many = [TopicRange("duemq.buffer", {0: 0, 1: 0}, {0: 20, 1: 1}, {0: 0, 1: 0})]
    return conclude(spark, Gathered(frames, extent, findings, [], many), out)


ALL = {("overdue", 0, offset) for offset in range(20)}


def violations(result: AuditResult) -> set[tuple[str, int, int]]:
    return {(one["kind"], one["shard"], one["offset"]) for one in result.shown}


@pytest.mark.parametrize("few", [sums.FEW, 0], ids=["row by row", "by sums"])
def test_a_shard_that_stood_still_while_another_worked(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(sums, "FEW", few)
    later = entry(1, 1, (T + DAY, LAST, 0), T + DAY + 1, 0, accepted=1, delivered=1, dead=0, answers=[]) | {"shard": 1}
    result = audited(spark, tmp_path / "out", [later])
    assert violations(result) == ALL
    assert result.account["pending"] == 10 and result.others["not applied yet"] == 10


def test_a_duemq_that_stood_still_until_the_end_of_the_range(spark: SparkSession, tmp_path: Path) -> None:
    assert violations(audited(spark, tmp_path / "a", [], seen_at=T + DAY)) == ALL
    assert audited(spark, tmp_path / "b", [], seen_at=T + 600_000).clean
