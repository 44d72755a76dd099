"""How late records came: counts per topic, shard, hour and lateness, from which any percentile follows.

A record is late by the time from when its message was due, or from when that was said if that was later (a message that
is sent with a time in the past cannot have come before), to when it was appended. Below 1 s the counts are exact to the
ms, above to three digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

HOUR_MS: Final = 3_600_000
_EXACT_MS = 1_000


def lateness(fates: DataFrame) -> DataFrame:
    """`topic`, `shard`, `hour` (its start, epoch ms), `late_ms`, `messages`.

    Of `fates.fates`: those that were delivered, each by its first record. What came early is no lateness but a
    violation, or is not known to be one.
    """
    digits = F.pow(F.lit(10.0), F.floor(F.log10(F.greatest("late", F.lit(1)))) - 2).cast("bigint")
    bucket = F.when(F.col("late") < _EXACT_MS, F.col("late")).otherwise(F.col("late") - F.col("late") % digits)
    return (
        fates.where((F.col("records") > 0) & (F.col("late") >= 0) & (F.col("part") != "nowhere"))
        .groupBy(
            "topic", "shard", (F.col("delivered_at") - F.col("delivered_at") % HOUR_MS).alias("hour"),
            bucket.alias("late_ms"),
        )
        .agg(F.count(F.lit(1)).alias("messages"))
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spread:
    """In ms, of so many messages."""

    messages: int
    p50: int
    p90: int
    p99: int
    p999: int
    highest: int

    @staticmethod
    def of(late: Sequence[int], messages: Sequence[int]) -> Spread:
        """Of counts per lateness, in any order."""
        values, counts = np.asarray(late, np.int64), np.asarray(messages, np.int64)
        order = np.argsort(values, kind="stable")
        values, below = values[order], np.cumsum(counts[order])
        total = int(below[-1])
        shares = (0.5, 0.9, 0.99, 0.999)
        found = [int(values[np.searchsorted(below, share * total)]) for share in shares]
        return Spread(total, found[0], found[1], found[2], found[3], int(values[-1]))


def spreads(rows: Iterable[Mapping[str, Any]], *by: str) -> dict[Any, Spread]:
    """Of rows of `lateness`, per value of these columns (a tuple of several; `()` for none), in their order."""
    groups: dict[Any, tuple[list[int], list[int]]] = {}
    for row in rows:
        key = row[by[0]] if len(by) == 1 else tuple(row[name] for name in by)
        late, messages = groups.setdefault(key, ([], []))
        late.append(row["late_ms"])
        messages.append(row["messages"])
    return {key: Spread.of(*groups[key]) for key in sorted(groups, key=lambda key: (key is None, key))}
