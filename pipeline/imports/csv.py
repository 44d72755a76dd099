"""CSV of any make: which columns mean what is said by options, and all is done in Spark's own expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.pipeline.bulk.rules import TOPIC
from duemq.pipeline.errors import BadInput
from duemq.pipeline.instants import ceil_ms, is_naive, text_ms

HEADER: Final = "header."
CORRUPT: Final = "__duemq_corrupt"
_DIGITS = r"^\d{1,18}$"
_BASE64 = r"^[A-Za-z0-9+/]*={0,2}$"


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """The names of columns. Of `due` and `expires` the values are epoch ms (`unit` "s": seconds) or ISO 8601.

    `zone`: of times without one (such as Europe/Berlin); without it they are rejected. `topic` is one for all, and
    `topic_column` the column with each one's. `payload` is text, `payload_base64` bytes. `headers` holds a JSON object;
    columns named `header.NAME` are headers too. `labels` is divided at commas.
    """

    due: str = "due"
    topic: str | None = None
    topic_column: str = "topic"
    payload: str = "payload"
    payload_base64: str | None = None
    key: str | None = None
    headers: str | None = None
    labels: str | None = None
    expires: str | None = None
    name: str | None = None
    unit: str = "ms"
    zone: str | None = None


def from_csv(rows: DataFrame, options: CsvOptions) -> DataFrame:
    """Rows of the shape of `from_documents` (without `twin` and `ends`), from a table whose columns are all text.

    Of a row that Spark could not divide into columns the line is in the column `CORRUPT`, if there is one. Raises
    BadInput for columns that are missing.
    """
    _check(rows, options)
    topic = F.lit(options.topic) if options.topic is not None else _column(options.topic_column)
    due, expires = _time(options.due, options), _time(options.expires, options)
    columns = [name for name in rows.columns if name not in (CORRUPT, "source")]
    raw = F.to_json(F.struct(*(F.col(f"`{name}`") for name in columns)))
    if CORRUPT in rows.columns:
        raw = F.coalesce(F.col(CORRUPT), raw)
    if options.payload_base64 is not None:
        payload = F.try_to_binary(_column(options.payload_base64), F.lit("base64"))
    else:
        payload = F.to_binary(F.coalesce(_column(options.payload), F.lit("")), F.lit("utf-8"))
    return rows.select(
        due.alias("due_ms"), topic.alias("topic"), payload.alias("payload"),
        F.to_binary(_column(options.key), F.lit("utf-8")).alias("key"), _headers(rows, options).alias("headers"),
        _labels(options).alias("labels"), expires.alias("expires_ms"), _column(options.name).alias("name"),
        F.col("source") if "source" in rows.columns else F.lit(None).cast("string").alias("source"),
        _reason(rows, options, topic, due, expires, payload).alias("reason"), raw.alias("raw"),
    )  # fmt: skip


def _check(rows: DataFrame, options: CsvOptions) -> None:
    wanted = {"due": options.due, "key": options.key, "headers": options.headers, "labels": options.labels,
              "expires": options.expires, "name": options.name, "payload-base64": options.payload_base64}  # fmt: skip
    if options.topic is None:
        wanted["topic"] = options.topic_column
    if options.payload_base64 is None:
        wanted["payload"] = options.payload
    for option, column in wanted.items():
        if column is not None and column not in rows.columns:
            known = ", ".join(name for name in rows.columns if name not in (CORRUPT, "source"))
            raise BadInput(f"column {column} (of --{option}): the file does not have it; it has {known}")
    if options.unit not in ("ms", "s"):
        raise BadInput(f"the unit of numbers is ms or s, not {options.unit}")
    if options.zone is not None:
        try:
            ZoneInfo(options.zone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise BadInput(f"{options.zone} is no time zone, such as Europe/Berlin or UTC") from error


def _column(name: str | None) -> Column:
    return F.lit(None).cast("string") if name is None else F.nullif(F.col(f"`{name}`"), F.lit(""))


def _time(name: str | None, options: CsvOptions) -> Column:
    text = F.trim(_column(name))
    factor = 1000 if options.unit == "s" else 1
    number = F.expr(f"try_multiply(try_cast({_quoted(name)} AS BIGINT), {factor}L)")
    found = F.when(text.rlike(_DIGITS), number)
    if options.zone is not None:
        zoned = F.to_utc_timestamp(F.try_to_timestamp(F.upper(text)), options.zone)
        found = found.when(is_naive(text), ceil_ms(zoned))
    return found.otherwise(text_ms(text)).cast("bigint")


def _quoted(name: str | None) -> str:
    return "NULL" if name is None else f"trim(`{name}`)"


def _headers(rows: DataFrame, options: CsvOptions) -> Column:
    maps = []
    if options.headers is not None:
        maps.append(F.from_json(_column(options.headers), "map<string,string>"))
    own = [name for name in rows.columns if name.startswith(HEADER)]
    if own:
        pairs = F.array(*(
            F.struct(F.lit(name.removeprefix(HEADER)).alias("name"), _column(name).alias("value")) for name in own
        ))  # fmt: skip
        maps.append(F.map_from_entries(F.filter(pairs, lambda pair: pair["value"].isNotNull())))
    if not maps:
        return F.expr("CAST(map() AS map<string,binary>)")
    given = [F.coalesce(one, F.expr("CAST(map() AS map<string,string>)")) for one in maps]
    return F.transform_values(_last_wins(given), lambda _, value: F.to_binary(value, F.lit("utf-8")))


def _last_wins(maps: list[Column]) -> Column:
    """Headers of both kinds: a column of its own wins over the same name in the JSON."""
    if len(maps) == 1:
        return maps[0]
    left = F.map_filter(maps[0], lambda name, _: ~F.array_contains(F.map_keys(maps[1]), name))
    return F.map_concat(left, maps[1])


def _labels(options: CsvOptions) -> Column:
    parts = F.split(F.coalesce(_column(options.labels), F.lit("")), ",")
    return F.filter(F.transform(parts, lambda label: F.trim(label)), lambda label: label != "")


def _reason(
    rows: DataFrame, options: CsvOptions, topic: Column, due: Column, expires: Column, payload: Column
) -> Column:
    said = F.trim(_column(options.due))
    reason = (
        F.when(F.col(CORRUPT).isNotNull(), "the line has too few or too many columns")
        if CORRUPT in rows.columns
        else F.when(F.lit(False), "")
    )
    reason = reason.when(said.isNull(), f"{options.due} is empty")
    reason = _bad_time(reason, options.due, said, due)
    if options.expires is not None:
        said = F.trim(_column(options.expires))
        reason = _bad_time(reason, options.expires, said, F.when(said.isNull(), 0).otherwise(expires))
    reason = reason.when(F.coalesce(~topic.rlike(TOPIC), F.lit(True)), _of("not the name of a topic", topic))
    if options.payload_base64 is not None:
        bad = _column(options.payload_base64).isNotNull() & (
            payload.isNull() | ~_column(options.payload_base64).rlike(_BASE64)
        )
        reason = reason.when(bad, f"{options.payload_base64} is not base64")
    if options.headers is not None:
        text = _column(options.headers)
        bad = text.isNotNull() & (F.from_json(text, "map<string,string>").isNull() | ~F.trim(text).startswith("{"))
        reason = reason.when(bad, _of(f"{options.headers} is no JSON object", text))
    return reason


def _bad_time(reason: Column, column: str, said: Column, found: Column) -> Column:
    naive = _of(f"{column} has no zone, and --zone is not given", said)
    return reason.when(found.isNull() & is_naive(said), naive).when(
        found.isNull(), _of(f"{column} is no time: epoch ms or s, or ISO 8601", said)
    )


def _of(sentence: str, value: Column) -> Column:
    return F.concat(F.lit(f"{sentence}: "), F.coalesce(value, F.lit("nothing")))
