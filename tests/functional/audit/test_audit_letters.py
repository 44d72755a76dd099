"""Dead letters of records that were malformed: they have no id, and are compared by partition and offset, or where
they do not tell the partition, by offset and payload."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from duemq.model.log.ledger import Answer
from duemq.pipeline.audit.checks import letters
from duemq.pipeline.logs import decode
from tests.support.spark.log_frames import frame_of
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

T = 1_800_000_000_000
SHARDS = range(3)

Row = dict[str, Any]


def malformed(shard: int, offset: int) -> Row:
    return {
        "shard": shard, "offset": offset, "at": T, "kind": "malformed", "plain": True, "content": 10 * offset + shard
    }  # fmt: skip


def letter(of: Row, **more: Any) -> Row:
    plain = {"command": of["offset"], "content": of["content"], "reason": "malformed", "at": T + 5, "shortened": False}
    return plain | more


COMMANDS = [malformed(shard, offset) for offset in (4, 7, 9) for shard in SHARDS if (shard, offset) != (2, 9)]
LETTERS = [letter(one) for one in COMMANDS]


EXACT = [letter(one, command_shard=one["shard"]) for one in COMMANDS]
"""The same, of servers that tell the partition."""


def found(spark: SparkSession, rows: list[Row], *, whole: bool = True, letters_from: int | None = -1) -> list[Any]:
    answers = spark.createDataFrame(
        [(one["shard"], one["offset"], int(Answer.MALFORMED)) for one in COMMANDS],
        "shard int, offset bigint, answer int",
    )
    windows = spark.createDataFrame(
        [(shard, whole, T + 1_000) for shard in SHARDS], "shard int, whole boolean, ended_at bigint"
    )
    commands, told = frame_of(spark, decode.COMMANDS, COMMANDS), frame_of(spark, decode.DEAD_LETTERS, rows)
    rows_found = letters.violations(letters.comparison(commands, answers, told, windows), letters_from).collect()
    return sorted((row.kind, row.shard, row.offset) for row in rows_found)


def test_each_has_its_letter(spark: SparkSession) -> None:
    assert found(spark, LETTERS) == [] == found(spark, EXACT)
    assert found(spark, [*EXACT[:3], *LETTERS[3:]]) == [], "of servers of both kinds"
    assert found(spark, [LETTERS[0], *EXACT[1:3], LETTERS[3], *EXACT[4:]]) == [], "even for one offset"


@pytest.mark.parametrize("at", [0, 3, 7])
def test_a_letter_that_is_lost(spark: SparkSession, at: int) -> None:
    rest = [one for number, one in enumerate(LETTERS) if number != at]
    victim = COMMANDS[at]
    assert found(spark, rest) == [("lost_letter", victim["shard"], victim["offset"])]
    assert found(spark, rest, letters_from=None) == [], "nobody has read them"
    assert found(spark, rest, letters_from=T + 1) == [], "it may have been dropped"


@pytest.mark.parametrize("at", [1, 4, 6])
def test_a_letter_with_another_payload(spark: SparkSession, at: int) -> None:
    changed = [letter(COMMANDS[at], content=5) if number == at else one for number, one in enumerate(LETTERS)]
    victim = COMMANDS[at]
    assert found(spark, changed) == [("altered_letter", victim["shard"], victim["offset"])]
    shortened = [letter(COMMANDS[at], content=5, shortened=True) if n == at else one for n, one in enumerate(LETTERS)]
    assert found(spark, shortened) == [], "it was too large for the topic, and says so"


@pytest.mark.parametrize("at", [2, 5, 7])
def test_a_letter_too_many(spark: SparkSession, at: int) -> None:
    more = [*LETTERS, letter(COMMANDS[at])]
    assert found(spark, more) == [("stray_letter", 0, COMMANDS[at]["offset"])], "its shard is not known"
    assert found(spark, more, whole=False) == [], "of a command that is not read, perhaps"
    assert found(spark, [*LETTERS, letter(COMMANDS[at], at=T + 2_000)]) == [], "it came behind the last entry"
    assert found(spark, [*LETTERS, letter(COMMANDS[at], reason="expired")]) == [], "it is no letter of this kind"


@pytest.mark.parametrize("at", [0, 3, 7])
def test_a_letter_of_another_shard_does_not_count(spark: SparkSession, at: int) -> None:
    victim = COMMANDS[at]
    shard, offset = victim["shard"], victim["offset"]
    rest = [one for number, one in enumerate(EXACT) if number != at]
    assert found(spark, rest) == [("lost_letter", shard, offset)]
    other = (shard + 1) % 3
    moved = found(spark, [*rest, letter(victim, command_shard=other)])
    assert moved == sorted([("lost_letter", shard, offset), ("stray_letter", other, offset)])
    nobodys = found(spark, [*rest, letter(victim, command_shard=77)])
    assert nobodys == [("lost_letter", shard, offset), ("stray_letter", 77, offset)]
    not_whole = found(spark, [*rest, letter(victim, command_shard=other)], whole=False)
    assert not_whole == [("lost_letter", shard, offset)], "of a command that is not read, perhaps"


@pytest.mark.parametrize("at", [1, 4, 6])
def test_a_letter_with_another_payload_is_that_of_its_shard(spark: SparkSession, at: int) -> None:
    victim, place = COMMANDS[at], COMMANDS[at]["shard"]

    def with_letter(**more: Any) -> list[Any]:
        changed = letter(victim, command_shard=place, **more)
        return found(spark, [changed if number == at else one for number, one in enumerate(EXACT)])

    assert with_letter(content=5) == [("altered_letter", place, victim["offset"])]
    other = next(one for one in COMMANDS if one["offset"] == victim["offset"] and one is not victim)
    assert with_letter(content=other["content"]) == [("altered_letter", place, victim["offset"])], "another shard's"
    assert with_letter(content=5, shortened=True) == [], "it was too large for the topic, and says so"


def test_a_letter_too_many_is_one_of_its_shard(spark: SparkSession) -> None:
    again = letter(COMMANDS[4], command_shard=1)
    assert found(spark, [*EXACT, again]) == [("stray_letter", 1, 7)]
    assert found(spark, [*EXACT, again | {"at": T + 2_000}]) == [], "it came behind the last entry"
    assert found(spark, [*EXACT, again | {"command": 5}]) == [("stray_letter", 1, 5)], "nothing was malformed there"
    assert found(spark, [*EXACT, LETTERS[4]]) == [("stray_letter", None, 7)], "nobody knows of which shard"
