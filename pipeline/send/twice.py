"""Checks a table before it is sent: how many rows are rejected, and which names are used for several messages.

If rows with the same name differ, the server would accept any one of them.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duemq.pipeline.bulk_schedule.rules import REASON
from duemq.pipeline.columns import FIELDS, OWN, Columns


class TableCheck(NamedTuple):
    """Numbers: all `rows`, the `rejected` ones, other rows that are `overdue`, and names that occur several times
    (`repeated`; 0 if names are not checked)."""

    rows: int
    rejected: int
    overdue: int
    repeated: int = 0


def look(judged_rows: DataFrame, now: int, *, names: bool = True) -> TableCheck:
    """Check rows from `sendable`. The table is read once, and only hashes of names are shuffled. `now`: epoch ms."""
    is_overdue = F.col(OWN + REASON).isNull() & (F.col(OWN + "due_ms") <= now)
    counts = [F.count("*"), F.count(OWN + REASON), F.count_if(is_overdue)]
    columns = [count.alias(name) for count, name in zip(counts, TableCheck._fields, strict=False)]
    if not names:
        totals = judged_rows.agg(*columns).first()
        assert totals is not None
        return TableCheck(*totals)
    name = F.col(OWN + "name")
    by_name = judged_rows.groupBy(F.when(name.isNotNull(), F.xxhash64(name)).alias("of")).agg(*columns)
    repeated = F.count_if(F.col("of").isNotNull() & (F.col("rows") > 1))
    totals = by_name.agg(F.sum("rows"), F.sum("rejected"), F.sum("overdue"), repeated).first()
    assert totals is not None
    return TableCheck(*(total or 0 for total in totals))


def without_ambiguous(judged_rows: DataFrame, columns: Columns, *, equal: bool = True) -> DataFrame:
    """Rows from `sendable`, where all rows that share a name but differ are rejected. Equal rows stay, and become one
    message, unless `equal` is False, as for bulk schedule."""
    name, reason = OWN + "name", OWN + REASON
    fields = [F.col(OWN + field) for field in FIELDS if OWN + field in judged_rows.columns]
    content, of = F.xxhash64(*fields), OWN + "of"
    ambiguous = (
        judged_rows.where(F.col(reason).isNull())
        .groupBy(F.col(name).alias(of))
        .agg(F.count("*").alias(OWN + "rows"), F.min(content).alias(OWN + "least"), F.max(content).alias(OWN + "most"))
        .where(F.col(OWN + "least") < F.col(OWN + "most") if equal else F.col(OWN + "rows") > 1)
    )
    joined = judged_rows.join(ambiguous, F.col(name) == F.col(of), "left")
    sentence = F.concat(
        F.lit(f"{columns.source('name')}: "),
        F.col(OWN + "rows").cast("string"),
        F.lit(f" rows have it{' and differ' if equal else ''}; a name stands for one message"),
    )
    full_reason = F.coalesce(F.col(reason), F.when(F.col(of).isNotNull(), sentence))
    return joined.withColumn(reason, full_reason).drop(of, OWN + "rows", OWN + "least", OWN + "most")
