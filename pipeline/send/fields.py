"""The columns that `format("duemq")` writes, of any table: those of a delay file, with a name for each row."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duemq.pipeline.bulk_schedule.rules import REASON, BulkRules
from duemq.pipeline.columns import FIELDS, OWN, Columns
from duemq.pipeline.send.rules import sendable


def fields_of(
    frame: DataFrame, columns: Columns, rules: BulkRules | None = None, now: int | None = None, past: bool = False
) -> DataFrame:
    """The columns that `format("duemq")` writes, of the rows of a table that can be sent; the others are those of
    `rejects_of`. Arguments as in `commands_of`."""
    return fields(sendable(frame, columns, rules, now, past))


def fields(judged_rows: DataFrame) -> DataFrame:
    """The columns of what `sendable` made: see `fields_of`."""
    good = judged_rows.where(F.col(OWN + REASON).isNull())
    return good.select(*(F.col(OWN + name).alias(name) for name in FIELDS if OWN + name in judged_rows.columns))
