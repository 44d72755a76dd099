"""Which rows can be scheduled, decided by Spark: the rules of `storage/intake_rules.py`, and when they are due."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.model.message import LABEL_TEXT, MOST_LABELS, TOPIC_BYTES
from duemq.model.record import HEADER
from duemq.model.timing import LAST_MS, WINDOW_MS
from duemq.pipeline.bulk.columns import OWN, UNREAD, Columns, with_fields
from duemq.pipeline.errors import BadInput
from duemq.storage.intake_rules import HEADER_NAME_CHARACTERS, RESERVED_HEADERS, AdoptLimits

REASON: Final = "reason"
TOPIC: Final = rf"^(?!duemq\.|__)(?!\.{{1,2}}\z)[A-Za-z0-9._-]{{1,{TOPIC_BYTES}}}\z"
_LABEL = rf"^(?:{LABEL_TEXT.pattern})\z"
_SHOWN = 60  # characters of a wrong value


@dataclass(frozen=True, slots=True)
class Rules:
    """`limits` should be those of the server. The window of a message (its half hour) must begin `lead_ms` after the
    start of the job or later, for the files are written until then; it is due no later than `horizon_ms` after it."""

    limits: AdoptLimits = field(default_factory=AdoptLimits)
    lead_ms: int = 10 * 60_000
    horizon_ms: int = 10 * 365 * 86_400_000


def judged(frame: DataFrame, columns: Columns, rules: Rules, now: int) -> DataFrame:
    """The frame with the parts of each message (see `with_fields`), and `_duemq_reason`: why a row cannot be scheduled,
    or null. `now`: the start of the job, epoch ms. Raises BadInput."""
    if REASON in frame.columns:
        raise BadInput(f"column {REASON}: the table of rejected rows has one of its own; rename yours")
    told = with_fields(frame, columns)
    if columns.name is not None:
        told = _with_twice(told)
    reason = F.coalesce(*(F.when(wrong, F.concat(*sentence)) for wrong, sentence in _wrongs(columns, rules, now)))
    return told.withColumn(OWN + REASON, reason)


def _with_twice(frame: DataFrame) -> DataFrame:
    """With `_duemq_twice`: how many rows have its name, where that is more than one."""
    name, again = OWN + "name", OWN + "again"
    twice = (
        frame.groupBy(F.col(name).alias(again)).agg(F.count("*").alias(OWN + "twice")).where(F.col(OWN + "twice") > 1)
    )
    return frame.join(twice, F.col(name) == F.col(again), "left").drop(again)


Wrong = tuple[Column, list[Column]]
"""When a row breaks a rule, and the sentence about it."""


def _wrongs(columns: Columns, rules: Rules, now: int) -> Iterator[Wrong]:
    limits = rules.limits
    due, expires = F.col(OWN + "due_ms"), F.col(OWN + "expires_ms")

    def says(name: str, *parts: object) -> list[Column]:
        return [
            F.lit(columns.source(name) + ": "),
            *(part if isinstance(part, Column) else F.lit(part) for part in parts),
        ]

    def too_long(name: str, limit: int) -> Wrong:
        length = F.octet_length(F.col(OWN + name))
        return length > limit, says(name, "has ", length.cast("string"), f" bytes, the limit is {limit}")

    first = now + rules.lead_ms
    unread = F.col(OWN + UNREAD)
    yield unread.isNotNull(), [unread]
    yield due - due % WINDOW_MS < first, says(
        "due_ms", due.cast("string"), f" is in a window that begins sooner than {rules.lead_ms} ms after {now}, when "
        "the job began: send it as a message",
    )  # fmt: skip
    yield (
        due > min(now + rules.horizon_ms, LAST_MS),
        says("due_ms", due.cast("string"), f" is more than {rules.horizon_ms} ms after {now}, when the job began"),
    )
    yield from _topic(F.col(OWN + "topic"), limits, lambda *parts: says("topic", *parts))
    yield F.col(OWN + "payload").isNull(), says("payload", "is null; every message needs one")
    yield too_long("payload", limits.max_payload_bytes)
    if columns.key is not None:
        yield too_long("key", limits.max_key_bytes)
    if columns.headers is not None or columns.header_prefix is not None:
        yield from _headers(F.col(OWN + "headers"), limits, lambda *parts: says("headers", *parts))
    if columns.labels is not None:
        yield from _labels(F.col(OWN + "labels"), lambda *parts: says("labels", *parts))
    if columns.expires is not None:
        yield expires > LAST_MS, says("expires_ms", expires.cast("string"), " is after the year 9999 (epoch ms)")
        yield (
            expires < due,
            says("expires_ms", expires.cast("string"), " is before the message is due, ", due.cast("string")),
        )
    if columns.name is not None:
        name, count = F.col(OWN + "name"), F.col(OWN + "twice")
        yield ~F.is_valid_utf8(name), says("name", "is not UTF-8")
        yield count > 1, says("name", count.cast("string"), " rows have it; names must be unique in a job")


Says = Callable[..., list[Column]]


def _topic(topic: Column, limits: AdoptLimits, says: Says) -> Iterator[Wrong]:
    yield topic.isNull(), says("is null; every message needs one")
    yield ~topic.rlike(TOPIC), says(
        f"must be 1 to {TOPIC_BYTES} characters of A-Z a-z 0-9 . _ -, neither . nor .., and not begin with duemq. or "
        "__, not '",
        F.left(F.make_valid_utf8(topic), F.lit(_SHOWN)), "'",
    )  # fmt: skip
    if limits.topics:
        allowed = "|".join(f"(?:{translate(pattern)})" for pattern in limits.topics)
        yield ~topic.rlike(f"^(?:{allowed})"), says(topic, " is not among the topics the server delivers to")


def _headers(headers: Column, limits: AdoptLimits, says: Says) -> Iterator[Wrong]:
    def any_name(wrong: Callable[[Column], Column]) -> Column:
        return F.exists(headers, lambda header: wrong(header["name"]))

    count = F.size(headers)
    most = limits.max_headers
    yield count > most, says(count.cast("string"), f" headers are given, the limit is {most}")
    yield F.exists(headers, lambda header: header.isNull()), says("a header is null")
    yield any_name(lambda name: name.isNull()), says("the name of a header is null")
    yield F.exists(headers, lambda header: header["value"].isNull()), says("the value of a header is null")
    yield any_name(lambda name: ~F.is_valid_utf8(name)), says("the name of a header is not UTF-8")
    yield (
        any_name(lambda name: (F.length(name) < 1) | (F.length(name) > HEADER_NAME_CHARACTERS)),
        says(f"header names have 1 to {HEADER_NAME_CHARACTERS} characters"),
    )
    prefix = F.lit(len(RESERVED_HEADERS))
    yield (
        any_name(lambda name: F.lower(F.left(name, prefix)) == RESERVED_HEADERS),
        says(f"the prefix {RESERVED_HEADERS} of header names is duemq's own"),
    )

    def plus(total: Column, header: Column) -> Column:
        return total + HEADER.size + F.octet_length(header["name"]) + F.octet_length(header["value"])

    size = F.aggregate(headers, F.lit(0).cast("bigint"), lambda total, header: plus(total, header).cast("bigint"))
    most = limits.max_headers_bytes
    yield size > most, says("have ", size.cast("string"), f" bytes, the limit is {most}")


def _labels(labels: Column, says: Says) -> Iterator[Wrong]:
    count = F.size(labels)
    yield count > MOST_LABELS, says(count.cast("string"), f" labels are given, the limit is {MOST_LABELS}")
    yield F.exists(labels, lambda label: label.isNull()), says("a label is null")
    yield F.exists(labels, lambda label: ~F.is_valid_utf8(label)), says("a label is not UTF-8")
    yield (
        F.exists(labels, lambda label: ~label.rlike(_LABEL)),
        says("a label has 1 to 128 characters, none of them a comma or a control character"),
    )


def rejected(frame: DataFrame) -> DataFrame:
    """Of a judged frame the rows that cannot be scheduled: the user's columns as they were, and `reason`."""
    own = [name for name in frame.columns if name.startswith(OWN)]
    kept = frame.where(F.col(OWN + REASON).isNotNull()).withColumn(REASON, F.col(OWN + REASON))
    return kept.drop(*own)


def reasons(frame: DataFrame) -> DataFrame:
    """How many rows of a judged frame are wrong in which field: `field`, `rows`. For a look before a job."""
    wrong = F.regexp_extract(F.col(OWN + REASON), r"^[a-z_]+", 0)
    return frame.groupBy(wrong.alias("field")).agg(F.count("*").alias("rows")).orderBy(F.desc("rows"), "field")
