"""Entries by which a node says what it lost, or from which replica an operator went on: in the audit of whole logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from duemq.model.log.ledger import Answer, Entry
from duemq.model.messages.key import CHECKSUM_MASK, checksum, make_key
from duemq.model.messages.record import pack_record
from duemq.pipeline.audit import window
from duemq.pipeline.audit.evidence import Extent, Frames, Gathered
from duemq.pipeline.audit.job import AuditResult, _notes, conclude
from duemq.pipeline.audit.report import verdict
from duemq.pipeline.logs import decode
from duemq.pipeline.logs.logs import entries as read_entries
from tests.functional.audit.test_audit_review import DELAY_FILE, LAST, Row, T, cancel, entry, record, schedule
from tests.support.spark.log_frames import frame_of, kafka_frame
from tests.support.spark.log_frames import record as kafka_record
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests


def pending(*messages: tuple[int, int]) -> dict[str, Any]:
    """Of the messages (due, offset) that wait."""
    total = checksum([make_key(due, offset, 0) for due, offset in messages]) & CHECKSUM_MASK
    return {"pending": len(messages), "checksum": f"{total:016x}"}


def cycle(n: int, applied: int, cursor: int, at: int, *waiting: tuple[int, int], **more: Any) -> Row:
    plain = {"accepted": 0, "delivered": 0, "dead": 0, "answers": [], "cancelled": 0} | pending(*waiting)
    return entry(n, applied, (cursor, LAST, 0), at, 0) | plain | more


def audited(
    spark: SparkSession, out: Path, entries: list[Row], commands: list[Row], records: list[Row], start: int = 0
) -> AuditResult:
    """`start`: where the buffer begins."""
    frames = Frames(
        frame_of(spark, decode.ENTRIES, entries),
        frame_of(spark, decode.COMMANDS, [one for one in commands if one["offset"] >= start]),
        frame_of(spark, decode.DELIVERIES, records), frame_of(spark, decode.DEAD_LETTERS, []),
    )  # fmt: skip
    windows, findings = window.windows(frames.entries, None, 10**10)
    reading = {shard: one.reading(start, len(commands)) for shard, one in windows.items()}
    read = Gathered(frames, Extent(reading, {"orders": -1}, -1, -1), findings, _notes(reading), [])
    return conclude(spark, read, out)


def with_loss(applied: int, lost: tuple[int, int]) -> list[Row]:
    """Message 0, then commands that a node could not read, and one more message; both are delivered."""
    return [
        cycle(0, 1, T, T + 1, (T + 1_000, 0), accepted=1),
        cycle(1, applied, T + 5_000, T + 5_001, accepted=2, delivered=2, lost_from=lost[0], lost_to=lost[1]),
    ]


def test_what_a_node_lost_is_a_violation(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody had read commands 1 and 2 when retention dropped them; all others are accounted for."""
    commands = [schedule(n, T + 1_000 + n, 10 + n) for n in range(4)]
    entries = with_loss(applied=4, lost=(1, 3))
    records = [record(n, T + 1_000 + n, 0, 10 + n, T + 1_003) for n in (0, 3)]
    result = audited(spark, tmp_path / "out", entries, commands, records, start=3)
    assert result.violation_counts == {"lost_commands": 1} and verdict(result) != "Every message is accounted for"
    (shown,) = result.shown
    assert shown["shard"] == 0 and "commands 1 to 2" in shown["detail"]
    # What came before is not in the buffer any more either: it was read.
    assert result.unknown >= 2 and any("dropped from duemq.buffer" in note for note in result.notes)


def test_what_a_node_calls_lost_and_the_log_has_is_found(spark: SparkSession, tmp_path: Path) -> None:
    commands = [schedule(n, T + 1_000 + n, 10 + n) for n in range(3)]
    entries = with_loss(applied=3, lost=(1, 2))
    records = [record(n, T + 1_000 + n, 0, 10 + n, T + 1_003) for n in (0, 2)]
    result = audited(spark, tmp_path / "out", entries, commands, records)
    assert result.violation_counts == {"lost": 1, "ledger": 1, "lost_commands": 1}, result.shown


def recovered() -> tuple[list[Row], list[Row], list[Row]]:
    """Entry 1 accepted message 1, cancelled message 0 and forgot to deliver message 2; then an operator went on from
    entry 0, and entry 3 called the cancel too late."""
    commands = [schedule(0, T + 1_000, 10), schedule(1, DELAY_FILE, 11), cancel(2, 0, T + 1_000)]
    before = {"accepted": 1} | pending((T + 1_000, 0))
    entries = [
        cycle(0, 1, T, T + 1, **before),
        cycle(1, 3, T + 500, T + 501, (DELAY_FILE, 1), accepted=2, cancelled=1, answers=[(2, int(Answer.OK))]),
        cycle(2, 1, T, T + 2_000, base=0, **before),
        cycle(3, 1, T + 1_500, T + 2_001, accepted=1, delivered=1),
        cycle(
            4, 3, T + 3_000, T + 3_001, (DELAY_FILE, 1), accepted=2, delivered=1, answers=[(2, int(Answer.DELIVERED))]
        ),
    ]
    return entries, commands, [record(0, T + 1_000, 0, 10, T + 2_001)]


def test_what_an_operator_made_void_is_no_violation(spark: SparkSession, tmp_path: Path) -> None:
    entries, commands, records = recovered()
    result = audited(spark, tmp_path / "out", entries, commands, records)
    assert result.clean and verdict(result) == "Every message is accounted for", result.shown
    assert (result.account["delivered"], result.account["pending"], result.account["cancelled"]) == (1, 1, 0)
    (note,) = result.notes
    assert "entry 2 goes on from entry 0" in note
    assert result.answers == {"delivered": 1}, "what was void was no answer"


def test_what_is_wrong_around_a_recovery_is_found(spark: SparkSession, tmp_path: Path) -> None:
    entries, commands, records = recovered()
    again = record(0, T + 1_000, 0, 10, T + 1_400, offset=99)
    twice = audited(spark, tmp_path / "out", entries, commands, [*records, again])
    assert twice.violation_counts == {"twice": 1}, "by the void entry and by the one that counts"
    untrue = [*entries[:4], entries[4] | {"answers": [(2, int(Answer.CANCELLED_BEFORE))]}]
    assert audited(spark, tmp_path / "out", untrue, commands, records).violation_counts == {"false_answer": 1}
    without = [one | {"base": None} for one in entries]
    assert "ledger" in audited(spark, tmp_path / "out", without, commands, records).violation_counts


def test_entries_say_what_they_lost_and_what_they_go_on_from(spark: SparkSession) -> None:
    said = [Entry(4, 9, bytes(20), 5, lost=(3, 7)), Entry(5, 9, bytes(20), 5, base=2), Entry(6, 9, bytes(20), 5)]
    rows = kafka_frame(spark, [
        kafka_record("duemq.ledger", 0, n, 5, frame) for n, frame in enumerate(map(of_entry, said))
    ])  # fmt: skip
    found = read_entries(rows).orderBy("n").select("lost_from", "lost_to", "base", "problem").collect()
    assert [tuple(row) for row in found] == [(3, 7, None, None), (None, None, 2, None), (None, None, None, None)]


def of_entry(entry: Entry) -> bytes:
    return pack_record(None, (), entry.encode())
