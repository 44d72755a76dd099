"""Times of a table as epoch ms, in Spark expressions."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegralType, StringType, TimestampType

_DIGITS = r"^[+-]?\d{1,18}\z"
_ZONED = r"^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:?\d\d)\z"
_NAIVE = r"^\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?)?\z"
_BELOW_MICROS = r"\.\d{6}\d*[1-9]"
A_TIME = "a timestamp, a date-time with a zone (RFC 3339), or epoch ms as a whole number"


def epoch_ms(value: Column, kind: DataType) -> Column | None:
    """A column of this type as epoch ms (bigint), null where it is no time.

    Whole numbers are ms, timestamps instants, text either digits (ms) or RFC 3339 with a zone. None for other types:
    a TIMESTAMP_NTZ or a DATE names no instant.
    """
    if isinstance(kind, IntegralType):
        return value.cast("bigint")
    if isinstance(kind, TimestampType):
        return ceil_ms(value)
    return text_ms(value) if isinstance(kind, StringType) else None


def ceil_ms(timestamp: Column) -> Column:
    """Epoch ms, rounded up: a message is never early."""
    return _ceil_ms(F.unix_micros(timestamp))


def text_ms(text: Column) -> Column:
    """Epoch ms of digits (ms) or of RFC 3339 text with a zone; null for anything else, such as a time without one."""
    trimmed = F.trim(text)
    # Spark's timestamps end at microseconds: it leaves out what a text says below them.
    micros = F.unix_micros(F.try_to_timestamp(F.upper(trimmed))) + trimmed.rlike(_BELOW_MICROS).cast("bigint")
    return F.when(trimmed.rlike(_DIGITS), trimmed.try_cast("bigint")).when(trimmed.rlike(_ZONED), _ceil_ms(micros))


def is_naive(text: Column) -> Column:
    """Whether it is a time without a zone."""
    return F.trim(text).rlike(_NAIVE)


def _ceil_ms(micros: Column) -> Column:
    # Not by a division of doubles: from the year 2255 on they do not hold microseconds exactly.
    return F.call_function("div", micros + F.pmod(-micros, F.lit(1000)), F.lit(1000))
