"""Reads the times in a table as epoch ms, with Spark expressions.

The result never depends on the zone of the session (`spark.sql.session.timeZone`) or of Java. A time without a zone is
read in the given zone; if none is given, the time is refused.
"""

from __future__ import annotations

from datetime import date
from functools import partial
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, DecimalType, IntegralType, StringType, TimestampNTZType, TimestampType

from duemq.model.date_time import BadDateTime, parse_date_time
from duemq.model.timing import FIRST_MS
from duemq.pipeline.errors import BadInput

UNITS: Final = {"ms": 1, "s": 1000}
"""Units of whole numbers, with their length in ms."""
A_TIME: Final = "a timestamp, a date-time with a zone (RFC 3339), or epoch ms as a whole number"
_DIGITS = r"^[+-]?\d{1,18}\z"
_DATE = r"^\d{4}-\d\d-\d\d"
_ZONED = r"^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:[0-5]\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:?\d\d)\z"
_LOCAL = r"^\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d(:[0-5]\d(\.\d{1,9})?)?)?\z"
_BELOW_MICROS = r"\.\d{6}\d*[1-9]"
_DAY_US = 86_400_000_000
_DAYS = tuple(day.toordinal() - date(1970, 1, 1).toordinal() for day in (date.min, date.max))
_NO_ZONE = "has no time zone, and none is given for such times"
_YEARS = "is not in the years 1 to 9999"
_SHOWN = 60  # how many characters of a wrong value a sentence shows
LONG_PAST_MS: Final = 86_400_000
LONG_PAST: Final = "is more than a day past (with past=send it is delivered at once)"


class Time(NamedTuple):
    """A column read as times. `ms`: epoch ms (bigint), rounded up, so that no message is early. `problem`: the end of a
    sentence about a wrong value; null if the value is right."""

    ms: Column
    problem: Column


def is_whole(kind: DataType) -> bool:
    """Whether the values of this type are whole numbers. Some databases have decimal(38,0) as their only such type."""
    return isinstance(kind, IntegralType) or (isinstance(kind, DecimalType) and kind.scale == 0)


def read_time(value: Column, kind: DataType, *, zone: str | None = None, unit: str = "ms") -> Time | None:
    """A column of this type read as times; None if the type cannot be a time, or can be one only with a zone.

    Whole numbers are in `unit`s; timestamps are instants; text is digits (in `unit`s) or a date-time as in
    `model/date_time.py`. A time before March 1973 is refused, because it is a default value or in another unit. With
    `zone`, text without an offset, TIMESTAMP_NTZ and DATE (midnight) are times in that zone; times that the zone's
    clocks skip or repeat are refused.
    """
    if (time := _read(value, kind, zone, unit)) is None:
        return None
    number = F.lit(is_whole(kind))
    if isinstance(kind, StringType):
        number = F.trim(value).rlike(_DIGITS)
    if unit != "ms":
        number = F.lit(False)
    lost = F.lit("is before March 1973: a time that got lost")

    def bounded(ms: Column, problem: Column) -> Time:
        early, in_ms = ms < FIRST_MS, F.try_multiply(ms, F.lit(1000).cast("bigint"))
        seconds = F.concat(F.lit("looks like seconds; ms are "), in_ms.cast("string"))
        why = F.when(number & (in_ms >= FIRST_MS), seconds).otherwise(lost)
        return Time(F.when(~early, ms), F.when(early, why).otherwise(problem))

    if zone is None:
        return bounded(*time)

    def both(time: Time) -> Column:
        return F.struct(time.ms.alias("ms"), time.problem.alias("problem"))

    # The argument of a lambda is computed once. Copying its expression would exceed Java's size limit for a method.
    once = F.transform(F.array(both(time)), lambda one: both(bounded(one["ms"], one["problem"])))[0]
    return Time(once["ms"], once["problem"])


def _read(value: Column, kind: DataType, zone: str | None, unit: str) -> Time | None:
    if is_whole(kind):
        ms = _scaled(value.try_cast("bigint"), unit)
        return Time(ms, F.when(ms.isNull() & value.isNotNull(), f"{unit} is out of range"))
    if isinstance(kind, TimestampType):
        return Time(ceil_ms(F.unix_micros(value)), F.lit(None).cast("string"))
    if isinstance(kind, StringType):
        return _of_text(F.trim(value), zone, unit)
    if isinstance(kind, TimestampNTZType | DateType) and zone is not None:
        wall = _wall_us(value)
        micros, problem = _in_zone(wall, zone)
        return Time(ceil_ms(micros), F.when(wall.isNull() & value.isNotNull(), _YEARS).otherwise(problem))
    return None


def need_time(value: Column, kind: DataType, what: str, *, zone: str | None = None, unit: str = "ms") -> Time:
    """As `read_time`, but raises BadInput instead of returning None. `what`: the column, for the sentence."""
    time = read_time(value, kind, zone=zone, unit=unit)
    if time is None:
        local = isinstance(kind, TimestampNTZType | DateType)
        why = f": it {_NO_ZONE}" if local else ""
        raise BadInput(f"{what} must be {A_TIME}, not {kind.simpleString()}{why}")
    return time


def shown(value: Column) -> Column:
    """The beginning of a wrong value, for a sentence."""
    return F.left(value.cast("string"), F.lit(_SHOWN))


def why_long_past(due: int, now: int) -> str | None:
    """Why a time (epoch ms) is refused without past=send, or None."""
    return f"{due} {LONG_PAST}" if due < now - LONG_PAST_MS else None


def check_name_of_zone(zone: str) -> None:
    """Raise BadInput if Python does not know the zone."""
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, OSError, ValueError) as error:  # OSError: a folder of zones, such as Europe
        raise BadInput(f"{zone} is no time zone, such as Europe/Berlin or UTC") from error


def check_zone(spark: SparkSession, zone: str) -> None:
    """Raise BadInput if Spark's Java does not know the zone: Java has its own database of zones."""
    check_name_of_zone(zone)
    try:
        spark.range(1).select(F.from_utc_timestamp(F.timestamp_micros(F.lit(0)), zone)).head()
    except (PySparkException, Py4JJavaError) as error:
        raise BadInput(f"{zone} is no time zone that Spark's Java knows") from error


def ceil_ms(micros: Column) -> Column:
    """Epoch microseconds as epoch ms, rounded up."""
    # Doubles are not exact: from the year 2255 on they cannot hold microseconds.
    return F.call_function("div", micros, F.lit(1000)) + (micros % 1000 > 0).cast("bigint")


def _of_text(text: Column, zone: str | None, unit: str) -> Time:
    # Spark's timestamps drop digits below microseconds.
    below = text.rlike(_BELOW_MICROS).cast("bigint")
    # Spark requires seconds before a zone.
    whole = F.regexp_replace(F.upper(text), r"^(.{16})([Z+-])", "$1:00$2")
    number = _scaled(text.try_cast("bigint"), unit)
    ms = F.when(text.rlike(_DIGITS), number).when(
        text.rlike(_ZONED), ceil_ms(F.unix_micros(F.try_to_timestamp(whole)) + below)
    )
    # The server's own parser reads rarer forms; for all other rows it gets a null.
    odd = text.rlike(_DATE) & ~text.rlike(_ZONED) & ~text.rlike(_LOCAL)
    read = F.udf(partial(_parsed, zone=zone), "ms bigint, why string", useArrow=False)(F.when(odd, text))
    ms = ms.when(odd, read["ms"])
    unread = F.lit("is neither epoch ms nor a date-time with a zone (RFC 3339)")
    if unit != "ms":
        unread = F.lit(f"is neither epoch {unit} nor a date-time with a zone (RFC 3339)")
    if zone is None:
        problem = F.when(text.rlike(_LOCAL), _NO_ZONE).otherwise(F.coalesce(read["why"], unread))
    else:
        micros, out_of_clock = _in_zone(_wall_us(F.upper(text).try_cast("timestamp_ntz")), zone)
        ms = ms.when(text.rlike(_LOCAL), ceil_ms(micros + below))
        problem = F.coalesce(F.when(text.rlike(_LOCAL), out_of_clock), read["why"], unread)
    return Time(ms, F.when(ms.isNull() & text.isNotNull(), problem))


def _parsed(text: str | None, zone: str | None) -> tuple[int | None, str | None] | None:
    if text is None:
        return None
    try:
        return parse_date_time(text), None
    except BadDateTime as error:
        if error.code == "naive_time" and zone is not None:  # a time without a zone
            return _parsed(f"{text}[{zone}]", None)
        return None, error.why


def _scaled(number: Column, unit: str) -> Column:
    return number if UNITS[unit] == 1 else F.try_multiply(number, F.lit(UNITS[unit]).cast("bigint"))


def _wall_us(local: Column) -> Column:
    """A TIMESTAMP_NTZ or DATE as microseconds since 1970 on the same clock; null outside the years 1 to 9999.

    This is computed from the fields, because every conversion to TIMESTAMP uses the zone of the session.
    """
    day, wall = F.unix_date(local.cast("date")).cast("bigint"), local.cast("timestamp_ntz")
    second = day * 86_400 + F.hour(wall) * 3_600 + F.minute(wall) * 60
    micros = (F.extract(F.lit("SECOND"), wall) * 1_000_000).cast("bigint")
    return F.when(day.between(_DAYS[0], _DAYS[1]), second * 1_000_000 + micros)


def _in_zone(wall: Column, zone: str) -> tuple[Column, Column]:
    """Epoch microseconds of a time on the clocks of a zone, and a sentence if the clocks skip or repeat the time.

    The zone's offsets a day before and a day after the time are the offsets before and after any change. The result is
    the moment at which the clock, with one of the two offsets, shows the time. In a gap this is true for neither
    offset, in an overlap for both.
    """

    def offset(at: Column) -> Column:
        return F.unix_micros(F.from_utc_timestamp(F.timestamp_micros(at), zone)) - at

    def moments(wall: Column) -> Column:
        """The moments at which the clock shows the time, with either offset."""
        offsets = F.array_distinct(F.array(offset(wall - _DAY_US), offset(wall + _DAY_US)))
        each = F.transform(offsets, lambda one: F.struct((wall - one).alias("at"), one.alias("offset")))
        true = F.filter(each, lambda one: (F.size(offsets) == 1) | (offset(one["at"]) == one["offset"]))
        return F.transform(true, lambda one: one["at"])

    # A lambda's argument is computed once; a plain expression would be copied for each use.
    possible = F.transform(F.array(wall), moments)[0]
    micros = F.when(F.size(possible) == 1, possible[0])
    problem = F.when(F.size(possible) == 2, f"is shown twice by the clocks of {zone}: say it with its offset").when(
        (F.size(possible) == 0) & wall.isNotNull(), f"is left out by the clocks of {zone}"
    )
    return micros, problem
