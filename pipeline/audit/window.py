"""Per shard: from which ledger entry to which one it is audited, and what these entries say about themselves.

The last entry before the range is the base, or where it is not there any more, the first one of the range; there is
none where the range begins with the shard's first entry. A shard is audited from the base's V and T on, up to those of
the last entry. Entries are looked at where they are: the driver gets a few rows per shard, however many there are.

Where an operator made a replica the truth (`Entry.base`), the entries that it had not are void: they are no part of
the history that is audited (`standing`). What they delivered is in the topics all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from duemq.model.log.ledger import OutcomeCounts

LONG_MAX = 2**63 - 1
ENTRY_COLUMNS = (
    "shard", "ledger_offset", "written", "n", "applied", "cursor_due", "cursor_offset", "cursor_row", "at", "pending",
    "accepted", "delivered", "cancelled", "dead", "checksum", "lost_from", "lost_to", "base", "problem",
)  # fmt: skip
_STATE: Final = (
    "applied", "cursor_due", "cursor_offset", "cursor_row", "pending", "checksum", "accepted", "delivered", "cancelled",
    "dead",
)  # fmt: skip
"""What an entry with a base has of that one."""
_MAX_FINDINGS: Final = 1_000  # of all shards: where a ledger is broken, these are enough to see how

Cursor = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ShardWindow:
    """What is known of one shard.

    Commands from `known_from` to below `applied` were applied in the range and can be read. `base_n`: the entry before
    the range, -1 where the range begins with the shard's history. `ended_at`: when the last entry was made, epoch ms.
    `buffer_end`: where the buffer ended once everything else had been read; no command has that offset.
    `gained`: how the ledger's counts grew over the range; `pending`: after it. `last_n`: -1 for a shard that has no
    entry in the range; its commands from `applied` on, which is then 0 or what the last entry before it says, wait.
    `recoveries`: number and base of each entry by which an operator made a replica the truth.
    """

    shard: int
    base_n: int
    last_n: int
    base_applied: int
    known_from: int
    applied: int
    cursor: Cursor
    began_at: int
    ended_at: int
    gained: OutcomeCounts
    pending: int
    buffer_end: int = LONG_MAX
    recoveries: tuple[tuple[int, int], ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the range holds the whole history of the shard, with all its commands."""
        return self.base_n < 0 and self.complete

    @property
    def complete(self) -> bool:
        """Whether all commands of the range can be read."""
        return self.known_from == self.base_applied

    @property
    def idle(self) -> bool:
        """Whether no cycle of the shard is in the range."""
        return self.last_n < 0

    def reading(self, log_start: int, end: int) -> ShardWindow:
        """The window with what is known of its partition of the buffer."""
        known_from = max(self.base_applied, log_start)
        applied = max(self.applied, known_from) if self.idle else self.applied
        return replace(self, known_from=known_from, applied=applied, buffer_end=end)


@dataclass(frozen=True, slots=True)
class Finding:
    """A contradiction in the logs that is about no single message."""

    kind: str
    shard: int
    detail: str


def idle(shard: int, base_n: int = -1, applied: int = 0) -> ShardWindow:
    """The window of a shard that has no entry in the range. `base_n`, `applied`: of its last entry before it."""
    return ShardWindow(shard, base_n, -1, applied, applied, applied, (0, 0, 0), 0, 0, OutcomeCounts(), 0)


def standing(entries: DataFrame) -> DataFrame:
    """The entries of a ledger that count: those that no later one has made void by its `base`.

    An entry with a base makes void what lies between the two. One that is void itself makes nothing void: then what it
    had made void may count again.
    """
    one = F.struct("ledger_offset", "n", "base")
    recovered = entries.where("base IS NOT NULL").groupBy("shard").agg(F.sort_array(F.collect_list(one), asc=False))
    nothing = F.struct(
        F.lit(LONG_MAX).alias("limit"), F.array().cast("array<struct<base: bigint, until: bigint>>").alias("void")
    )

    def earlier(state: Column, one: Column) -> Column:
        more = F.array(F.struct(one["base"].alias("base"), one["ledger_offset"].alias("until")))
        with_it = F.struct(one["base"].alias("limit"), F.concat(state["void"], more).alias("void"))
        return F.when(one["n"] <= state["limit"], with_it).otherwise(state)

    # There are as many of these as operators have decided: few.
    ranges = recovered.toDF("shard", "recovered").select(
        "shard", F.aggregate("recovered", nothing, earlier)["void"].alias("void")
    )
    is_void = F.exists(
        "void", lambda one: (F.col("n") > one["base"]) & (F.col("ledger_offset") < one["until"])
    )  # fmt: skip
    return entries.join(F.broadcast(ranges), "shard", "left").where(~F.coalesce(is_void, F.lit(False))).drop("void")


def windows(
    entries: DataFrame, since: int | None = None, tolerance_ms: int = 0
) -> tuple[dict[int, ShardWindow], list[Finding]]:
    """The windows of rows with `ENTRY_COLUMNS`, in any order, and what contradicts itself in them.

    `since`: entries written before it (epoch ms) are no part of the range, and the last of them is the base. Shards
    without an entry at all have no window; see `idle` for those that have one before the range only. `tolerance_ms`:
    how far a node's clock may be ahead of the brokers'.
    """
    rows = entries.select(*ENTRY_COLUMNS)
    findings = _unreadable(rows)
    sound = standing(rows.where("problem is null").drop("problem"))
    if since is None:
        sound = sound.withColumn("begin", F.lit(None).cast("bigint"))
    else:
        begins = sound.where(F.col("written") < since).groupBy("shard").agg(F.max("ledger_offset").alias("begin"))
        sound = sound.join(F.broadcast(begins), "shard", "left")
        sound = sound.where(F.col("begin").isNull() | (F.col("ledger_offset") >= F.col("begin")))
    before = Over.partitionBy("shard").orderBy("ledger_offset")
    followed = sound.withColumn("before", F.lag(F.struct(*sound.columns)).over(before))
    checked = followed.withColumn("wrong", _contradictions())
    shards = checked.groupBy("shard").agg(*_ends(tolerance_ms)).orderBy("shard").collect()
    if any(row.wrong for row in shards):  # then they are worth a second pass
        findings += _findings(checked.where(F.size("wrong") > 0))
    if any(row.losses for row in shards):
        findings += _losses(checked.where(_in_range()))
    by_shard = {}
    for row in shards:
        by_shard[row.shard] = _window(row)
        if row.ahead:
            findings.append(Finding("clock_ahead", row.shard, _ahead(row)))
    return by_shard, findings


def _unreadable(rows: DataFrame) -> list[Finding]:
    wrong = rows.where("problem is not null").select("shard", "ledger_offset", "problem")
    listed = wrong.orderBy("shard", "ledger_offset").limit(_MAX_FINDINGS).collect()
    return [Finding("ledger", row.shard, f"record {row.ledger_offset} of the ledger: {row.problem}") for row in listed]


def _contradictions() -> Column:
    """What is wrong with an entry and with what comes `before` it, in sentences."""
    c, outcomes = F.col, ("accepted", "delivered", "cancelled", "dead", "pending")
    total = c("delivered") + c("cancelled") + c("dead") + c("pending")
    uneven = (c("accepted") != total) | (F.least(*(c(name) for name in outcomes)) < 0)
    number, last = c("n").cast("string"), c("before.n").cast("string")

    def cursor(of: str) -> Column:
        return F.struct(*(F.col(of + name) for name in ("cursor_due", "cursor_offset", "cursor_row")))

    counts = F.concat(
        F.lit("entry "), number, F.lit(": "), "accepted", F.lit(" accepted, but "), "delivered", F.lit(" delivered + "),
        "cancelled", F.lit(" cancelled + "), "dead", F.lit(" dead + "), "pending", F.lit(" pending"),
    )  # fmt: skip
    differs = ~F.struct(*_STATE).eqNullSafe(F.struct(*(f"before.{name}" for name in _STATE)))
    unread = (c("lost_from") != c("before.applied")) | (c("lost_to") <= c("lost_from")) | (c("lost_to") > c("applied"))
    back = (c("applied") < c("before.applied")) | (cursor("") < cursor("before."))
    fewer = (c("accepted") < c("before.accepted")) | (c("cancelled") < c("before.cancelled"))
    follows = (
        F.when(c("before").isNull(), F.lit(None).cast("string"))
        .when(
            c("before.n") != F.coalesce("base", c("n") - 1),
            F.concat(F.lit("entry "), number, F.lit(" follows entry "), last),
        )
        .when(c("base").isNotNull() & differs, F.concat(F.lit("entry "), number, F.lit(" is not as entry "), last))
        .when(back, F.concat(F.lit("entry "), number, F.lit(" goes back behind entry "), last))
        .when(fewer, F.concat(F.lit("entry "), number, F.lit(" counts fewer messages than entry "), last))
        .when(unread, F.concat(F.lit("entry "), number, F.lit(" lost other commands than came after entry "), last))
    )
    return F.array_compact(F.array(F.when(uneven, counts), follows))


def _findings(wrong: DataFrame) -> list[Finding]:
    listed = wrong.orderBy("shard", "ledger_offset").select("shard", F.explode("wrong").alias("text"))
    rows = listed.limit(_MAX_FINDINGS).collect()
    return [Finding("ledger", row.shard, row.text) for row in rows]


def _losses(entries: DataFrame) -> list[Finding]:
    """The commands that were lost before anybody had read them, as the entries say."""
    losses = entries.where("lost_from IS NOT NULL").orderBy("shard", "ledger_offset")
    return [
        Finding(
            "lost_commands", row.shard,
            f"entry {row.n}: the log dropped commands {row.lost_from} to {row.lost_to - 1} before any node had read "
            f"them: up to {row.lost_to - row.lost_from} accepted messages, cancels and moves are lost",
        )
        for row in losses.select("shard", "n", "lost_from", "lost_to").limit(_MAX_FINDINGS).collect()
    ]  # fmt: skip


def _in_range() -> Column:
    return F.col("begin").isNull() | (F.col("ledger_offset") > F.col("begin"))


def _ends(tolerance_ms: int) -> list[Column]:
    row = F.struct(*(name for name in ENTRY_COLUMNS if name not in ("shard", "problem")))
    in_range = _in_range()
    ahead = F.when(in_range, F.col("cursor_due") - F.col("written"))
    return [
        F.min_by(row, "ledger_offset").alias("first"), F.max_by(row, "ledger_offset").alias("last"),
        F.max("begin").alias("begin"), F.count_if(F.size("wrong") > 0).alias("wrong"),
        F.count_if(in_range).alias("entries"), F.count_if(ahead > tolerance_ms).alias("ahead"),
        F.max(ahead).alias("most_ahead"), F.count_if(in_range & F.col("lost_from").isNotNull()).alias("losses"),
        F.collect_list(F.when(in_range & F.col("base").isNotNull(), F.struct("n", "base"))).alias("recoveries"),
    ]  # fmt: skip


def _ahead(row: Any) -> str:
    return (
        f"{row.ahead} of {row.entries} entries delivered what was due up to {row.most_ahead} ms after the time of the "
        "brokers: the node's clock was ahead of theirs"
    )


def _window(row: Any) -> ShardWindow:
    first, last = row.first, row.last
    if row.entries == 0:
        return idle(row.shard, last.n, last.applied)
    # A replica that was empty has the base -1.
    whole = row.begin is None and (first.n == 0 or first.base == -1)
    before = OutcomeCounts() if whole else _outcomes(first)
    applied = 0 if whole else first.applied
    return ShardWindow(
        row.shard, -1 if whole else first.n, last.n, applied, applied, last.applied,
        (last.cursor_due, last.cursor_offset, last.cursor_row), 0 if whole else first.at, last.at,
        OutcomeCounts(*(after - earlier for after, earlier in zip(_outcomes(last), before, strict=True))), last.pending,
        recoveries=tuple(sorted((one.n, one.base) for one in row.recoveries)),
    )  # fmt: skip


def _outcomes(row: Any) -> OutcomeCounts:
    return OutcomeCounts(row.accepted, row.delivered, row.cancelled, row.dead)


def of_range(entries: DataFrame, shard_windows: Mapping[int, ShardWindow]) -> DataFrame:
    """The entries after the base of each shard, as far as they count (`standing`)."""
    bases = [(one.shard, one.base_n) for one in shard_windows.values()]
    base_rows = entries.sparkSession.createDataFrame(bases, "shard int, base_n bigint")
    return standing(entries).join(F.broadcast(base_rows), "shard").where("n > base_n").drop("base_n")


def as_frame(spark: SparkSession, shard_windows: Mapping[int, ShardWindow], seen_at: int = 0) -> DataFrame:
    """One row per shard, to be joined with messages. `seen_at`: up to when (epoch ms) all shards should have worked: at
    least until the last entry of any."""
    seen_at = max(seen_at, max((one.ended_at for one in shard_windows.values()), default=0))
    rows = [
        (one.shard, one.known_from, one.applied, *one.cursor, one.began_at, one.ended_at, one.buffer_end, seen_at)
        for one in shard_windows.values()
    ]
    return spark.createDataFrame(
        rows,
        "shard int, known_from bigint, applied bigint, cursor_due bigint, cursor_offset bigint, cursor_row bigint, "
        "began_at bigint, ended_at bigint, buffer_end bigint, seen_at bigint",
    )
