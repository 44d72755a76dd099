"""CSV of any make: `Columns` say which column is what, as for bulk schedule, and all is done in Spark's expressions."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.pipeline.bulk_schedule.rules import TOPIC
from duemq.pipeline.columns import CORRUPT, HIDDEN, OWN, UNREAD, Columns, column, with_fields

SOURCE: Final = HIDDEN + "source"
_RAW: Final = HIDDEN + "raw"


def from_csv(rows: DataFrame, columns: Columns) -> DataFrame:
    """Rows of the shape of `from_documents` (without `twin` and `ends`), from a table whose columns are all text.

    An empty value is none, but an empty payload is a payload. Of a row that Spark could not divide into columns the
    line is in the column `CORRUPT`, and where each row comes from in `SOURCE`, if there are such columns. Raises
    BadInput as `with_fields`.
    """
    column_names = [name for name in rows.columns if not name.startswith(HIDDEN)]
    corrupt, source = (
        F.col(name) if name in rows.columns else F.lit(None).cast("string") for name in (CORRUPT, SOURCE)
    )
    line = F.coalesce(corrupt, F.to_json(F.struct(*map(column, column_names))))
    texts = (F.nullif(column(name), F.lit("")).alias(name) for name in column_names)
    frame = with_fields(
        rows.select(*texts, corrupt.alias(CORRUPT), source.alias(SOURCE), line.alias(_RAW)), columns
    )  # fmt: skip

    own = {name: F.col(OWN + name) for name in ("due_ms", "topic", "payload", "key", "headers", "labels", "expires_ms")}
    own["name"] = F.col(OWN + "name") if columns.name is not None else F.lit(None).cast("string")
    own["payload"] = F.coalesce(own["payload"], F.lit(b""))
    own["labels"] = F.coalesce(own["labels"], F.array().cast("array<string>"))
    names = F.transform(own["headers"], lambda header: header["name"])
    twice = F.size(F.array_distinct(names)) < F.size(names)
    own["headers"] = F.when(~twice, F.map_from_entries(own["headers"]))
    own["headers"] = F.coalesce(own["headers"], F.expr("CAST(map() AS map<string,binary>)"))
    reason = F.coalesce(
        F.col(OWN + UNREAD),
        F.when(
            F.coalesce(~own["topic"].rlike(TOPIC), F.lit(True)),
            _sentence(columns, "topic", "'", F.coalesce(own["topic"], F.lit("")), "' is not the name of a topic"),
        ),
        F.when(twice, _sentence(columns, "headers", "a name is there twice")),
    )
    shown = (value.alias(name) for name, value in own.items())
    return frame.select(*shown, F.col(SOURCE).alias("source"), reason.alias("reason"), F.col(_RAW).alias("raw"))


def _sentence(columns: Columns, field: str, *parts: str | Column) -> Column:
    texts = (part if isinstance(part, Column) else F.lit(part) for part in parts)
    return F.concat(F.lit(columns.source(field) + ": "), *texts)
