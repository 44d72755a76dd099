"""The ledger's checksums, computed once more: of the keys that are pending after the last entry, and of files.

Every entry has a sum over the keys of all pending messages, which replicas compare. It can be computed where the whole
history of a shard is read. A file's sum is in the entry that made its messages pending.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duemq.model.log.ledger import Answer
from duemq.pipeline.audit.changes import MESSAGE
from duemq.pipeline.audit.window import Finding, ShardWindow

_SUMS: Final = "shard int, part bigint, high bigint, low bigint, keys bigint"
_MASK: Final = 2**64 - 1
NO_PART: Final = -1


def pending_keys(
    commands: DataFrame, answers: DataFrame, imported: DataFrame, summary: DataFrame, windows: DataFrame
) -> DataFrame:
    """The keys that are pending after the last entry of each shard: `shard`, `due`, `offset`, `row`."""
    refused = answers.where(F.col("answer") != int(Answer.ACCEPTED)).select("shard", "offset")
    schedules = commands.where("kind = 'schedule'").select(
        "shard", "due", "offset", F.lit(0).cast("bigint").alias("row")
    )
    files = imported.where("NOT counted").select("shard", "due", "offset", "row")
    shards = F.broadcast(windows.select("shard", "applied", "cursor_due", "cursor_offset", "cursor_row"))
    waits = F.struct("due", "offset", "row") > F.struct("cursor_due", "cursor_offset", "cursor_row")

    def waiting(keys: DataFrame) -> DataFrame:
        return keys.join(shards, "shard").where(waits).select("shard", "due", "offset", "row", "applied")

    first = waiting(schedules).join(refused, ["shard", "offset"], "left_anti").unionByName(waiting(files))
    plain_keys = first.where("offset < applied").join(summary.select(*MESSAGE), list(MESSAGE), "left_anti")
    changed = first.where("offset < applied").join(summary, list(MESSAGE)).where("place_due IS NULL")
    still = changed.where("cancels = 0 AND NOT is_dead")
    moved = summary.where("place_due IS NOT NULL AND cancels = 0 AND NOT is_dead").select(
        "shard", F.col("place_due").alias("due"), F.col("place_offset").alias("offset"), F.col("place_row").alias("row")
    )
    columns = ("shard", "due", "offset", "row")
    return plain_keys.select(*columns).unionByName(still.select(*columns)).unionByName(waiting(moved).select(*columns))


def sums(keys: DataFrame) -> DataFrame:
    """Per `shard` and `part` (any number) the sum over keys of `shard`, `part`, `due`, `offset`, `row`: in two halves,
    `high` and `low`, which `whole` puts together; and how many `keys`."""
    parts = keys.select("shard", "part", "due", "offset", "row").mapInArrow(_parts, _SUMS)
    return parts.groupBy("shard", "part").agg(
        F.sum("high").alias("high"), F.sum("low").alias("low"), F.sum("keys").alias("keys")
    )


def whole(high: int, low: int) -> int:
    return ((high << 32) + low) & _MASK


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([("shard", pa.int32()), *((name, pa.int64()) for name in ("part", "high", "low", "keys"))])
    for batch in batches:
        if not batch.num_rows:
            continue
        shards, parts, *key = (np.asarray(batch[name]) for name in ("shard", "part", "due", "offset", "row"))
        groups, of = np.unique(np.stack((shards, parts), axis=1), axis=0, return_inverse=True)
        mixed = _mixed(*(numbers.astype(np.uint64) for numbers in key))
        high, low = np.zeros((2, len(groups)), np.int64)
        np.add.at(high, of.reshape(-1), (mixed >> np.uint64(32)).astype(np.int64))
        np.add.at(low, of.reshape(-1), (mixed & np.uint64(0xFFFF_FFFF)).astype(np.int64))
        counts = np.bincount(of.reshape(-1), minlength=len(groups))
        yield pa.RecordBatch.from_arrays(
            [pa.array(groups[:, 0].astype(np.int32)), *map(pa.array, (groups[:, 1], high, low, counts))], schema=schema
        )


def _mixed(
    due: npt.NDArray[np.uint64], offset: npt.NDArray[np.uint64], row: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Each key as 64 bits: splitmix64's finaliser (Steele, Lea, Flood 2014) over due, offset times its increment, and
    row shifted by 40."""
    x = due ^ offset * np.uint64(0x9E3779B97F4A7C15) ^ row << np.uint64(40)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    hashes: npt.NDArray[np.uint64] = x ^ x >> np.uint64(31)
    return hashes


def of_entries(
    pending: DataFrame, entries: DataFrame, windows: Mapping[int, ShardWindow], unread: set[int]
) -> list[Finding]:
    """Where the checksum of a shard's last entry is not that of the messages that are pending.

    `pending`: `pending_keys`; `unread`: shards with files whose rows cannot be read. Only shards whose whole history is
    read can be compared.
    """
    judged = [one.shard for one in windows.values() if one.whole and one.last_n >= 0 and one.shard not in unread]
    computed = {
        row.shard: whole(row.high, row.low) for row in sums(pending.withColumn("part", F.lit(NO_PART))).collect()
    }
    last = entries.groupBy("shard").agg(F.max_by("checksum", "n").alias("checksum"), F.max("n").alias("n")).collect()
    findings = []
    for row in last:
        sum_ = computed.get(row.shard, 0)
        if row.shard in judged and int(row.checksum, 16) != sum_:
            sentence = f"entry {row.n} has the checksum {row.checksum}, the messages that are pending {sum_:016x}"
            findings.append(Finding("ledger", row.shard, sentence))
    return findings


def of_files(imported: DataFrame, entries: DataFrame) -> list[Finding]:
    """Where the checksum or number of rows that the ledger gives of a file is not that of the rows that are in it."""
    keys = imported.where("NOT counted").select("shard", F.col("offset").alias("part"), "due", "offset", "row")
    imports = entries.select("shard", "n", F.explode("imported").alias("one")).where("one.reason = ''")
    ledger_sums = imports.select("shard", "n", F.col("one.offset").alias("part"), "one.checksum", "one.rows")
    wrong = []
    for row in sums(keys).join(ledger_sums, ["shard", "part"]).orderBy("shard", "part").collect():
        computed = whole(row.high, row.low)
        if int(row.checksum, 16) != computed or row.rows != row["keys"]:
            wrong.append(Finding(
                "ledger", row.shard,
                f"entry {row.n}: the file of command {row.part} has {row['keys']} rows with the checksum "
                f"{computed:016x}, and not {row.rows} with {row.checksum}",
            ))  # fmt: skip
    return wrong
