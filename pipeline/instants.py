"""Times of a table as epoch ms, in Spark expressions."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, StringType, TimestampType

from duemq.pipeline.errors import BadInput

_DIGITS = r"^[+-]?\d{1,18}$"
_ZONED = r"^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:\d\d)$"
_NAIVE = r"^\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?)?$"


def epoch_ms(rows: DataFrame, expression: str) -> Column:
    """A column or SQL expression over `rows` as epoch ms (bigint), null where it is no time.

    Whole numbers are ms, timestamps instants, text either digits (ms) or RFC 3339 with a zone. Raises BadInput for
    other types: a TIMESTAMP_NTZ or a DATE names no instant.
    """
    kind = rows.select(F.expr(expression)).schema[0].dataType
    value = F.expr(expression)
    if isinstance(kind, IntegralType):
        return value.cast("bigint")
    if isinstance(kind, TimestampType):
        return ceil_ms(value)
    if isinstance(kind, StringType):
        return text_ms(value)
    raise BadInput(
        f"{expression} is {kind.simpleString()}: a time is epoch ms (bigint), a TIMESTAMP, or text with a zone"
    )


def ceil_ms(timestamp: Column) -> Column:
    """Epoch ms, rounded up: a message is never early."""
    return F.ceil(F.unix_micros(timestamp) / 1000).cast("bigint")


def text_ms(text: Column) -> Column:
    """Epoch ms of digits (ms) or of RFC 3339 text with a zone; null for anything else, such as a time without one."""
    trimmed = F.trim(text)
    instant = ceil_ms(F.try_to_timestamp(F.upper(trimmed)))
    return F.when(trimmed.rlike(_DIGITS), trimmed.cast("bigint")).when(trimmed.rlike(_ZONED), instant)


def is_naive(text: Column) -> Column:
    """Whether it is a time without a zone."""
    return F.trim(text).rlike(_NAIVE)
