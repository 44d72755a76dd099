"""Finds the messages that the rows of a table name. DataFrame in, DataFrame out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.pipeline.columns import column
from duemq.pipeline.errors import BadInput

TARGET: Final = "__duemq_target"


@dataclass(frozen=True)
class Targets:
    """How a row names its messages: by `column`, which has ids, or names that senders chose.

    With `ids` (a table such as bulk schedule writes) `column` has a business key, which `ids` has in its column `key`:
    the row names every id with this key, and the answers have it in the column `id`.
    """

    column: str
    ids: DataFrame | None = None
    key: str = "name"

    def of(self, rows: DataFrame) -> DataFrame:
        """The rows with the id of a message in the column `TARGET`, null without one, one row per id.

        With `ids` the rows also get its `due_ms`, unless they have such a column. Raises BadInput.
        """
        _need(rows, self.column, "the table")
        if self.ids is None:
            return rows.withColumn(TARGET, _text(self.column))
        for name in (self.key, "id"):
            _need(self.ids, name, "the table of ids")
        if "id" in rows.columns:
            raise BadInput("column id: the answers have the ids found by key in it; rename yours")
        key = "__duemq_key"
        due = ["due_ms"] if "due_ms" in self.ids.columns and "due_ms" not in rows.columns else []
        id_rows = self.ids.select(_text(self.key).alias(key), _text("id").alias("id"), *due)
        matches = (
            rows.withColumn(key, _text(self.column)).join(id_rows.dropDuplicates([key, "id"]), key, "left").drop(key)
        )
        return matches.withColumn(TARGET, F.col("id"))


def _text(name: str) -> Column:
    """Text without surrounding spaces; null if it is empty."""
    return F.nullif(F.trim(column(name).cast("string")), F.lit(""))


def _need(table: DataFrame, column: str, what: str) -> None:
    if column not in table.columns:
        raise BadInput(f"column {column}: {what} does not have it; it has {', '.join(table.columns)}")
