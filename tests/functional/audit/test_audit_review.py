"""Faults that a consistent ledger hides: one history in which a server has made each of them once.

The first audit called this history clean: it trusted the ledger's answers, and looked at counts alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from duemq.model.log.ledger import Answer
from duemq.model.messages.key import CHECKSUM_MASK, checksum, make_key
from duemq.pipeline.audit import window
from duemq.pipeline.audit.evidence import Extent, Frames, Gathered
from duemq.pipeline.audit.job import AuditResult, conclude
from duemq.pipeline.audit.report import verdict
from duemq.pipeline.logs import decode
from tests.support.spark.log_frames import frame_of
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

T = 1_800_000_000_000
DELAY_FILE = T + 10**10
LAST = 2**63 - 1

Row = dict[str, Any]


def schedule(offset: int, due: int, content: int, name: str | None = None) -> Row:
    return {
        "shard": 0, "offset": offset, "at": T, "kind": "schedule", "plain": False, "due": due, "topic": "orders",
        "name": name, "expires": 0, "content": content, "metadata": 1,
    }  # fmt: skip


def cancel(offset: int, of: int, due: int) -> Row:
    return {
        "shard": 0, "offset": offset, "at": T + 100, "kind": "cancel", "plain": False, "first_due": due,
        "first_offset": of, "first_row": 0, "content": 0,
    }  # fmt: skip


def entry(n: int, applied: int, cursor: tuple[int, int, int], at: int, pending: int, **more: Any) -> Row:
    plain = {
        "shard": 0, "ledger_offset": 2 * n, "written": at, "n": n, "applied": applied, "cursor_due": cursor[0],
        "cursor_offset": cursor[1], "cursor_row": cursor[2], "at": at, "pending": pending, "checksum": "0",
        "cancelled": 0, "horizon": 0, "end_horizon": 0, "deferred": [], "imported": [],
    }  # fmt: skip
    return plain | more


def record(sent: int, first_due: int, row: int, content: int, at: int, **more: Any) -> Row:
    plain = {
        "topic": "orders", "partition": 0, "offset": sent * 10 + row, "at": at, "by_broker": False, "due": first_due,
        "attempt": 1, "content": content, "metadata": 1, "id": "x", "shard": 0, "first_due": first_due,
        "first_offset": sent, "first_row": row, "mac": 5,
    }  # fmt: skip
    return plain | more


def history(spark: SparkSession, folder: Path) -> Gathered:
    file = folder / "far.parquet"
    rows = {"due_ms": pa.array([T + 10, T + 20], pa.int64()), "topic": ["orders"] * 2, "payload": [b"a", b"b"]}
    pq.write_table(pa.table(rows), file)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    commands = [
        schedule(0, T + 1_000, 11), schedule(1, T + 1_000, 12, "n:a"), schedule(2, T + 1_000, 12, "n:a"),
        schedule(3, DELAY_FILE, 1), cancel(4, 3, DELAY_FILE), schedule(5, T + 5_000, 13), cancel(6, 5, T + 5_000),
        schedule(7, DELAY_FILE, 2), cancel(8, 7, DELAY_FILE),
        {"shard": 0, "offset": 9, "at": T, "kind": "malformed", "plain": True, "content": 0},
        schedule(10, T + 2_000, 14), schedule(11, T + 6_000, 15),
        {
            "shard": 0, "offset": 12, "at": T - 10**7, "kind": "import", "plain": True, "path": str(file),
            "sha256": sha256, "size": file.stat().st_size, "window": T, "rows": 2, "content": 0,
        },
        schedule(13, T + 7_000, 16) | {"expires": T + 7_001}, schedule(14, T + 8_000, 17),
    ]  # fmt: skip
    answer = Answer
    of_file = checksum([make_key(T + 10, 12, 0), make_key(T + 20, 12, 1)]) & CHECKSUM_MASK
    pending = (
        checksum([make_key(DELAY_FILE, 3, 0), make_key(DELAY_FILE, 7, 0), make_key(T + 8_000, 14, 0)]) & CHECKSUM_MASK
    )
    entries = [
        entry(0, 7, (T + 5, 0, 0), T + 101, 5, accepted=5, delivered=0, dead=0, answers=[
            (1, int(answer.ACCEPTED)), (2, int(answer.ACCEPTED)), (4, int(answer.UNKNOWN)), (6, int(answer.DELIVERED)),
        ]),
        entry(1, 15, (T + 7_500, LAST, 0), T + 10**9, 3, accepted=11, delivered=7, dead=1, checksum=f"{pending:016x}",
            answers=[(9, int(answer.MALFORMED)), (10, int(answer.MALFORMED)), (12, int(answer.FILE_PENDING))],
            deferred=[(T + 7_000, 13, 0, None, None, None, 0, "expired")], imported=[(12, 2, "", f"{of_file:016x}")],
        ),
    ]  # fmt: skip
    deliveries = [
        record(0, T + 1_000, 0, 11, T + 1_000), record(1, T + 1_000, 0, 12, T + 1_001),
        record(2, T + 1_000, 0, 12, T + 1_001), record(5, T + 5_000, 0, 13, T + 5_001),
        record(11, T + 6_000, 0, 15, T + 6_000, due=T + 1, attempt=9), record(12, T + 10, 0, 999, T + 11),
        record(12, T + 20, 1, 998, T + 21),
    ]  # fmt: skip
    letter = record(13, T + 7_000, 0, 777, T + 7_001, topic="duemq.dlq", offset=0, attempt=1, reason="expired",
                    topic_state="orders", shortened=False)  # fmt: skip
    frames = Frames(
        frame_of(spark, decode.ENTRIES, entries), frame_of(spark, decode.COMMANDS, commands),
        frame_of(spark, decode.DELIVERIES, deliveries), frame_of(spark, decode.DEAD_LETTERS, [letter]),
    )  # fmt: skip
    windows, findings = window.windows(frames.entries, None, 10**10)
    reading = {shard: one.reading(0, 15) for shard, one in windows.items()}
    return Gathered(frames, Extent(reading, {"orders": -1}, -1, -1), findings, [], [])


def found(result: AuditResult) -> list[tuple[str, int | None]]:
    return sorted((row["kind"], row["offset"]) for row in result.shown)


def test_each_of_them_is_found(spark: SparkSession, tmp_path: Path) -> None:
    result = conclude(spark, history(spark, tmp_path), tmp_path / "out")
    assert verdict(result) == "15 violations", result.shown
    assert found(result) == sorted([
        ("name_twice", 2),  # two schedules of one name both accepted, both delivered
        ("refused", 10),  # a good schedule answered malformed: dropped
        ("lost_letter", 9), ("lost_letter", 10),  # what was refused has no dead letter
        ("false_answer", 3),  # a cancel of a pending message answered unknown
        ("false_answer", 5),  # a cancel answered "already delivered" before the delivery
        ("unanswered", 8),  # a cancel that never got an answer
        ("overdue", 14),  # due long before the last entry, and the cursor never reaches it
        ("altered", 12), ("altered", 12), ("altered_headers", 12), ("altered_headers", 12),  # of an imported file
        ("wrong_due", 11), ("wrong_attempt", 11),
        ("altered_letter", 13),  # a redrive would deliver it
    ])  # fmt: skip
    assert result.account == Counter(delivered=7, dead=1, pending=3, cancelled=0, moved=0, lost=0, unproven=0)


def test_without_the_faults_it_is_clean(spark: SparkSession, tmp_path: Path) -> None:
    """What is not changed there is no violation."""
    got = history(spark, tmp_path)
    commands = [row.asDict() for row in got.frames.commands.collect()]
    sound = [one for one in commands if one["offset"] in (0, 11)]
    entries = [entry(0, 15, (T + 7_500, LAST, 0), T + 8_000, 0, accepted=2, delivered=2, dead=0, answers=[])]
    records = [record(0, T + 1_000, 0, 11, T + 1_000), record(11, T + 6_000, 0, 15, T + 6_000)]
    frames = Frames(
        frame_of(spark, decode.ENTRIES, entries), frame_of(spark, decode.COMMANDS, sound),
        frame_of(spark, decode.DELIVERIES, records), frame_of(spark, decode.DEAD_LETTERS, []),
    )  # fmt: skip
    windows, findings = window.windows(frames.entries, None, 10**10)
    reading = {shard: one.reading(0, 15) for shard, one in windows.items()}
    sound_history = replace(got, frames=frames, extent=replace(got.extent, windows=reading), findings=findings)
    result = conclude(spark, sound_history, tmp_path / "out")
    assert result.clean and verdict(result) == "Every message is accounted for", result.shown


def test_its_tables_are_on_this_machine_whatever_the_clusters_default_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = history(spark, tmp_path)
    (folder := tmp_path / "of [this] process").mkdir()
    monkeypatch.chdir(folder)
    spark.conf.set("fs.defaultFS", "nowhere://cluster/")
    try:
        result = conclude(spark, got, "out", outcomes_table=True)
    finally:
        spark.conf.unset("fs.defaultFS")
    assert result.violations == 15
    tables = {name: pq.read_table(folder / "out" / name).num_rows for name in ("violations", "outcomes")}
    assert tables == {"violations": 15, "outcomes": sum(result.account.values()) + sum(result.others.values())}, tables


def test_a_message_that_died_130_times(spark: SparkSession, tmp_path: Path) -> None:
    """Its letters are counted like its deaths, however many there are."""
    deaths = 130
    commands = [schedule(0, T, 11)] + [
        {
            "shard": 0, "offset": k, "at": T + 10 * k, "kind": "redrive", "plain": False, "due": T + 10 * k,
            "first_due": T, "first_offset": 0, "first_row": 0, "content": 0,
        }
        for k in range(1, deaths)
    ]  # fmt: skip
    entries = [
        entry(
            k, k + 1, (T + 10 * k, k, 0), T + 10 * k + 1, 0, accepted=1, delivered=0, dead=1,
            answers=[(k, int(Answer.OK))] if k else [],
            deferred=[(T + 10 * k, k, 0, None, None, None, 1, "unknown_topic")],
        )
        for k in range(deaths)
    ]  # fmt: skip
    letters = [
        record(0, T, 0, 11, T + 10 * k + 1, topic="duemq.dlq", offset=k, reason="unknown_topic", topic_state="orders",
               shortened=False)
        for k in range(deaths)
    ]  # fmt: skip

    def audited(letters: list[Row]) -> AuditResult:
        frames = Frames(
            frame_of(spark, decode.ENTRIES, entries), frame_of(spark, decode.COMMANDS, commands),
            frame_of(spark, decode.DELIVERIES, []), frame_of(spark, decode.DEAD_LETTERS, letters),
        )  # fmt: skip
        windows, findings = window.windows(frames.entries, None, 10**10)
        reading = {shard: one.reading(0, deaths) for shard, one in windows.items()}
        read = Gathered(frames, Extent(reading, {"orders": -1}, -1, -1), findings, [], [])
        return conclude(spark, read, tmp_path / "out")

    result = audited(letters)
    assert result.clean and result.account["dead"] == 1, result.shown
    assert audited(letters[1:]).violation_counts == {"lost_letter": 1}
    assert audited([*letters[:-1], letters[0] | {"offset": 900}, letters[1]]).violation_counts == {"stray_letter": 1}
