"""The audit, from Kafka to tables and a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from duemq.model.ledger import Answer
from duemq.pipeline import logs
from duemq.pipeline.audit import adopted, changes, fates, lateness, read, violations, window
from duemq.pipeline.audit.adopted import AdoptedFile
from duemq.pipeline.audit.violations import KINDS
from duemq.pipeline.audit.window import Finding, Window
from duemq.pipeline.kafka import Kafka
from duemq.pipeline.logs import BUFFER
from duemq.pipeline.progress import Silent, Teller, step
from duemq.pipeline.ranges import Logs, TopicRange

FATES: Final = ("delivered", "cancelled", "moved", "dead", "pending", "lost", "unproven")
VIOLATIONS: Final = (
    "kind string, shard int, id string, topic string, asked bigint, delivered_at bigint, records bigint, "
    "detail string, offset bigint, row bigint"
)
_SHOWN: Final = 200  # violations of each kind in the report; the table has all


@dataclass(frozen=True, slots=True)
class Frames:
    """The logs, read."""

    entries: DataFrame
    commands: DataFrame
    deliveries: DataFrame
    dead_letters: DataFrame


@dataclass(frozen=True, slots=True)
class Extent:
    """What the frames hold: see `Window` and `Targets`. `tolerance_ms`: see `violations.violations`."""

    windows: Mapping[int, Window]
    topics: Mapping[str, int]
    anywhere_from: int | None = None
    letters_from: int | None = None
    tolerance_ms: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """`account`: messages of the range by fate (`FATES`). `others`: records of messages that are not accounted, by
    part. `found`: violations by kind; `shown`: the first of each kind. `late`: rows of `lateness.lateness`."""

    account: Mapping[str, int]
    others: Mapping[str, int]
    found: Mapping[str, int]
    shown: Sequence[Mapping[str, Any]]
    late: Sequence[Mapping[str, Any]]
    shards: Sequence[Window]
    notes: Sequence[str]
    ranges: Sequence[TopicRange] = ()
    answers: Mapping[str, int] = field(default_factory=dict)

    @property
    def accepted(self) -> int:
        return sum(self.account.values())

    @property
    def violations(self) -> int:
        return sum(self.found.values())

    @property
    def clean(self) -> bool:
        return not self.found


@dataclass(frozen=True, slots=True)
class Gathered:
    """`findings`, `notes`: what is known before any message was looked at."""

    frames: Frames
    extent: Extent
    findings: Sequence[Finding]
    notes: Sequence[str]
    ranges: Sequence[TopicRange]


@dataclass(frozen=True, slots=True)
class Judged:
    """Frames that follow from the logs: see `fates.fates` and `changes`. `entries`: those of the range."""

    fates: DataFrame
    entries: DataFrame
    changes: DataFrame
    deferrals: DataFrame


def judge(spark: SparkSession, frames: Frames, extent: Extent, files: Sequence[AdoptedFile] = ()) -> Judged:
    """One row per message, of logs that were read."""
    entries = window.of_range(frames.entries, extent.windows)
    answers = changes.answers(entries)
    changed = changes.changes(frames.commands, answers).persist()
    deferred = changes.deferrals(entries, changed).persist()
    topics = spark.createDataFrame(list(extent.topics.items()), "topic string, known_from bigint")
    known = topics.withColumn("topic_hash", F.xxhash64("topic"))
    grouped = fates.messages(
        fates.events(
            frames.commands, answers, adopted.rows_of(spark, files), changes.summary(changed, deferred),
            frames.deliveries, frames.dead_letters,
        )
    )  # fmt: skip
    shards = window.as_frame(spark, extent.windows)
    return Judged(fates.fates(grouped, shards, known, extent.anywhere_from), entries, changed, deferred)


def audit(
    spark: SparkSession,
    kafka: Kafka,
    out: Path,
    *,
    since: int | None = None,
    until: int | None = None,
    targets: Sequence[str] = (),
    tolerance_ms: int = 0,
    teller: Teller | None = None,
) -> Result:
    """Audit the duemq on this Kafka, and write tables below `out`: `fates`, `violations`, `lateness`, each Parquet.

    `since`, `until`: of ledger entries, epoch ms. `targets`: topics to read; none for all. Raises BadInput and
    Unavailable.
    """
    told = teller or Silent()
    with gathered(spark, kafka, since, until, targets, tolerance_ms, told) as found:
        return conclude(spark, found, out, told)


@contextmanager
def gathered(
    spark: SparkSession,
    kafka: Kafka,
    since: int | None = None,
    until: int | None = None,
    targets: Sequence[str] = (),
    tolerance_ms: int = 0,
    teller: Teller | None = None,
) -> Iterator[Gathered]:
    """The logs, ready to be read. See `audit`."""
    told = teller or Silent()
    there = Logs(kafka)
    told.step("asking Kafka what there is")
    ledger = read.ledger_range(there, since, until)
    entries = logs.entries(logs.read_topics(spark, kafka, [ledger])).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with step(spark, told, "reading the ledger"):
            rows = [row.asDict() for row in entries.select(*window.ENTRY_COLUMNS).collect()]
        windows, findings = window.windows(rows, since)
        reading = read.target_ranges(there, targets, since, until)
        whole = there.ranges([BUFFER])[BUFFER]
        windows = {
            shard: windows[shard].reading(whole.log_starts[shard], end) if shard in windows else window.idle(shard, end)
            for shard, end in whole.ends.items()
        }
        buffer = _buffer(whole, windows, until)
        letters = [reading.letters] if reading.letters else []
        ranges = [ledger, buffer, *reading.ranges.values(), *letters]
        for one in ranges:
            told.says(f"reading {one}")
        commands = logs.commands(logs.read_topics(spark, kafka, [buffer])).persist(StorageLevel.MEMORY_AND_DISK)
        frames = Frames(
            entries,
            commands,
            logs.deliveries(logs.read_topics(spark, kafka, reading.ranges.values())),
            logs.dead_letters(logs.read_topics(spark, kafka, letters)),
        )
        extent = Extent(windows, reading.known_from, reading.anywhere_from, reading.letters_from, tolerance_ms)
        try:
            yield Gathered(frames, extent, findings, [*reading.notes, *_notes(windows)], ranges)
        finally:
            commands.unpersist()
    finally:
        entries.unpersist()


def _buffer(whole: TopicRange, windows: Mapping[int, Window], until: int | None) -> TopicRange:
    """The commands of the range, and where it has no end those behind it, too: they wait to be applied."""
    starts = {shard: min(one.known_from, whole.ends[shard]) for shard, one in windows.items()}
    ends = {shard: max(one.applied, starts[shard]) for shard, one in windows.items()} if until is not None else {}
    return whole.within(starts, ends)


def _notes(windows: Mapping[int, Window]) -> list[str]:
    notes = []
    for shard, one in windows.items():
        if one.last_n < 0:
            notes.append(f"shard {shard}: the ledger has no entry in this range")
        elif not one.complete:
            missing = one.known_from - one.base_applied
            notes.append(f"shard {shard}: {missing} of the commands in this range were dropped from {BUFFER}")
    return notes


def files_of(frames: Frames, entries: DataFrame) -> list[AdoptedFile]:
    """The files that were adopted, looked at."""
    files = adopted.adopted_files(frames.commands, changes.answers(entries), entries)
    return [replace(file, why_not=adopted.why_unreadable(file)) for file in files]


def conclude(spark: SparkSession, found: Gathered, out: Path, teller: Teller | None = None) -> Result:
    """Judge logs that were read, and write the tables. See `audit`."""
    told = teller or Silent()
    frames, extent, notes = found.frames, found.extent, list(found.notes)
    entries = window.of_range(frames.entries, extent.windows)
    with step(spark, told, "reading the commands"):
        files = files_of(frames, entries)
    for file in files:
        if file.why_not:
            notes.append(
                f"{file.path} is not what was adopted ({file.why_not}): its {file.rows} messages are counted, and when "
                "and where they were due is not known"
            )
    judged = judge(spark, frames, extent, files)
    with step(spark, told, "reconciling messages"):
        table = violations.judged(judged.fates, extent.letters_from, extent.tolerance_ms)
        _write(table, out / "fates")
    table = spark.read.parquet(str(out / "fates"))
    with step(spark, told, "naming violations"):
        wrong = violations.violations(table)
        findings = [*found.findings, *_replayed(judged, table, extent, files)]
        shards = spark.createDataFrame(
            [(one.kind, one.shard, None, None, None, None, None, one.detail, None, None) for one in findings],
            VIOLATIONS,
        )
        _write(wrong.unionByName(shards), out / "violations")
        listed = spark.read.parquet(str(out / "violations"))
        kinds = {row.kind: row["count"] for row in listed.groupBy("kind").count().collect()}
        shown = [
            row.asDict()
            for kind in KINDS if kind in kinds
            for row in listed.where(F.col("kind") == kind).orderBy("shard", "offset", "row").limit(_SHOWN).collect()
        ]  # fmt: skip
    with step(spark, told, "measuring lateness"):
        _write(lateness.lateness(table), out / "lateness")
        late = [row.asDict() for row in spark.read.parquet(str(out / "lateness")).collect()]
        parts = table.groupBy("part", "fate").agg(
            F.count(F.lit(1)).alias("messages"), F.sum("accepts").alias("accepts"), F.sum("records").alias("records"),
            F.count_if((F.col("part") == "earlier") & (F.col("late") < 0)).alias("unproven"),
        ).collect()  # fmt: skip
        said = entries.select(F.explode("answers.answer").alias("answer")).groupBy("answer").count().collect()
    judged.changes.unpersist()
    judged.deferrals.unpersist()
    account: Counter[str] = Counter(dict.fromkeys(FATES, 0))
    others: Counter[str] = Counter()
    for row in parts:
        if row.fate != "none":
            account[row.fate] += row.messages
        elif row.part == "later":
            others["not applied yet"] += row.accepts
            others["delivered after the range"] += row.records
        else:
            others[row.part] += row.records
    if doubtful := sum(row.unproven for row in parts):
        notes.append(
            f"{doubtful} records of messages that were accepted before the range came before the time they show: "
            "a deliver-now before the range makes them so, and whether there was one cannot be known"
        )
    return Result(
        dict(account), {part: count for part, count in others.items() if count},
        {kind: kinds[kind] for kind in KINDS if kind in kinds}, shown, late,
        [one for one in extent.windows.values() if one.last_n >= 0], notes, found.ranges,
        {Answer(row.answer).name.lower(): row["count"] for row in said},
    )  # fmt: skip


def _write(frame: DataFrame, to: Path) -> None:
    frame.write.mode("overwrite").option("compression", "zstd").parquet(str(to))


def _replayed(judged: Judged, table: DataFrame, extent: Extent, files: Sequence[AdoptedFile]) -> list[Finding]:
    """Where the ledger has counted something else than the commands and its answers say."""
    accepted: Counter[int] = Counter()
    waiting: Counter[int] = Counter()
    for row in table.where("part = 'range' and accepts > 0").groupBy("shard", "passed").count().collect():
        accepted[row.shard] += row["count"]
        waiting[row.shard] += 0 if row.passed else row["count"]
    for row in (
        table.where("part = 'range' and accepts > 0 and not passed and (cancels > 0 or is_dead = 1)")
        .groupBy("shard")
        .count()
        .collect()
    ):
        waiting[row.shard] -= row["count"]
    here = {(file.shard, file.offset) for file in files}
    for row in judged.entries.select("shard", F.explode("adopted").alias("one")).collect():
        if (row.shard, row.one.offset) not in here:
            accepted[row.shard] += row.one.rows
    ok = F.col("answer") == int(Answer.OK)
    changed = judged.changes.where(ok).groupBy("shard").agg(
        F.count_if(F.col("kind") == "cancel").alias("cancelled"),
        F.count_if(F.col("kind") == "redrive").alias("redriven"),
    )  # fmt: skip
    cancelled: Counter[int] = Counter()
    dead: Counter[int] = Counter()
    for row in changed.collect():
        cancelled[row.shard] = row.cancelled
        dead[row.shard] -= row.redriven
    for row in judged.deferrals.where("to_due is null").groupBy("shard").count().collect():
        dead[row.shard] += row["count"]
    found = []
    for shard, one in extent.windows.items():
        if one.last_n < 0 or not one.complete:
            continue
        pairs = [("accepted", one.gained.accepted, accepted), ("cancelled", one.gained.cancelled, cancelled),
                 ("dead", one.gained.dead, dead)]  # fmt: skip
        if one.whole and not any(file.why_not for file in files if file.shard == shard):
            pairs.append(("pending", one.pending, waiting))
        found += [
            Finding("ledger", shard, f"the ledger counts {counted} {what} messages, its commands say {said[shard]}")
            for what, counted, said in pairs
            if counted != said[shard]
        ]
    return found
