"""The rules of `storage/imports/row_rules.py`, and the rules for due times, as Spark expressions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from duemq.client.http.values import Limits
from duemq.model.messages.record import HEADER
from duemq.model.timing import LAST_MS, WINDOW_MS
from duemq.model.topics.rules import HEADER_NAME_CHARACTERS, LABEL, MAX_LABELS, RESERVED_HEADERS, TOPIC_BYTES
from duemq.pipeline.columns import OWN, UNREAD, Columns, column, with_fields
from duemq.pipeline.columns.instants import shown
from duemq.pipeline.errors import BadInput
from duemq.pipeline.logs.server import message_limits
from duemq.storage.limits import ImportLimits

REASON: Final = "reason"
TOPIC: Final = rf"^(?!duemq\.|__)(?!\.{{1,2}}\z)[A-Za-z0-9._-]{{1,{TOPIC_BYTES}}}\z"
_LABEL = rf"^(?:{LABEL.pattern})\z"
LEAD_MS: Final = 10 * 60_000
_MAX_REPEATED = 100_000  # how many repeated names may be sent to each executor
_AGAIN, _TWICE, _HASH = OWN + "again", OWN + "twice", OWN + "hash"


@dataclass(frozen=True, slots=True)
class BulkRules:
    """`limits`: these should be the server's. The window of a message (its half hour) must begin at least `lead_ms`
    after the start of the job; the files are written in this time. A message is due at most `horizon_ms` after the
    start. `server_lead_ms`: how long before their windows the server accepts files. `ahead_ms`: by how much the
    server's clock, which decides, is ahead of the clock of this machine."""

    limits: ImportLimits = field(default_factory=ImportLimits)
    lead_ms: int = LEAD_MS
    horizon_ms: int = 10 * 365 * 86_400_000
    server_lead_ms: int = 120_000
    ahead_ms: int = 0

    @staticmethod
    def of(limits: Limits, lead_ms: int = LEAD_MS) -> BulkRules:
        """The rules of a server. Raises BadInput if `lead_ms` is shorter than the server's own lead."""
        if lead_ms < limits.min_lead_ms:
            raise BadInput(f"a lead of {lead_ms} ms is too short: the server takes files {limits.min_lead_ms} ms ahead")
        ahead_ms = 0 if limits.now_ms is None else limits.now_ms - int(time.time() * 1000)
        return BulkRules(message_limits(limits), lead_ms, limits.max_delay_ms, limits.min_lead_ms, ahead_ms)

    def server_clock(self, clock: Callable[[], int]) -> Callable[[], int]:
        """The server's clock (epoch ms), computed from this machine's."""
        return lambda: clock() + self.ahead_ms


def judged(
    frame: DataFrame, columns: Columns, rules: BulkRules, now: int, repeated: DataFrame | None = None
) -> DataFrame:
    """The frame with the parts of each message (see `with_fields`), and `_duemq_reason`: why the row cannot be
    scheduled, or null. `now`: the start of the job, in epoch ms. `repeated`: from `repeated_names`; if it is None,
    repeated names are found in the same pass, by a shuffle of all rows. Raises BadInput."""
    if own := next((name for name in frame.columns if name.lower() == REASON), None):  # Spark ignores case in names
        raise BadInput(f"column {own}: the table of rejected rows has a column of this name; rename yours")
    rows = with_fields(frame, columns)
    if columns.name is not None:
        rows = _with_twice(rows, _counted(rows) if repeated is None else repeated)
    reason = F.coalesce(*(F.when(wrong, F.concat(*sentence)) for wrong, sentence in _wrongs(columns, rules, now)))
    return rows.withColumn(OWN + REASON, reason)


@contextmanager
def repeated_names(frame: DataFrame, columns: Columns) -> Iterator[DataFrame | None]:
    """`_duemq_again, _duemq_twice`: the names that several rows share, and the number of these rows, for `judged`.
    None without a column of names, or if there are too many repeated names to send them to each executor.

    This reads only the column of names, so that payloads are not shuffled.
    """
    if columns.name is None:
        yield None
        return
    narrow = with_fields(frame, columns).select(OWN + "name").where(F.col(OWN + "name").isNotNull())
    hashed = F.xxhash64(OWN + "name").alias(_HASH)
    alike = narrow.groupBy(hashed).agg(F.count("*").alias("rows")).where("rows > 1").select(_HASH).persist()
    exact = _counted(narrow.join(F.broadcast(alike), hashed == F.col(_HASH), "left_semi")).persist()
    try:
        count = alike.count()
        if count == 0:  # Spark knows that this frame is empty, and leaves out the join
            yield _counted(narrow.where(F.lit(False)))
        else:
            yield F.broadcast(exact) if count <= _MAX_REPEATED else None
    finally:
        exact.unpersist()
        alike.unpersist()


def _counted(frame: DataFrame) -> DataFrame:
    """The names that more than one row has, and the number of these rows."""
    return frame.groupBy(F.col(OWN + "name").alias(_AGAIN)).agg(F.count("*").alias(_TWICE)).where(F.col(_TWICE) > 1)


def _with_twice(frame: DataFrame, repeated: DataFrame) -> DataFrame:
    """The rows with `_duemq_twice`: the number of rows with the same name, or null if the name is unique."""
    return frame.join(repeated, F.col(OWN + "name") == F.col(_AGAIN), "left").drop(_AGAIN)


Wrong = tuple[Column, list[Column]]
"""A condition that is true if a row breaks a rule, and the parts of a sentence about it."""


def sentence(columns: Columns, field: str, *parts: object) -> list[Column]:
    """The parts of a sentence about a field."""
    about = F.lit(columns.source(field) + ": ")
    return [about, *(part if isinstance(part, Column) else F.lit(part) for part in parts)]


def _wrongs(columns: Columns, rules: BulkRules, now: int) -> Iterator[Wrong]:
    limits = rules.limits
    due, expires = F.col(OWN + "due_ms"), F.col(OWN + "expires_ms")

    def says(name: str, *parts: object) -> list[Column]:
        return sentence(columns, name, *parts)

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
    if not columns.nulls:
        yield F.col(OWN + "payload").isNull(), says("payload", "is null; every message needs one")
    yield too_long("payload", limits.max_payload_bytes)
    if columns.key is not None:
        yield too_long("key", limits.max_key_bytes)
    if columns.has_headers:
        headers = F.col(OWN + "headers")
        yield from _headers(headers, limits, lambda *parts: says("headers", *parts), columns.nulls)
    if columns.labels is not None:
        yield from _labels(F.col(OWN + "labels"), lambda *parts: says("labels", *parts))
    if columns.expires is not None:
        yield expires > LAST_MS, says("expires_ms", expires.cast("string"), " is after the year 9999 (epoch ms)")
        yield (
            expires < due,
            says("expires_ms", expires.cast("string"), " is before the message is due, ", due.cast("string")),
        )
    if columns.name is not None:
        name, count = F.col(OWN + "name"), F.col(_TWICE)
        yield ~F.is_valid_utf8(name), says("name", "is not UTF-8")
        yield count > 1, says("name", count.cast("string"), " rows have it; names must be unique in a job")


Says = Callable[..., list[Column]]


def _topic(topic: Column, limits: ImportLimits, says: Says) -> Iterator[Wrong]:
    yield topic.isNull(), says("is null; every message needs one")
    yield ~topic.rlike(TOPIC), says(
        f"must be 1 to {TOPIC_BYTES} characters of A-Z a-z 0-9 . _ -, neither . nor .., and not begin with duemq. or "
        "__, not '",
        shown(F.make_valid_utf8(topic)), "'",
    )  # fmt: skip
    if limits.topics:
        allowed = "|".join(f"(?:{translate(pattern)})" for pattern in limits.topics)
        yield ~topic.rlike(f"^(?:{allowed})"), says(topic, " is not among the topics the server delivers to")


def _headers(headers: Column, limits: ImportLimits, says: Says, nulls: bool) -> Iterator[Wrong]:
    def any_name(wrong: Callable[[Column], Column]) -> Column:
        return F.exists(headers, lambda header: wrong(header["name"]))

    count = F.size(headers)
    most = limits.max_headers
    yield count > most, says(count.cast("string"), f" headers are given, the limit is {most}")
    yield F.exists(headers, lambda header: header.isNull()), says("a header is null")
    yield any_name(lambda name: name.isNull()), says("the name of a header is null")
    if not nulls:
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
        return (
            total + HEADER.size + F.octet_length(header["name"]) + F.coalesce(F.octet_length(header["value"]), F.lit(0))
        )

    size = F.aggregate(headers, F.lit(0).cast("bigint"), lambda total, header: plus(total, header).cast("bigint"))
    most = limits.max_headers_bytes
    yield size > most, says("have ", size.cast("string"), f" bytes, the limit is {most}")


def _labels(labels: Column, says: Says) -> Iterator[Wrong]:
    count = F.size(labels)
    yield count > MAX_LABELS, says(count.cast("string"), f" labels are given, the limit is {MAX_LABELS}")
    yield F.exists(labels, lambda label: label.isNull()), says("a label is null")
    yield F.exists(labels, lambda label: ~F.is_valid_utf8(label)), says("a label is not UTF-8")
    yield (
        F.exists(labels, lambda label: ~label.rlike(_LABEL)),
        says("a label has 1 to 128 characters, none of them a comma or a control character"),
    )


def rejected(frame: DataFrame) -> DataFrame:
    """The rows of a judged frame that cannot be scheduled: the user's columns without change, and `reason`.

    Columns of types that Parquet cannot store (void, calendar interval) become text.
    """
    bad_rows = frame.where(F.col(OWN + REASON).isNotNull()).withColumn(REASON, F.col(OWN + REASON))
    return bad_rows.select(
        *(
            column(one.name).cast("string").alias(one.name) if _is_unwritable(one.dataType) else column(one.name)
            for one in bad_rows.schema.fields
            if not one.name.startswith(OWN)
        )
    )


def _is_unwritable(of: T.DataType) -> bool:
    if isinstance(of, T.ArrayType):
        return _is_unwritable(of.elementType)
    if isinstance(of, T.MapType):
        return _is_unwritable(of.keyType) or _is_unwritable(of.valueType)
    if isinstance(of, T.StructType):
        return any(_is_unwritable(field.dataType) for field in of.fields)
    return isinstance(of, T.NullType | T.CalendarIntervalType)


def reasons(frame: DataFrame) -> DataFrame:
    """The number of wrong rows in a judged frame by the field that is wrong: `field`, `rows`. For a dry run."""
    wrong = F.regexp_extract(F.col(OWN + REASON), r"^(?:the )?([a-z_]+)", 1)
    return frame.groupBy(wrong.alias("field")).agg(F.count("*").alias("rows")).orderBy(F.desc("rows"), "field")
