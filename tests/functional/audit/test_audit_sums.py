"""Sums of hashes before rows: what they leave out is as it should be, and nothing that is wrong hides in a bucket."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from duemq.model.log.ledger import Answer
from duemq.model.messages.key import checksum, make_key
from duemq.pipeline.audit import sums
from duemq.pipeline.audit.evidence import Extent, Frames, Gathered
from duemq.pipeline.audit.job import AuditResult, conclude, judge
from duemq.pipeline.audit.window import windows
from duemq.pipeline.logs import decode
from duemq.pipeline.logs.ranges import TopicRange
from tests.support.spark.log_frames import frame_of
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

T = 1_800_000_000_000
END = T + 1_000_000
MESSAGES = 150
Row = dict[str, Any]


class History:
    """Of two shards: messages that came as they should, some that wait, and some of each other outcome."""

    def __init__(self, seed: int) -> None:
        chosen = random.Random(seed)
        self.commands: list[Row] = []
        self.entries: list[Row] = []
        self.deliveries: list[Row] = []
        self.letters: list[Row] = []
        for shard in range(2):
            self._shard(shard, chosen)

    def _shard(self, shard: int, chosen: random.Random) -> None:
        answers: list[tuple[int, int]] = []
        deferred: list[tuple[Any, ...]] = []
        counts = dict.fromkeys(("accepted", "delivered", "cancelled", "dead"), 0)
        for offset in range(MESSAGES):
            due = T + 1_000 * (offset + 1)
            sent: Row = {
                "shard": shard, "offset": offset, "at": T, "kind": "schedule", "plain": False, "due": due,
                "topic": ("orders", "mails", "unread")[offset % 3], "content": offset * 7, "metadata": offset * 3,
                "expires": due if offset % 11 == 7 else due + 100_000,
                "name": f"n:{offset}" if offset % 10 == 0 else None,
            }  # fmt: skip
            if offset % 10 == 0:
                answers.append((offset, int(Answer.ACCEPTED)))
            if offset % 13 == 0:
                sent["at"] = due + 5  # sent too late, and delivered at once
            self.commands.append(sent)
            counts["accepted"] += 1
            if offset % 11 == 3:
                sent["due"] = END + 50 + offset
            elif offset % 11 == 5:
                self._cancel(sent, answers)
                counts["cancelled"] += 1
            elif offset % 11 == 7:
                deferred.append((due, offset, 0, None, None, None, 1, "expired"))
                self.letters.append(self.record(sent, due + 1) | {"topic": "duemq.dlq", "reason": "expired"})
                counts["dead"] += 1
            else:
                counts["delivered"] += 1
                if sent["topic"] != "unread":
                    self.deliveries.append(self.record(sent, max(due, sent["at"]) + chosen.randrange(40)))
        applied = MESSAGES + sum(one["kind"] == "cancel" and one["shard"] == shard for one in self.commands)
        self.commands += [
            {"shard": shard, "offset": applied + n, "at": END, "kind": "schedule", "plain": False, "due": END + 10 + n,
             "topic": "orders", "expires": 0, "content": n, "metadata": n} for n in range(4)
        ]  # fmt: skip
        self.deliveries.append(self.record(self.commands[-1], END + 20))  # since the range was over
        self.deliveries.append(self.record({"shard": 0xFFFF, "offset": shard, "due": T} | {
            "topic": "orders", "content": 1, "metadata": 1}, T + 1))  # fmt: skip
        pending = counts["accepted"] - counts["delivered"] - counts["cancelled"] - counts["dead"]
        waiting = checksum([
            make_key(one["due"], one["offset"], 0) for one in self.commands
            if one["kind"] == "schedule" and one["shard"] == shard and one["due"] > END and one["offset"] < MESSAGES
        ])  # fmt: skip
        self.entries.append({
            "shard": shard, "ledger_offset": 0, "written": END, "n": 0, "applied": applied, "cursor_due": END,
            "cursor_offset": 2**63 - 1, "cursor_row": 2**32 - 1, "at": END, "pending": pending,
            "checksum": f"{waiting:016x}",
            **counts, "horizon": 0, "answers": sorted(answers), "deferred": deferred, "imported": [],
        })  # fmt: skip

    def _cancel(self, sent: Row, answers: list[tuple[int, int]]) -> None:
        offset = MESSAGES + sum(one["kind"] == "cancel" and one["shard"] == sent["shard"] for one in self.commands)
        answers.append((offset, int(Answer.OK)))
        self.commands.append({
            "shard": sent["shard"], "offset": offset, "at": T + 1, "kind": "cancel", "plain": False,
            "first_due": sent["due"], "first_offset": sent["offset"], "first_row": 0, "content": 0,
        })  # fmt: skip

    def record(self, sent: Row, at: int) -> Row:
        return {
            "topic": sent["topic"], "partition": 0, "offset": 10_000 * sent["shard"] + sent["offset"], "at": at,
            "by_broker": False, "due": sent["due"], "attempt": 1, "content": sent["content"], "id": "x" * 32,
            "shard": sent["shard"], "first_due": sent["due"], "first_offset": sent["offset"], "first_row": 0,
            "mac": 5, "metadata": sent["metadata"],
        }  # fmt: skip

    def gathered(self, spark: SparkSession) -> Gathered:
        frames = Frames(
            frame_of(spark, decode.ENTRIES, self.entries), frame_of(spark, decode.COMMANDS, self.commands),
            frame_of(spark, decode.DELIVERIES, self.deliveries), frame_of(spark, decode.DEAD_LETTERS, self.letters),
        )  # fmt: skip
        shards, findings = windows(frames.entries)
        ends = {shard: 1 + max(one["offset"] for one in self.commands if one["shard"] == shard) for shard in shards}
        read = {shard: one.reading(0, ends[shard]) for shard, one in shards.items()}
        extent = Extent(read, {"orders": -1, "mails": -1}, None, -1)
        return Gathered(frames, extent, findings, [], [TopicRange("orders", {0: 0}, {0: 1}, {0: 0})])

    def plain(self) -> list[Row]:
        """Records of messages that nothing else was said of."""
        bounds = {(one["shard"], one["offset"]) for one in self.commands if one["offset"] % 13}
        return [one for one in self.deliveries if (one["shard"], one["first_offset"]) in bounds and one["at"] < END]


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "_BUCKET_BITS", 4)
    monkeypatch.setattr(sums, "FEW", 0)


def both(spark: SparkSession, history: History, folder: Path) -> tuple[AuditResult, AuditResult]:
    """The audit with sums first, and that of all rows."""
    gathered = history.gathered(spark)
    return conclude(spark, gathered, folder / "sums"), conclude(spark, gathered, folder / "rows", outcomes_table=True)


def lateness(spark: SparkSession, folder: Path) -> list[tuple[Any, ...]]:
    rows = [tuple(row) for row in spark.read.parquet(str(folder / "lateness")).collect()]
    return sorted(rows, key=lambda row: tuple(map(str, row)))


def same(spark: SparkSession, history: History, folder: Path) -> AuditResult:
    first, whole = both(spark, history, folder)
    for name in ("account", "others", "found", "waiting", "doubtful", "late", "answers"):
        assert getattr(first, name) == getattr(whole, name), name
    assert [dict(one) for one in first.shown] == [dict(one) for one in whole.shown]
    assert lateness(spark, folder / "sums") == lateness(spark, folder / "rows")
    assert not (folder / "sums" / "outcomes").exists() and (folder / "rows" / "outcomes").exists()
    return first


def test_a_clean_history_is_the_same_by_sums_and_by_rows(spark: SparkSession, tmp_path: Path) -> None:
    history = History(1)
    result = same(spark, history, tmp_path)
    assert result.clean, result.shown
    assert result.account["delivered"] == sum(one["at"] < END and one["shard"] < 9 for one in history.deliveries)
    assert result.account["unproven"] > 50 and result.others["direct"] == 2 and result.others["not applied yet"] == 8


def test_only_what_more_was_said_of_is_looked_at(spark: SparkSession) -> None:
    history = History(1)
    gathered = history.gathered(spark)
    compared = judge(spark, gathered.frames, gathered.extent, (), comparing=True).compared
    assert compared is not None and (compared.unequal, compared.buckets) == (0, 2 * 11)
    looked = {(row.shard, row.offset) for row in compared.commands.collect()}
    every = {(one["shard"], one["offset"]) for one in history.commands if one["kind"] == "schedule"}
    assert looked < every and len(looked) < len(every) / 2
    records = {(row.shard, row.first_offset) for row in compared.deliveries.collect()}
    assert {one for one in records if one[0] < 9} <= looked and (0xFFFF, 0) in records
    agreed = sum(one.delivered + one.unread + one.pending + one.later for one in compared.agreed.values())
    assert agreed + len(looked) == len(every), "each message is in one of both parts"


Found = list[tuple[int, int]]
"""Shard and offset of the messages that are not as they should be."""


class Faults:
    """Puts each fault into messages of its own, and tells which."""

    def __init__(self, history: History, seed: int) -> None:
        self.history, self.chosen = history, random.Random(seed)
        self.taken = {(0, 30)}  # of `refused`

    def victim(self) -> Row:
        left = [one for one in self.history.plain() if (one["shard"], one["first_offset"]) not in self.taken]
        one = self.chosen.choice(left)
        self.taken.add((one["shard"], one["first_offset"]))
        return one

    def lost(self) -> Found:
        one = self.victim()
        self.history.deliveries.remove(one)
        return [_of(one)]

    def twice(self) -> Found:
        one = self.victim()
        self.history.deliveries.append(one | {"offset": 10**6, "at": T + 10**6})
        return [_of(one)]

    def thrice(self) -> Found:
        """An exclusive or does not see a pair."""
        one = self.victim()
        self.history.deliveries += [one | {"offset": 10**6 + 1}, one | {"offset": 10**6 + 2}]
        return [_of(one)]

    def changed(self, column: str, value: Any) -> Found:
        one = self.victim()
        before = _of(one)
        one[column] = value
        return [before]

    def early(self) -> Found:
        one = self.victim()
        one["at"] = one["first_due"] - 1
        return [_of(one)]

    def expired(self) -> Found:
        one = self.victim()
        (sent,) = [other for other in self.history.commands if _sent(other) == _of(one)]
        sent["expires"] = sent["due"] + 1
        one["at"] += 70_000
        return [_of(one)]

    def exchanged(self) -> Found:
        """Two messages with each other's payload."""
        one, two = self.victim(), self.victim()
        one["content"], two["content"] = two["content"], one["content"]
        return [_of(one), _of(two)]

    def not_passed(self) -> Found:
        sent = self._sent(lambda one: one["due"] > END + 40)
        self.history.deliveries.append(self.history.record(sent, T + 500))
        return [(sent["shard"], sent["offset"])]

    def to_an_unread_topic(self) -> Found:
        sent = self._sent(lambda one: one["topic"] == "unread" and one["offset"] % 11 not in (3, 5, 7))
        self.history.deliveries.append(self.history.record(sent, END - 1) | {"topic": "orders"})
        return [(sent["shard"], sent["offset"])]

    def after_cancel(self) -> Found:
        sent = self._sent(lambda one: one["offset"] % 11 == 5)
        self.history.deliveries.append(self.history.record(sent, END - 1))
        return [(sent["shard"], sent["offset"])]

    def refused(self) -> Found:
        """A schedule that the ledger has refused, and a record of it."""
        entry = self.history.entries[0]
        entry["answers"] = [(at, int(Answer.DUPLICATE) if at == 30 else answer) for at, answer in entry["answers"]]
        return [(0, 30)]

    def _sent(self, where: Callable[[Row], bool]) -> Row:
        every = [one for one in self.history.commands if one["kind"] == "schedule" and one["offset"] < MESSAGES]
        return self.chosen.choice([one for one in every if where(one)])

    def all(self) -> Found:
        found = [
            self.lost(), self.twice(), self.thrice(), self.early(), self.expired(), self.exchanged(),
            self.not_passed(), self.to_an_unread_topic(), self.after_cancel(), self.refused(),
        ]  # fmt: skip
        for column, value in (
            ("content", 1), ("topic", "mails2"), ("first_due", T + 1), ("shard", 77), ("first_row", 3), ("due", 5),
            ("attempt", 2), ("metadata", -1),
        ):  # fmt: skip
            found.append(self.changed(column, value))
        return [one for some in found for one in some]


def _of(record: Row) -> tuple[int, int]:
    return record["shard"], record["first_offset"]


def _sent(command: Row) -> tuple[int, int]:
    return command["shard"], command["offset"]


@pytest.mark.parametrize("seed", range(2))
def test_no_fault_hides_in_a_bucket(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    history = History(seed)
    wrong = set(Faults(history, seed).all())
    assert len(wrong) == 19
    result = same(spark, history, tmp_path)
    assert result.violations > 15
    # With a bucket for each message nothing is looked at because of its neighbour.
    monkeypatch.setattr(sums, "_BUCKET_BITS", 0)
    clean, spoilt = looked(spark, History(seed)), looked(spark, history)
    assert wrong <= spoilt and spoilt - wrong <= clean


def looked(spark: SparkSession, history: History) -> set[tuple[int, int]]:
    gathered = history.gathered(spark)
    compared = judge(spark, gathered.frames, gathered.extent, (), comparing=True).compared
    assert compared is not None
    return {(row.shard, row.offset) for row in compared.commands.select("shard", "offset").collect()}


def test_a_tolerance_is_one_of_sums_as_well(spark: SparkSession, tmp_path: Path) -> None:
    history = History(2)
    Faults(history, 3).early()
    gathered = history.gathered(spark)
    patient = replace(gathered, extent=replace(gathered.extent, tolerance_ms=1))
    assert conclude(spark, patient, tmp_path / "sums").clean
