"""The audit, from Kafka to tables and a report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Window as Over
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from duemq.model.log.ledger import Answer
from duemq.pipeline.audit import changes, lateness, outcomes, read, sums, violations, window
from duemq.pipeline.audit import imported as imported
from duemq.pipeline.audit.checks import run
from duemq.pipeline.audit.evidence import Extent, Frames, Gathered, Judged
from duemq.pipeline.audit.imported import AuditedFile
from duemq.pipeline.audit.lateness import Late
from duemq.pipeline.audit.violations import KINDS, VIOLATIONS
from duemq.pipeline.audit.window import Finding, ShardWindow
from duemq.pipeline.files.patterns import exact
from duemq.pipeline.files.uris import below, uri_of
from duemq.pipeline.logs import logs
from duemq.pipeline.logs.kafka import Kafka
from duemq.pipeline.logs.logs import BUFFER, DEAD_LETTERS
from duemq.pipeline.logs.ranges import Logs, TopicRange
from duemq.pipeline.spark.parallel import run_all
from duemq.pipeline.spark.progress import Silent, Teller, step
from duemq.pipeline.spark.scratch import Scratch
from duemq.pipeline.spark.session import override

OUTCOMES: Final = ("delivered", "cancelled", "moved", "dead", "pending", "lost", "unproven")
# Java does not compile the one method that Spark would make of all that decodes commands: it is too large for it.
_SPLIT: Final = {"spark.sql.codegen.hugeMethodLimit": "8000"}
_SHOWN: Final = 200  # violations of each kind in the report; the table has all


@dataclass(frozen=True, slots=True)
class AuditResult:
    """`account`: messages of the range by outcome (`OUTCOMES`). `others`: records of messages that are not accounted,
    by part. `violation_counts`: violations by kind; `shown`: the first of each kind. `waiting`: messages that no cycle
    has applied, by shard, of shards without a ledger entry in the range. `doubtful`: records of which it cannot be
    known whether they came too early; `doubts`: what else cannot be known, by key of `checks.DOUBTS`."""

    account: Mapping[str, int]
    others: Mapping[str, int]
    violation_counts: Mapping[str, int]
    shown: Sequence[Mapping[str, Any]]
    late: Late
    shards: Sequence[ShardWindow]
    notes: Sequence[str]
    ranges: Sequence[TopicRange] = ()
    answers: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[int, int] = field(default_factory=dict)
    doubtful: int = 0
    doubts: Mapping[str, int] = field(default_factory=dict)

    @property
    def unknown(self) -> int:
        """The number of messages of which it cannot be known what became of them, or whether it was right."""
        dropped = sum(one.known_from - one.base_applied for one in self.shards)
        return (
            self.account["unproven"] + sum(self.waiting.values()) + self.doubtful + dropped + sum(self.doubts.values())
        )

    @property
    def accepted(self) -> int:
        return sum(self.account.values())

    @property
    def violations(self) -> int:
        return sum(self.violation_counts.values())

    @property
    def clean(self) -> bool:
        return not self.violation_counts


def judge(
    spark: SparkSession,
    frames: Frames,
    extent: Extent,
    files: Sequence[AuditedFile] = (),
    comparing: bool = False,
) -> Judged:
    """One row per message, of logs that were read. `comparing`: only of those that need a look (`sums.py`)."""
    entries = window.of_range(frames.entries, extent.windows)
    answers = changes.answers(entries)
    # Cut off from how they were made: each is read many times, and plans that repeat all of it grow beyond the driver.
    changed = changes.changes(frames.commands, answers).localCheckpoint()
    deferred = changes.deferrals(entries, changed).localCheckpoint()
    cycles = changes.cycles(frames.entries)
    decided = changes.decided(changed, deferred, cycles, extent.longest_retry_ms)
    summary = changes.summary(decided).localCheckpoint()
    topics = spark.createDataFrame(list(extent.topics.items()), "topic string, known_from bigint")
    topic_hashes = topics.withColumn("topic_hash", F.xxhash64("topic"))
    shards = window.as_frame(spark, extent.windows, extent.seen_at)
    all_rows = rows = imported.rows_of(spark, files)
    if files:  # each check reads them, and they may be far away
        all_rows = rows = rows.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
    commands, deliveries, compared = frames.commands, frames.deliveries, None
    if comparing:
        compared = sums.compared(
            commands, rows, deliveries, frames.dead_letters, answers, changed, deferred, shards, topic_hashes,
            extent.tolerance_ms,
        )  # fmt: skip
        commands, rows, deliveries = compared.commands, compared.imported, compared.deliveries
    grouped = outcomes.messages(outcomes.events(commands, answers, rows, summary, deliveries, frames.dead_letters))
    table = outcomes.outcomes(grouped, shards, topic_hashes, extent.anywhere_from)
    return Judged(table, entries, answers, cycles, changed, deferred, summary, all_rows, shards, compared)


def audit(
    spark: SparkSession,
    kafka: Kafka,
    out: Path | str,
    *,
    since: int | None = None,
    until: int | None = None,
    topics: Sequence[str] = (),
    tolerance_ms: int = 0,
    longest_retry_ms: int = changes.LONGEST_RETRY_MS,
    teller: Teller | None = None,
    dead_letters: str = DEAD_LETTERS,
    outcomes_table: bool = False,
    expected_ids: DataFrame | None = None,
) -> AuditResult:
    """Audit the duemq on this Kafka, and write tables below `out` (a path of this machine, or a URI): `violations`,
    `lateness`, each Parquet.

    `since`, `until`: of ledger entries, epoch ms. `topics`: topics to read; none for those that duemq delivers to,
    `read.ALL` for all of the Kafka: copies may be anywhere. `longest_retry_ms`: the longest of `delivery.retry_delays`.
    `dead_letters`: the topic of these. `outcomes_table`: also write the table `outcomes` with a row per message, which
    takes two to three times as long. `expected_ids`: a table with a column `id`; each id that is in no log is
    `missing`. Raises BadInput and Unavailable.
    """
    progress = teller or Silent()
    with gathered(
        spark, kafka, out, since, until, topics, tolerance_ms, longest_retry_ms, progress, dead_letters
    ) as evidence:
        return conclude(spark, evidence, out, progress, outcomes_table, expected_ids)


@contextmanager
def gathered(
    spark: SparkSession,
    kafka: Kafka,
    out: Path | str,
    since: int | None = None,
    until: int | None = None,
    topics: Sequence[str] = (),
    tolerance_ms: int = 0,
    longest_retry_ms: int = changes.LONGEST_RETRY_MS,
    teller: Teller | None = None,
    dead_letters: str = DEAD_LETTERS,
) -> Iterator[Gathered]:
    """The logs, read once, and kept below `out` while they are needed. See `audit`."""
    progress = teller or Silent()
    there = Logs(kafka, spark)
    progress.step("asking Kafka what there is")
    now = time.time_ns() // 1_000_000  # shards go on while the ledger is read
    seen_at = now if until is None else min(until, now)
    ledger = read.ledger_range(there, since, until)
    with Scratch(spark, uri_of(out)) as scratch:
        with step(spark, progress, "reading the ledger"):
            entries = scratch.keep(logs.entries(logs.read_topics(spark, kafka, [ledger])))
            windows, findings = window.windows(entries, since, tolerance_ms)
        reading = read.topic_ranges(there, topics, since, until, dead_letters)
        buffer, windows = _buffer(there, windows, until, seen_at)
        letters = [reading.letters] if reading.letters else []
        with step(spark, progress, "reading the commands"), override(spark, _SPLIT):
            commands = scratch.keep(logs.own_commands(logs.read_topics(spark, kafka, [buffer])))
            # Most systems have no plain clients: then nothing of it is asked of Python.
            if commands.where("said is not null").limit(1).count():
                commands = scratch.keep(logs.understood(commands))
            else:
                commands = commands.drop("said")
        if not topics and (named := _topics(entries, commands)) is not None:
            reading = reading.within(named)
        ranges = [ledger, buffer, *reading.ranges.values(), *letters]
        for one in ranges:
            progress.says(f"reading {one}")
        with step(spark, progress, "reading what was delivered"):
            delivered = logs.deliveries(logs.read_topics(spark, kafka, reading.ranges.values()))
            frames = Frames(
                entries,
                commands,
                scratch.keep(_narrow(delivered)),
                scratch.keep(logs.dead_letters(logs.read_topics(spark, kafka, letters))),
            )
        extent = Extent(
            windows, reading.known_from, reading.anywhere_from, reading.letters_from, tolerance_ms, seen_at,
            longest_retry_ms,
        )  # fmt: skip
        yield Gathered(frames, extent, findings, [*reading.notes, *_notes(windows)], ranges)


def _topics(entries: DataFrame, commands: DataFrame) -> set[str] | None:
    """The topics that duemq was told to deliver to, or has written to; None if an entry does not list these."""
    written = entries.where("problem is null").select(
        F.explode(F.coalesce("topics", F.array(F.lit(None).cast("string"))))
    )
    rows = written.unionByName(commands.where("topic is not null").select(F.col("topic").alias("col"))).distinct()
    names = {row.col for row in rows.collect()}
    return None if None in names else names


def _narrow(deliveries: DataFrame) -> DataFrame:
    """Deliveries without the text of ids whose numbers say the same."""
    return deliveries.withColumn("id", F.when(F.col("shard").isNull(), F.col("id")))


def _buffer(
    there: Logs, windows: Mapping[int, ShardWindow], until: int | None, seen_at: int
) -> tuple[TopicRange, dict[int, ShardWindow]]:
    """What is read of the buffer, and the windows of all its shards.

    These are the commands of the range, and where it has no end those behind it, too: they wait to be applied. Of a
    shard that has no entry in the range, or none of its last ten minutes, all commands are read that none has applied
    before, up to `until`.
    """
    with there.connected():
        whole = there.ranges([BUFFER])[BUFFER]
        timely = whole if until is None else there.ranges([BUFFER], None, until)[BUFFER]
    shard_windows = {
        shard: windows.get(shard, window.idle(shard)).reading(whole.log_starts[shard], end)
        for shard, end in whole.ends.items()
    }
    starts = {
        shard: min(one.applied if one.idle else one.known_from, whole.ends[shard])
        for shard, one in shard_windows.items()
    }
    ends = {}
    if until is not None:
        ends = {
            shard: max(timely.ends[shard], one.applied)
            if one.ended_at + violations.OVERDUE_MS < seen_at
            else max(one.applied, starts[shard])
            for shard, one in shard_windows.items()
        }
    return whole.within(starts, ends), shard_windows


def _notes(windows: Mapping[int, ShardWindow]) -> list[str]:
    notes = []
    for shard, one in windows.items():
        if one.idle:
            notes.append(f"shard {shard}: the ledger has no entry in this range")
        elif not one.complete:
            missing = one.known_from - one.base_applied
            notes.append(f"shard {shard}: {missing} of the commands in this range were dropped from {BUFFER}")
        for number, base in one.recoveries:
            notes.append(
                f"shard {shard}: an operator made a replica the truth: entry {number} goes on from entry {base}. What "
                "entries between them say is void, and what they delivered may be there twice"
            )
    return notes


def files_of(frames: Frames, entries: DataFrame) -> list[AuditedFile]:
    """The files that were imported, looked at."""
    files = imported.imported_files(frames.commands, changes.answers(entries), entries)
    return imported.looked_at(frames.commands.sparkSession, files)


def conclude(
    spark: SparkSession,
    evidence: Gathered,
    out: Path | str,
    teller: Teller | None = None,
    outcomes_table: bool = False,
    expected_ids: DataFrame | None = None,
) -> AuditResult:
    """Judge logs that were read, and write the tables. See `audit`."""
    progress, folder = teller or Silent(), uri_of(out)
    frames, extent, notes = evidence.frames, evidence.extent, list(evidence.notes)
    entries = window.of_range(frames.entries, extent.windows)
    with step(spark, progress, "looking at imported files"):
        files = files_of(frames, entries)
    for file in files:
        if file.why_not:
            notes.append(
                f"{file.path} cannot be read as it was imported ({file.why_not}): its {file.rows} messages are "
                "counted, and when and where they were due is not known"
            )
    comparing = not outcomes_table and sum(one.count for one in evidence.ranges) > sums.FEW
    with step(spark, progress, "comparing records with commands"):
        judged = judge(spark, frames, extent, files, comparing)
    if judged.compared is not None:
        one = judged.compared
        progress.says(f"{one.unequal} of {one.buckets} buckets of messages are not as the commands say")
    with step(spark, progress, "reconciling messages"):
        table = violations.judged(judged.outcomes, extent.letters_from, extent.tolerance_ms)
        if outcomes_table:
            _write(table, below(folder, "outcomes"))
            table = spark.read.parquet(exact(below(folder, "outcomes")))
        else:
            # Cut off from how it was made: it is asked many times, and each plan would repeat all of it.
            table = table.localCheckpoint()
    return _concluded(spark, evidence, judged, table, files, notes, folder, progress, expected_ids)


def _concluded(
    spark: SparkSession,
    evidence: Gathered,
    judged: Judged,
    table: DataFrame,
    files: Sequence[AuditedFile],
    notes: list[str],
    folder: str,
    progress: Teller,
    expected_ids: DataFrame | None,
) -> AuditResult:
    extent, agreed = evidence.extent, judged.compared.agreed if judged.compared is not None else {}
    with step(spark, progress, "naming violations"):
        checked = run.check(judged, evidence, files, expected_ids)
        *checkpointed, replayed, checksum_findings, doubts = run_all(
            spark,
            [
                lambda: violations.violations(table).localCheckpoint(),
                *(lambda rows=rows: rows().localCheckpoint() for rows in checked.violations),
                lambda: _replayed(judged, table, extent, files),
                checked.findings,
                checked.doubt_counts,
            ],
        )
        findings = [*evidence.findings, *replayed, *checksum_findings]
        shards = spark.createDataFrame(
            [(one.kind, one.shard, None, None, None, None, None, one.detail, None, None) for one in findings],
            VIOLATIONS,
        )
        _write(reduce(DataFrame.unionByName, checkpointed, shards), below(folder, "violations"))
        listed = spark.read.parquet(exact(below(folder, "violations")))
        kinds = {row.kind: row["count"] for row in listed.groupBy("kind").count().collect()}
        first = Over.partitionBy("kind").orderBy("shard", "offset", "row")
        few = listed.withColumn("at", F.row_number().over(first)).where(F.col("at") <= _SHOWN).drop("at")
        order = {kind: at for at, kind in enumerate(KINDS)}
        rows = few.orderBy("shard", "offset", "row").collect() if kinds else []
        shown = sorted((row.asDict() for row in rows), key=lambda row: order[row["kind"]])
    with step(spark, progress, "measuring lateness"):
        late = lateness.lateness(table)
        if judged.compared is not None:
            late = lateness.together(late, judged.compared.late)
        _write(late, below(folder, "lateness"))
        written = spark.read.parquet(exact(below(folder, "lateness")))
        by_part = table.groupBy("part", "outcome", "shard").agg(
            F.count(F.lit(1)).alias("messages"), F.sum("accepts").alias("accepts"), F.sum("records").alias("records"),
            F.count_if((F.col("part") == "earlier") & (F.col("late") < 0)).alias("unproven"),
        )  # fmt: skip
        by_answer = judged.entries.select(F.explode("answers.answer").alias("answer")).groupBy("answer").count()
        summary, parts, answer_rows = run_all(
            spark, [lambda: lateness.summary(written), by_part.collect, by_answer.collect]
        )
    account: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
    others: Counter[str] = Counter()
    later: Counter[int] = Counter({shard: one.later for shard, one in agreed.items()})
    for row in parts:
        if row.outcome != "none":
            account[row.outcome] += row.messages
        elif row.part == "later":
            later[row.shard] += row.accepts
            others["delivered after the range"] += row.records
        else:
            others[row.part] += row.records
    for one in agreed.values():
        account.update(delivered=one.delivered, unproven=one.unread, pending=one.pending)
    others["not applied yet"] = later.total()
    doubtful = sum(row.unproven for row in parts)
    if doubtful:
        notes.append(
            f"{doubtful} records of messages that were accepted before the range came before the time they show: "
            "a deliver-now before the range makes them so, and whether there was one cannot be known"
        )
    notes += [f"{count} {run.DOUBTS[what]}" for what, count in doubts.items()]
    waiting = {shard: later[shard] for shard, one in extent.windows.items() if one.idle and later[shard]}
    return AuditResult(
        dict(account), {part: count for part, count in others.items() if count},
        {kind: kinds[kind] for kind in KINDS if kind in kinds}, shown, summary,
        [one for one in extent.windows.values() if not one.idle], notes, evidence.ranges,
        {Answer(row.answer).name.lower(): row["count"] for row in answer_rows}, waiting, doubtful, doubts,
    )  # fmt: skip


def _write(frame: DataFrame, to: str, mode: str = "overwrite") -> None:
    frame.write.mode(mode).option("compression", "zstd").parquet(to)


def _replayed(judged: Judged, table: DataFrame, extent: Extent, files: Sequence[AuditedFile]) -> list[Finding]:
    """Where the ledger has counted something else than the commands and its answers say."""
    accepted: Counter[int] = Counter()
    waiting: Counter[int] = Counter()
    if judged.compared is not None:
        for shard, agreed in judged.compared.agreed.items():
            accepted[shard] += agreed.delivered + agreed.unread + agreed.pending
            waiting[shard] += agreed.pending
    waits = F.expr("not passed and not (cancels > 0 or is_dead)")
    of_range = table.where("part = 'range' and accepts > 0").groupBy("shard")
    for row in of_range.agg(F.count("*").alias("accepted"), F.count_if(waits).alias("waiting")).collect():
        accepted[row.shard] += row.accepted
        waiting[row.shard] += row.waiting
    file_keys = {(file.shard, file.offset) for file in files}
    for row in judged.entries.select("shard", F.explode("imported").alias("one")).collect():
        if (row.shard, row.one.offset) not in file_keys:
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
    findings = []
    for shard, one in extent.windows.items():
        if one.idle or not one.complete:
            continue
        pairs = [("accepted", one.gained.accepted, accepted), ("cancelled", one.gained.cancelled, cancelled),
                 ("dead", one.gained.dead, dead)]  # fmt: skip
        if one.whole and not any(file.why_not for file in files if file.shard == shard):
            pairs.append(("pending", one.pending, waiting))
        findings += [
            Finding("ledger", shard, f"the ledger counts {counted} {what} messages, its commands say {tally[shard]}")
            for what, counted, tally in pairs
            if counted != tally[shard]
        ]
    return findings
