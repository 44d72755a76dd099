"""Violations put into a real history: exactly these are found, each as what it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from duemq.model.ledger import Answer
from duemq.pipeline import decode
from duemq.pipeline.audit.changes import answers
from duemq.pipeline.audit.job import Extent, Frames, Gathered, files_of, gathered, judge
from duemq.pipeline.audit.violations import judged as marked
from duemq.pipeline.audit.violations import violations
from duemq.storage.rows import WINDOW_MS
from tests.audit_site import ADOPTED, Past
from tests.spark_site import spark_tests

pytestmark = spark_tests

Record = dict[str, Any]
Found = tuple[str, int, int, int]


@dataclass
class Logs:
    """The rows of a history, to be changed."""

    deliveries: list[Record]
    letters: list[Record]
    schedules: dict[tuple[int, int], Record]
    changed: set[tuple[int, int]]
    """Shard and offset of messages that were moved, cancelled or deferred."""
    cancelled: list[tuple[int, int]]
    refused: list[tuple[int, int]]
    """Schedules under a name that was taken."""

    def plain(self) -> list[Record]:
        """Deliveries of messages that nothing was done to."""
        return [one for one in self.deliveries if _of(one) in self.schedules and _of(one) not in self.changed]

    def record_of(self, message: tuple[int, int], at: int) -> Record:
        """A record of it, as if it had been delivered."""
        schedule = self.schedules[message]
        shown = {name: schedule[name] for name in ("topic", "content", "due")}
        return self.deliveries[0] | shown | {
            "shard": message[0], "first_offset": message[1], "first_row": 0, "first_due": schedule["due"], "mac": 7,
            "at": at, "offset": 900_000 + message[1],
        }  # fmt: skip


def _of(record: Record) -> tuple[int, int]:
    return record["shard"], record["first_offset"]


def _take(chosen: random.Random, logs: Logs) -> Record:
    victim = chosen.choice(logs.plain())
    logs.changed.add(_of(victim))  # each message is the victim of one injection
    return victim


def _found(kind: str, record: Record) -> Found:
    return kind, record["shard"], record["first_offset"], record["first_row"]


def drop(chosen: random.Random, logs: Logs) -> list[Found]:
    victim = _take(chosen, logs)
    logs.deliveries.remove(victim)
    return [_found("lost", victim)]


def repeat(chosen: random.Random, logs: Logs) -> list[Found]:
    victim = _take(chosen, logs)
    logs.deliveries.append(
        victim | {"offset": victim["offset"] + 500_000, "at": victim["at"] + chosen.randrange(9_000)}
    )
    return [_found("twice", victim)]


def early(chosen: random.Random, logs: Logs) -> list[Found]:
    victim = _take(chosen, logs)
    victim["at"] = victim["first_due"] - chosen.choice((1, 1_000))
    return [_found("early", victim)]


def early_copy(chosen: random.Random, logs: Logs) -> list[Found]:
    victim = _take(chosen, logs)
    logs.deliveries.append(victim | {"at": victim["first_due"] - 1, "offset": victim["offset"] + 500_000})
    return [_found("twice", victim), _found("early", victim)]


def after_cancel(chosen: random.Random, logs: Logs) -> list[Found]:
    message = logs.cancelled.pop(chosen.randrange(len(logs.cancelled)))
    record = logs.record_of(message, logs.schedules[message]["due"] + 3)
    logs.deliveries.append(record)
    return [_found("after_cancel", record)]


def unknown(chosen: random.Random, logs: Logs) -> list[Found]:
    victim = chosen.choice(logs.plain())
    forged = victim | chosen.choice(({"first_offset": 2**40 + chosen.randrange(9**9)}, {"first_row": 5}, {"shard": 77}))
    logs.deliveries.append(forged)
    return [_found("unknown_id", forged)]


def forged_due(chosen: random.Random, logs: Logs) -> list[Found]:
    victim = _take(chosen, logs)
    logs.deliveries.append(victim | {"first_due": victim["first_due"] + 1, "mac": 1})
    return [_found("unknown_id", victim)]


def replaced(chosen: random.Random, logs: Logs) -> list[Found]:
    """In place of its record there is one of another id."""
    victim = _take(chosen, logs)
    victim["first_due"] += 1
    return [_found("unknown_id", victim), _found("lost", victim)]


def of_a_duplicate(chosen: random.Random, logs: Logs) -> list[Found]:
    message = logs.refused.pop()
    record = logs.record_of(message, logs.schedules[message]["due"] + 3)
    logs.deliveries.append(record)
    return [_found("unknown_id", record)]


def no_id(chosen: random.Random, logs: Logs) -> list[Found]:
    record = logs.deliveries[0] | {"id": f"x{chosen.random()}", "shard": None, "first_offset": None, "mac": None}
    logs.deliveries.append(record)
    return [("unknown_id", -1, 0, 0)]


def wrong_topic(chosen: random.Random, logs: Logs) -> list[Found]:
    victim = _take(chosen, logs)
    victim["topic"] = "nowhere"
    return [_found("wrong_topic", victim)]


def altered(chosen: random.Random, logs: Logs) -> list[Found]:
    victim = _take(chosen, logs)
    victim["content"] += 1
    return [_found("altered", victim)]


def lost_letter(chosen: random.Random, logs: Logs) -> list[Found]:
    victim = next(one for one in logs.letters if one["shard"] is not None)
    logs.letters.remove(victim)
    return [_found("lost_letter", victim)]


def direct_twice(chosen: random.Random, logs: Logs) -> list[Found]:
    victim = next(one for one in logs.deliveries if one["shard"] == 0xFFFF)
    logs.deliveries.append(victim | {"offset": 10**6})
    return [_found("twice", victim)]


SEVERAL = (drop, repeat, early, early_copy, unknown, forged_due, replaced, wrong_topic, altered)
ONCE = (of_a_duplicate, no_id, lost_letter, direct_twice)


@pytest.fixture(scope="module")
def read_once(spark: SparkSession, past: Past) -> Iterator[tuple[Gathered, Callable[[], Logs]]]:
    """The logs of the history in memory, and a maker of rows to be changed."""
    with gathered(spark, past.bootstrap) as found:
        frames = found.frames

        def rows(frame: Any) -> list[Record]:
            return [row.asDict(recursive=True) for row in frame.collect()]

        entries, commands = rows(frames.entries), rows(frames.commands)
        deliveries, letters = rows(frames.deliveries), rows(frames.dead_letters)
        answered = {(row["shard"], row["offset"]): row["answer"] for row in rows(answers(frames.entries))}
        local = Frames(*(
            spark.createDataFrame(_tuples(of), schema).cache()
            for of, schema in (
                (entries, decode.ENTRIES), (commands, decode.COMMANDS), (deliveries, decode.DELIVERIES),
                (letters, decode.DEAD_LETTERS),
            )
        ))  # fmt: skip
        by_id = [one for one in commands if one["first_offset"] is not None]
        dead = {(one["shard"], d["offset"]) for one in entries for d in one["deferred"] or ()}

        def make() -> Logs:
            schedules = {(one["shard"], one["offset"]): one for one in commands if one["kind"] == "schedule"}
            taken = (Answer.DUPLICATE, Answer.CONFLICT)
            named = {one for one in schedules if schedules[one]["name"] == "n:plain-2"}
            return Logs(
                [dict(one) for one in deliveries], [dict(one) for one in letters], schedules,
                {_of(one) for one in by_id} | dead | named,
                sorted({_of(one) for one in by_id if one["kind"] == "cancel" and _of(one) in schedules
                        and answered[one["shard"], one["offset"]] == Answer.OK}),
                sorted(one for one in schedules if answered.get(one) in taken),
            )  # fmt: skip

        yield replace(found, frames=local), make


def _tuples(rows: list[Record]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows]


def audited(spark: SparkSession, found: Gathered, logs: Logs) -> list[Found]:
    frames = replace(
        found.frames,
        deliveries=spark.createDataFrame(_tuples(logs.deliveries), decode.DELIVERIES),
        dead_letters=spark.createDataFrame(_tuples(logs.letters), decode.DEAD_LETTERS),
    )
    files = files_of(frames, frames.entries)
    table = judge(spark, frames, found.extent, files).fates
    wrong = violations(marked(table, found.extent.letters_from)).collect()
    return sorted((row.kind, row.shard, row.offset if row.shard >= 0 else 0, row.row) for row in wrong)


@pytest.mark.parametrize("seed", range(3))
def test_exactly_what_was_put_in_is_found(
    spark: SparkSession, read_once: tuple[Gathered, Callable[[], Logs]], seed: int
) -> None:
    found, make = read_once
    chosen, logs = random.Random(seed), make()
    expected: list[Found] = []
    for inject in SEVERAL:
        for _ in range(chosen.randrange(1, 4)):
            expected += inject(chosen, logs)
    for inject in (*ONCE, *[after_cancel] * chosen.randrange(1, 4)):
        expected += inject(chosen, logs)
    assert audited(spark, found, logs) == sorted(expected)


def test_false_answers_and_stray_letters(
    spark: SparkSession, read_once: tuple[Gathered, Callable[[], Logs]], past: Past
) -> None:
    found, make = read_once
    logs = make()
    letter = next(one for one in logs.letters if one["shard"] is not None)
    logs.letters.append(letter | {"offset": 10**6, "at": letter["at"] - 1})
    commands = [row.asDict() for row in found.frames.commands.collect()]
    answered = {(row.shard, row.offset): row.answer for row in answers(found.frames.entries).collect()}
    late = next(one for one in commands if answered.get((one["shard"], one["offset"])) == Answer.DELIVERED)
    waiting = next(
        one for one in commands
        if one["kind"] == "schedule" and one["shard"] == late["shard"] and one["due"] > late["at"] + 3_600_000
        and (one["shard"], one["offset"]) not in logs.changed and one["name"] is None
    )  # fmt: skip
    late["first_offset"] = waiting["offset"]  # as if the cancel of a message that waits had been called too late
    frames = replace(found.frames, commands=spark.createDataFrame(_tuples(commands), decode.COMMANDS))
    assert audited(spark, replace(found, frames=frames), logs) == [
        ("false_answer", waiting["shard"], waiting["offset"], 0), _found("stray_letter", letter),
    ]  # fmt: skip


def test_records_that_the_ledger_does_not_know_of(
    spark: SparkSession, read_once: tuple[Gathered, Callable[[], Logs]]
) -> None:
    """As if a shard had delivered, and its ledger had come only so far."""
    found, make = read_once
    logs = make()
    plain = sorted(
        (one for one in logs.plain() if one["shard"] == 1), key=lambda one: (one["due"], one["first_offset"])
    )
    last = plain[-6]
    cursor = last["due"], last["first_offset"], 0
    window = replace(found.extent.windows[1], cursor=cursor)
    extent = replace(found.extent, windows={**found.extent.windows, 1: window})
    expected = [_found("unrecorded", one) for one in plain[-5:]]
    wrong = audited(spark, replace(found, extent=extent), logs)
    assert [one for one in wrong if (one[1], one[2]) not in logs.changed] == sorted(expected)


def test_a_file_that_is_gone(spark: SparkSession, read_once: tuple[Gathered, Callable[[], Logs]]) -> None:
    found, _ = read_once
    (file,) = files_of(found.frames, found.frames.entries)
    gone = replace(file, why_not="No such file or directory")

    def counts(extent: Extent) -> dict[str, int]:
        table = judge(spark, found.frames, extent, [gone]).fates.where(F.col("offset") == file.offset)
        return {
            row.fate: row["count"]
            for row in table.where(F.col("shard") == file.shard).groupBy("fate").count().collect()
        }

    assert counts(found.extent) == {"pending": ADOPTED - 2, "delivered": 1, "cancelled": 1}
    window = found.extent.windows[file.shard]

    def at(due: int) -> Extent:
        return replace(found.extent, windows={**found.extent.windows, file.shard: replace(window, cursor=(due, 0, 0))})

    assert counts(at(file.window + 5)) == {"unproven": ADOPTED - 2, "delivered": 1, "cancelled": 1}
    assert counts(at(file.window + WINDOW_MS)) == {"lost": ADOPTED - 2, "delivered": 1, "cancelled": 1}
    not_all = replace(at(file.window + WINDOW_MS), anywhere_from=None)
    assert counts(not_all) == {"unproven": ADOPTED - 2, "delivered": 1, "cancelled": 1}
