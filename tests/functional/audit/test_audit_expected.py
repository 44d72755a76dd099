"""Ids that senders hold: each is in the logs, or is missing, or nobody can know."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duemq.model.log.ledger import Answer
from duemq.model.messages.ids import DIRECT, IdCodec
from duemq.pipeline.audit.checks import expected
from duemq.pipeline.audit.evidence import Gathered
from duemq.pipeline.audit.job import conclude
from duemq.pipeline.errors import BadInput
from duemq.pipeline.logs import decode
from tests.support.audit.audit_site import Past
from tests.support.spark.log_frames import frame_of
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

T = 1_800_000_000_000
IDS = IdCodec(bytes(16))
IMPORTED = "shard int, offset bigint, row bigint, due bigint, counted boolean"
WINDOWS = "shard int, known_from bigint, read_to bigint, buffer_end bigint"

SENT, REFUSED, LATER = IDS.issue(0, T, 10), IDS.issue(0, T, 11), IDS.issue(0, T, 19)
OF_FILE, OF_LOST_FILE = IDS.issue(0, T + 7, 12, 3), IDS.issue(0, T + 9, 13, 1)
AT_ONCE, AT_ONCE_BEFORE = IDS.issue(DIRECT, T, 5), IDS.issue(DIRECT, T - 10, 6)
HERE = (SENT, LATER, OF_FILE, OF_LOST_FILE, AT_ONCE, f" {SENT} ")
MISSING = (
    IDS.issue(0, T, 14),  # answered 201, and never appended
    IDS.issue(0, T, 300),  # of an offset that there is not yet
    IDS.issue(0, T + 1, 10),  # of a message with another due time
    IDS.issue(0, T, 10, 1),  # of a file, and this is none
    IDS.issue(9, T, 1),  # of a shard that there is not
    IdCodec(bytes(range(16))).issue(DIRECT, T, 5),  # of another cluster
    IDS.issue(DIRECT, T, 7),
    REFUSED, "no id", "x" * 32,
)  # fmt: skip
UNKNOWABLE = (
    IDS.issue(0, T, 3),  # dropped from the buffer
    IDS.issue(0, T, 25),  # behind the commands that were read
    AT_ONCE_BEFORE,  # dropped from its topic
)


def sought(spark: SparkSession, ids: tuple[str | None, ...], anywhere_from: int | None = T - 5) -> dict[str, bool]:
    """What is not in the logs, and whether that cannot be known."""
    schedules = [
        {"shard": 0, "offset": offset, "kind": "schedule", "due": T} for offset in (10, 11, 19)
    ]  # fmt: skip
    said = IDS.read(AT_ONCE)
    assert said is not None
    record = {
        "shard": DIRECT, "first_offset": 5, "first_row": 0, "first_due": T,
        "mac": int.from_bytes(urlsafe_b64decode(AT_ONCE)[-6:], "big"),
    }  # fmt: skip
    found = expected.missing_ids(
        spark.createDataFrame([(one,) for one in ids], "id string"),
        frame_of(spark, decode.COMMANDS, schedules),
        frame_of(spark, "shard int, offset bigint, answer int", [
            {"shard": 0, "offset": 11, "answer": int(Answer.DUPLICATE)},
            {"shard": 0, "offset": 10, "answer": int(Answer.ACCEPTED)},
        ]),
        frame_of(spark, IMPORTED, [
            {"shard": 0, "offset": 12, "row": 3, "due": T + 7, "counted": False},
            {"shard": 0, "offset": 13, "row": 1, "due": T + 99, "counted": True},
        ]),
        frame_of(spark, decode.DELIVERIES, [record]),
        frame_of(spark, WINDOWS, [{"shard": 0, "known_from": 5, "read_to": 20, "buffer_end": 30}]), anywhere_from,
    )  # fmt: skip
    return {row.id: row.unprovable for row in found.collect()}


def test_what_is_here_and_what_is_missing(spark: SparkSession) -> None:
    assert sought(spark, (*HERE, *MISSING, *UNKNOWABLE, None, *MISSING)) == (
        dict.fromkeys(MISSING, False) | dict.fromkeys(UNKNOWABLE, True)
    )


def test_without_all_topics_nobody_knows_of_messages_without_delay(spark: SparkSession) -> None:
    assert sought(spark, (AT_ONCE, MISSING[-4]), None) == {MISSING[-4]: True}


@pytest.mark.parametrize(("rule", "text"), [("there", "known"), ("unprovable", "false"), ("unprovable", "true")])
def test_each_mutant_is_found(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, rule: str, text: str) -> None:
    monkeypatch.setitem(expected.RULES, rule, text)
    everything = dict.fromkeys(MISSING, False) | dict.fromkeys(UNKNOWABLE, True)
    assert sought(spark, (*HERE, *MISSING, *UNKNOWABLE)) != everything


def test_a_table_without_that_column(spark: SparkSession) -> None:
    with pytest.raises(BadInput, match="column id: the table of expected ids does not have it; it has name"):
        expected.missing_ids(
            spark.createDataFrame([("x",)], "name string"),
            spark.range(1),
            spark.range(1),
            spark.range(1),
            spark.range(1),
            spark.range(1),
            None,
        )


def test_of_a_real_history(spark: SparkSession, real: Gathered, past: Past, tmp_path: Path) -> None:
    history = past.history
    held = [*history.delivered, *history.cancelled, *history.moved_on, *history.direct]
    forged = IDS.issue(1, T, 2**30)
    ids = spark.createDataFrame([(one,) for one in (*held, forged)], "id string")
    result = conclude(spark, real, tmp_path, expected_ids=ids)
    assert result.violation_counts == {"missing": 1} and result.shown[0]["id"] == forged, result.shown
    assert result.doubts.get("expected") is None
