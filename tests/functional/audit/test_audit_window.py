"""Windows of the ledger and percentiles of lateness, made where the rows are."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from duemq.model.log.ledger import OutcomeCounts
from duemq.pipeline.audit.changes import cycles
from duemq.pipeline.audit.lateness import Late, Spread, spreads, summary, together
from duemq.pipeline.audit.window import Finding, ShardWindow, idle, of_range, standing, windows
from duemq.pipeline.logs import decode
from tests.support.spark.log_frames import frame_of
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests


def entry(n: int, **more: Any) -> dict[str, Any]:
    """Entry `n` of shard 0: it applied ten commands, all of them messages that wait."""
    plain = {
        "shard": 0, "ledger_offset": 2 * n, "written": 1_000 + n, "n": n, "applied": 10 * (n + 1), "cursor_due": n,
        "cursor_offset": 0, "cursor_row": 0, "at": 1_000 + n, "pending": 10 * (n + 1), "accepted": 10 * (n + 1),
        "delivered": 0, "cancelled": 0, "dead": 0,
    }  # fmt: skip
    return plain | more


def state(n: int) -> dict[str, Any]:
    """What an entry has that goes on from entry `n`."""
    return {name: entry(n)[name] for name in ("applied", "pending", "accepted", "cursor_due")}


def frame(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    return frame_of(spark, decode.ENTRIES, rows)


def found(spark: SparkSession, rows: list[dict[str, Any]], *more: Any) -> tuple[dict[int, ShardWindow], list[Finding]]:
    return windows(frame(spark, rows), *more)


def test_a_window_begins_with_the_first_entry_or_behind_a_base(spark: SparkSession) -> None:
    first, wrong = found(spark, [entry(n) for n in (2, 0, 1)])
    assert (first[0].base_n, first[0].known_from, first[0].applied, first[0].gained) == (-1, 0, 30, OutcomeCounts(30))
    assert first[0].whole and not first[0].idle and not wrong
    based, wrong = found(spark, [entry(5), entry(6)])
    assert (based[0].base_n, based[0].known_from, based[0].gained) == (5, 60, OutcomeCounts(10)) and not wrong
    reading = based[0].reading(65, 99)
    assert (reading.known_from, reading.complete, reading.buffer_end) == (65, False, 99)
    assert not first[0].reading(3, 99).whole
    rows = [entry(n) for n in range(4)]
    later, _ = found(spark, rows, 1_002)
    assert (later[0].base_n, later[0].last_n, later[0].gained) == (1, 3, OutcomeCounts(20))
    assert [row.n for row in of_range(frame(spark, rows), later).orderBy("n").collect()] == [2, 3]
    assert found(spark, rows, 1_000)[0][0].base_n == -1
    assert found(spark, []) == ({}, [])


def test_a_shard_without_an_entry_in_the_range_goes_on_behind_its_last_one(spark: SparkSession) -> None:
    rows = [*(entry(n) for n in range(4)), *(entry(n, shard=1, written=5_000 + n) for n in (7, 8))]
    both, wrong = found(spark, rows, 2_000)
    assert both[0] == idle(0, 3, 40) and both[0].idle and both[1].base_n == 7 and not wrong
    assert of_range(frame(spark, rows), both).where("shard = 0").count() == 0
    waiting = both[0].reading(20, 500)
    assert (waiting.known_from, waiting.applied, waiting.buffer_end) == (40, 40, 500)
    assert idle(2).reading(7, 500).applied == 7, "what the buffer has dropped is not waiting"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([entry(0), entry(2)], "entry 2 follows entry 0"),
        ([entry(0), entry(1), entry(1, ledger_offset=9)], "entry 1 follows entry 1"),
        ([entry(0), entry(1, applied=5)], "goes back"),
        ([entry(0, cursor_due=9), entry(1)], "goes back"),
        ([entry(0, cursor_offset=9), entry(1, cursor_due=0)], "goes back"),
        ([entry(0, delivered=1)], "10 accepted, but 1 delivered"),
        ([entry(0, delivered=-1, pending=11)], "10 accepted, but -1 delivered"),
        ([entry(0), entry(1, accepted=9, pending=9)], "counts fewer"),
        ([entry(0), entry(1, lost_from=9, lost_to=12)], "entry 1 lost other commands than came after entry 0"),
        ([entry(0), entry(1, lost_from=10, lost_to=10)], "entry 1 lost other commands"),
        ([entry(0), entry(1, lost_from=10, lost_to=21)], "entry 1 lost other commands"),
        ([entry(0), entry(1), entry(2, base=0)], "entry 2 is not as entry 0"),
        ([entry(0), entry(1), entry(2, base=0, **state(0) | {"checksum": "5"})], "entry 2 is not as entry 0"),
        ([entry(0), entry(2), entry(3, base=1, **state(1))], "entry 3 follows entry 0"),
        ([entry(0), entry(1, problem="not a ledger entry: b'x'", at=None)], "record 2 of the ledger"),
    ],
)
def test_entries_that_do_not_fit_together(spark: SparkSession, rows: list[dict[str, Any]], said: str) -> None:
    _, wrong = found(spark, rows)
    assert [one.kind for one in wrong if one.kind != "lost_commands"] == ["ledger"] and said in wrong[0].detail


LOST = entry(1, lost_from=10, lost_to=13)


def test_commands_that_were_lost_are_told(spark: SparkSession) -> None:
    rows = [entry(0), LOST, entry(2)]
    _, wrong = found(spark, [*rows, *(one | {"shard": 1} for one in (entry(0), entry(1)))])
    assert [(one.kind, one.shard) for one in wrong] == [("lost_commands", 0)]
    assert "entry 1: the log dropped commands 10 to 12" in wrong[0].detail and "up to 3 " in wrong[0].detail
    assert found(spark, rows, 1_001)[1] == wrong, "the entry is in the range"
    assert found(spark, rows, 1_002)[1] == [], "it was before the range"


CHAINS = [
    # numbers, bases by number, which of them count
    ("none", range(4), {}, [0, 1, 2, 3]),
    ("one", range(6), {4: 1}, [0, 1, 4, 5]),
    ("of the last one", range(4), {3: 2}, [0, 1, 2, 3]),
    ("of nothing", range(4), {2: -1}, [2, 3]),
    ("one behind another", range(8), {3: 1, 6: 4}, [0, 1, 3, 4, 6, 7]),
    ("one makes another void", range(8), {4: 2, 6: 1}, [0, 1, 6, 7]),
    ("what was void counts again", range(8), {4: 1, 6: 3}, [0, 1, 2, 3, 6, 7]),
    ("the ledger was lost", range(5, 8), {5: 4}, [5, 6, 7]),
]  # fmt: skip


def test_which_entries_count_where_an_operator_decided(spark: SparkSession) -> None:
    rows = [
        entry(n, shard=shard, base=bases.get(n))
        for shard, (_, numbers, bases, _) in enumerate(CHAINS) for n in numbers
    ]  # fmt: skip
    kept = standing(frame(spark, rows)).select("shard", "n").orderBy("shard", "n").collect()
    assert {what: [row.n for row in kept if row.shard == shard] for shard, (what, *_) in enumerate(CHAINS)} == {
        what: expected for what, *_, expected in CHAINS
    }


def test_a_range_goes_on_from_the_entry_that_an_operator_chose(spark: SparkSession) -> None:
    rows = [entry(0), entry(1), entry(2), entry(3, base=0, **state(0)), entry(4, **state(1))]
    whole, wrong = found(spark, rows)
    assert wrong == [] and whole[0].recoveries == ((3, 0),)
    assert (whole[0].base_n, whole[0].applied, whole[0].gained) == (-1, 20, OutcomeCounts(20))
    assert [row.n for row in of_range(frame(spark, rows), whole).orderBy("n").collect()] == [0, 3, 4]
    later, wrong = found(spark, rows, 1_003)
    assert (later[0].base_n, later[0].known_from, later[0].gained) == (0, 10, OutcomeCounts(10)) and not wrong
    part, wrong = found(spark, rows[2:])
    assert (part[0].base_n, part[0].known_from, part[0].gained) == (3, 10, OutcomeCounts(10)) and not wrong
    empty = dict.fromkeys(("applied", "pending", "accepted", "cursor_due"), 0)
    first, wrong = found(spark, [*rows[:3], entry(3, base=-1, **empty), entry(4, **state(0))])
    assert first[0].whole and (first[0].known_from, first[0].gained) == (0, OutcomeCounts(10)) and not wrong
    assert found(spark, rows, 1_004)[0][0].recoveries == ()


def test_what_came_before_each_entry_is_what_it_goes_on_from(spark: SparkSession) -> None:
    rows = [entry(0), entry(1), entry(2), entry(3, base=0, **state(0)), entry(4, **state(1))]
    before = {row.n: row.applied_before for row in cycles(frame(spark, rows)).collect()}
    assert before == {0: 0, 3: 10, 4: 10}
    emptied = [rows[0], entry(1, base=-1), entry(2)]
    assert {row.n: row.applied_before for row in cycles(frame(spark, emptied)).collect()} == {1: 0, 2: 20}


def test_a_clock_ahead_of_the_brokers_is_measured_per_shard(spark: SparkSession) -> None:
    rows = [
        entry(0, cursor_due=1_000), entry(1, cursor_due=1_001), entry(2, cursor_due=301_002),
        entry(3, cursor_due=301_010), *(entry(n, shard=1, cursor_due=1_010 + n) for n in range(3)),
    ]  # fmt: skip
    both, wrong = found(spark, rows)
    assert sorted((one.kind, one.shard) for one in wrong) == [("clock_ahead", 0), ("clock_ahead", 1)]
    assert "2 of 4 entries" in wrong[0].detail and "up to 300007 ms" in wrong[0].detail
    assert [one.shard for one in found(spark, rows, None, 10)[1]] == [0], "a tolerance allows for clocks that differ"
    assert (
        found(spark, rows[2:4], 1_003)[1] != []
        and found(spark, [rows[2], entry(3, cursor_due=1_003)], 1_003)[1][0].kind == "ledger"
    )
    assert both[0].cursor == (301_010, 0, 0)


def test_of_many_broken_entries_the_first_ones_come_to_the_driver(spark: SparkSession) -> None:
    plain = {name: value for name, value in entry(0).items() if name not in ("n", "ledger_offset")}
    many = spark.range(3_000).select(
        F.lit(0).alias("shard"), (F.col("id") * 2).alias("ledger_offset"), (F.col("id") * 2).alias("n"),
        *(F.lit(value).cast("bigint").alias(name) for name, value in plain.items() if name != "shard"),
        *(F.lit(None).cast("bigint").alias(name) for name in ("lost_from", "lost_to", "base")),
        *(F.lit(None).cast("string").alias(name) for name in ("checksum", "problem")),
    )  # fmt: skip
    shards, wrong = windows(many)
    assert shards[0].last_n == 5_998 and len(wrong) == 1_000
    assert wrong[0].detail == "entry 2 follows entry 0"


LATENESS = "topic string, shard int, hour bigint, late_ms bigint, messages bigint"


def test_percentiles_of_counts(spark: SparkSession) -> None:
    rows = [("a", 0, 0, 5, 98), ("a", 0, 0, 0, 1), ("a", 1, 3_600_000, 1_000, 1), (None, 1, 0, 7, 2)]
    late = summary(spark.createDataFrame(rows, LATENESS))
    assert late.topics == {"a": Spread(100, 5, 5, 5, 1_000, 1_000), None: Spread(2, 7, 7, 7, 7, 7)}
    assert list(late.shards) == [0, 1] and late.shards[1] == Spread(3, 7, 1_000, 1_000, 1_000, 1_000)
    assert list(late.hours) == [0, 3_600_000] and late.hours[3_600_000].messages == 1
    assert late.whole == Spread(102, 5, 5, 7, 1_000, 1_000)
    assert late.counts == [(0, 1), (5, 98), (7, 2), (1_000, 1)]
    assert summary(spark.createDataFrame([], LATENESS)) == Late()


def test_a_percentile_is_the_least_that_so_many_do_not_exceed(spark: SparkSession) -> None:
    rows = [("a", 0, 0, ms, 1) for ms in range(1, 1_001)]
    (row,) = spreads(spark.createDataFrame(rows, LATENESS)).where("by = 'all'").collect()
    assert (row.p50, row.p90, row.p99, row.p999, row.highest) == (500, 900, 990, 999, 1_000)


def test_parts_are_counted_together(spark: SparkSession) -> None:
    one = spark.createDataFrame([("a", 0, 0, 5, 98), ("b", 0, 0, 5, 1)], LATENESS)
    assert sorted(tuple(row) for row in together(one, one.where("topic = 'a'")).collect()) == [
        ("a", 0, 0, 5, 196), ("b", 0, 0, 5, 1),
    ]  # fmt: skip
