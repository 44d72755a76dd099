"""Rows of the history, out of a few records."""

from __future__ import annotations

from datetime import date

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.testing import assertDataFrameEqual

from duemq.model.log.ledger import Answer, Entry, FileDecision
from duemq.model.messages.ids import DIRECT, IdCodec
from duemq.model.messages.key import make_key
from duemq.model.messages.message import CANCEL, MOVE, Draft, change_frame, schedule_frame
from duemq.model.messages.names import of_client
from duemq.model.messages.record import pack_record
from duemq.model.messages.row import dead_frame, frame_in, row_of
from duemq.pipeline.history import rows
from duemq.pipeline.history.questions import lateness_by_hour, once, repeated, volume_by_day
from duemq.pipeline.logs import logs
from tests.support.spark.log_frames import kafka_frame, record
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

NOW = 1_830_297_600_000  # 2028-01-01T00:00:00Z
KEY = make_key(NOW, 2**40 + 3, 70_000)


def frame_of(id_: str, due: int = NOW, key: bytes | None = b"k") -> bytes:
    return frame_in(row_of(schedule_frame(Draft("orders", b"x", due, key), due), id_.encode()))


def test_a_delivery_says_what_its_id_says_and_how_late_it_was(spark: SparkSession) -> None:
    ids = IdCodec(bytes(range(32)))
    far, direct = ids.issue(3, NOW, 2**40 + 3, 70_000), ids.issue(DIRECT, NOW + 5, 1)
    told = frame_of("-" * 31 + "!")
    records = [
        record("orders", 1, 7, NOW + 86_400_012, frame_of(far)),
        record("orders", 0, 8, NOW - 1, frame_of(direct, NOW - 1, None)),
        record("orders", 0, 9, NOW, told),  # a stranger's: no id, and kept as it stands
        record("orders", 0, 10, NOW, pack_record(b"k", (("a", b"b"),), b"not duemq's")),
        record("duemq.dlq", 0, 11, NOW, frame_of(far)),
    ]
    found = rows.delivered(kafka_frame(spark, records))
    assert found.schema.simpleString() == spark.createDataFrame([], rows.DELIVERIES).schema.simpleString()
    first, second, third = sorted(found.collect(), key=lambda row: row.offset)
    assert first == Row(
        id=far, shard=3, first_due_ms=NOW, first_offset=2**40 + 3, first_row=70_000, key=bytearray(b"k"), due_ms=NOW,
        delivered_ms=NOW + 86_400_012, lateness_ms=86_400_012, attempt=1, partition=1, offset=7,
        date=date(2028, 1, 2), topic="orders",
    )  # fmt: skip
    assert (second.shard, second.key, second.lateness_ms, second.date) == (DIRECT, None, 0, date(2027, 12, 31))
    assert (third.id, third.shard, third.first_due_ms) == ("-" * 31 + "!", None, None)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_a_day_is_one_in_utc_whatever_zone_the_session_has(spark: SparkSession, zone: str) -> None:
    id_ = IdCodec(bytes(32)).issue(3, NOW, 5)
    times = [NOW - 1, NOW, NOW + 86_399_999, NOW + 86_400_000, -1, 0]
    records = [record("orders", 0, n, at, frame_of(id_)) for n, at in enumerate(times)]
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        found = rows.delivered(kafka_frame(spark, records)).orderBy("offset").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert [row.delivered_ms for row in found] == times
    assert [row.date.isoformat() for row in found] == [
        "2027-12-31", "2028-01-01", "2028-01-01", "2028-01-02", "1969-12-31", "1970-01-01",
    ]  # fmt: skip


def test_dead_letters_in_a_topic_of_another_name_are_no_deliveries(spark: SparkSession) -> None:
    id_ = IdCodec(bytes(32)).issue(3, NOW, 5)
    frame = kafka_frame(spark, [record(topic, 0, 1, NOW, frame_of(id_)) for topic in ("failed", "orders")])
    assert [row.topic for row in rows.delivered(frame, "failed").collect()] == ["orders"]


def test_what_entries_tell_of_is_known_before_they_are_looked_into(spark: SparkSession) -> None:
    def entry(n: int, answers: dict[int, Answer], *files: FileDecision) -> bytes:
        return entry_frame(Entry(n, 8, KEY, NOW, answers, imported=files))

    records = [
        record("duemq.ledger", 2, 50, NOW, entry(4, {3: Answer.ACCEPTED, 9: Answer.OK, 5: Answer.DUPLICATE})),
        record("duemq.ledger", 2, 51, NOW, 
            entry(5, {7: Answer.UNKNOWN}, FileDecision(6, 30, 1), FileDecision(8, 0, 0, "large"))),
        record("duemq.ledger", 2, 52, NOW, pack_record(None, (), b"nothing")),
        record("duemq.ledger", 2, 53, NOW, pack_record(None, (), b"")),
        record("duemq.ledger", 1, 9, NOW, entry(4, {1: Answer.ACCEPTED})),
    ]  # fmt: skip
    entries = logs.entries(kafka_frame(spark, records))
    quiet, busy = rows.summary(entries).orderBy("shard").collect()
    assert tuple(quiet) == (1, 0, None, None, 0, 0, None, None)
    assert tuple(busy)[:7] == (2, 3, 5, 9, 2, 2, 52) and busy.problem
    sound = entries.where("problem is null")
    assert rows.answered(sound).count() == 3 and rows.imported(sound).count() == 2


def test_the_fate_of_each_answer(spark: SparkSession) -> None:
    asked = [
        change_frame(CANCEL, KEY), change_frame(MOVE, KEY, NOW + 9), change_frame(CANCEL, KEY),
        schedule_frame(Draft("orders", b"", NOW, name=of_client("a"), fingerprint=bytes(16)), NOW),
        schedule_frame(Draft("orders", b"", NOW, name=of_client("a"), fingerprint=bytes(16)), NOW),
    ]  # fmt: skip
    answers = {
        0: Answer.OK, 1: Answer.OK, 2: Answer.CANCELLED_BEFORE, 3: Answer.ACCEPTED, 4: Answer.DUPLICATE,
        5: Answer.OK, 6: Answer.MALFORMED, 7: Answer.FILE_PENDING,
    }  # fmt: skip
    entry = Entry(4, 8, KEY, NOW + 1, answers, imported=(FileDecision(7, 30, 1), FileDecision(8, 0, 0, "too large")))
    entries = logs.entries(kafka_frame(spark, [record("duemq.ledger", 2, 50, NOW + 2, entry_frame(entry))]))
    records = [record("duemq.buffer", 2, n, NOW, frame) for n, frame in enumerate(asked)]
    # Another shard's command has the same offset.
    commands = logs.commands(kafka_frame(spark, [*records, record("duemq.buffer", 1, 5, NOW, asked[0])]))
    found = rows.changed(rows.answered(entries), commands)
    assert found.schema.simpleString() == spark.createDataFrame([], rows.OUTCOMES).schema.simpleString()
    assertDataFrameEqual(
        found.select("command", "outcome", "answer", "first_offset", "first_row", "due_ms", "name", "at_ms", "shard"),
        [
            Row(command=n, outcome=outcome, answer=answer, first_offset=offset, first_row=row, due_ms=due, name=name,
                at_ms=NOW + 1, shard=2)
            for n, outcome, answer, offset, row, due, name in (
                (0, "cancelled", "ok", 2**40 + 3, 70_000, None, None),
                (1, "moved", "ok", 2**40 + 3, 70_000, NOW + 9, None),
                (2, "too_late", "cancelled_before", 2**40 + 3, 70_000, None, None),
                (4, "duplicate", "duplicate", None, None, NOW, "n:a"),
                (5, "unknown_command", "ok", None, None, None, None),
            )
        ],
    )  # fmt: skip
    assertDataFrameEqual(rows.imported(entries).select("outcome", "command", "messages", "reason"), [
        Row(outcome="imported", command=7, messages=30, reason=None),
        Row(outcome="file_refused", command=8, messages=0, reason="too large"),
    ])  # fmt: skip


def entry_frame(entry: Entry) -> bytes:
    return pack_record(None, (), entry.encode())


def test_dead_letters(spark: SparkSession) -> None:
    id_ = IdCodec(bytes(32)).issue(3, NOW, 5)
    row = row_of(schedule_frame(Draft("orders", b"x", NOW), NOW), id_.encode())
    malformed = pack_record(None, (("duemq-reason", b"malformed"), ("duemq-offset", b"77")), b"")
    letters = [
        record("duemq.dlq", 0, 1, NOW + 3, dead_frame(row, "expired", 0)), record("duemq.dlq", 0, 2, NOW, malformed),
    ]  # fmt: skip
    found = rows.died(logs.dead_letters(kafka_frame(spark, letters)))
    assertDataFrameEqual(found.select("outcome", "id", "topic", "reason", "command", "first_offset", "at_ms"), [
        Row(outcome="dead", id=id_, topic="orders", reason="expired", command=None, first_offset=5, at_ms=NOW + 3),
        Row(outcome="malformed", id=None, topic=None, reason="malformed", command=77, first_offset=None, at_ms=NOW),
    ])  # fmt: skip


def test_questions(spark: SparkSession) -> None:
    delivered = [
        ("a", 0, NOW, 1, partition, NOW + late, late, 1, partition, topic)
        for partition, (late, topic) in enumerate([(1, "x"), (3, "x"), (-2, "x"), (9, "y")])
    ] + [
        ("a", 65_535, NOW, 1, 9, NOW, 50, 1, 9, "x"), ("b", 0, NOW, 2, 0, NOW + 3_600_000, 7, 1, 9, "x"),
        ("c", 0, NOW, 3, 0, NOW + 3_600_000, -9_000, 1, 8, "x"),
    ]  # fmt: skip
    columns = (
        f"id string, {rows.MESSAGE}, delivered_ms bigint, lateness_ms bigint, attempt int, partition int, topic string"
    )
    frame = spark.createDataFrame(delivered, columns)
    # The third one was sent at once, and so was not early; a cancel of the second one is another outcome.
    told = spark.createDataFrame(
        [(0, NOW, 3, 0, "sent_now"), (0, NOW, 2, 0, "too_late")], f"{rows.MESSAGE}, outcome string"
    )
    hours = lateness_by_hour(frame, told).orderBy("hour_ms", "topic").drop("hour", "p90_ms", "p999_ms").collect()
    hour_before = NOW - 3_600_000
    assert [tuple(row) for row in hours] == [
        (hour_before, "x", 1, 1, -2.0, -2.0, -2), (NOW, "x", 2, 0, 2.0, 2.98, 3), (NOW, "y", 1, 0, 9.0, 9.0, 9),
        (NOW + 3_600_000, "x", 1, 0, 7.0, 7.0, 7),
    ]  # fmt: skip
    numbered = frame.selectExpr("*", "partition as offset")
    assert sorted(row.partition for row in once(numbered).collect()) == [2, 8, 9], "the first one of each id"
    assert repeated(numbered).count() == 4
    days = spark.createDataFrame([(date(2028, 1, 1), "x", "moved", 1), (date(2028, 1, 1), "x", "moved", 1)],
                                 "date date, topic string, outcome string, messages bigint")  # fmt: skip
    of_day = frame.limit(1).selectExpr("date'2028-01-01' as date", "topic")
    assert {tuple(row)[1:] for row in volume_by_day(of_day, days).collect()} == {
        ("x", "delivered", 1), ("x", "moved", 2),
    }  # fmt: skip
