"""The rules for rows that are sent under names: the rules of bulk schedule without the lead, the rules for names, and
the rules for records from plain Kafka clients (`model/messages/plain.py`).

If a row breaks one of them, a shard would turn it into a dead letter; here it is rejected with a reason.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.model.topics.rules import NAME, NAME_BYTES, NAME_RULE
from duemq.pipeline.bulk_schedule.rules import REASON, BulkRules, Wrong, judged, sentence
from duemq.pipeline.columns import OWN, Columns, column, with_fields
from duemq.pipeline.columns.instants import LONG_PAST, LONG_PAST_MS, shown
from duemq.pipeline.errors import BadInput

TIME_HEADERS: Final = ("x-delay", "DELAY")
"""Time headers of plain clients that lack the prefix `duemq-`. Messages cannot have headers with these names."""
_NAME = rf"^(?:{NAME.pattern})\z"
# The server strips labels. These are the characters that Python's `str.strip` removes and that a label may contain.
_SPACE = r"[ \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}]"
_PADDED = rf"^{_SPACE}|{_SPACE}\z"


def sendable(
    frame: DataFrame, columns: Columns, rules: BulkRules | None = None, now: int | None = None, past: bool = False
) -> DataFrame:
    """The frame with the parts of each message (see `with_fields`), and `_duemq_reason`: why the row cannot be sent, or
    null. This uses only JVM expressions on single rows, so it works on streams.

    `rules`: their lead is ignored. `now`: epoch ms; with None, expired and long past rows are judged by the time of a
    stream's batch, and the horizon by the time of this call. `past`: accept rows due more than a day ago. Raises
    BadInput, also if there is no column of names.
    """
    if columns.name is None:
        raise BadInput("a column of names is missing: by its name a message that is sent twice is accepted once")
    with_fields(frame, columns)  # raises BadInput if the column of names is missing or has a wrong type
    began = int(time.time() * 1000) if now is None else now
    # This lead allows every window since 1970. Without a name column, `judged` does not compare rows with each other.
    any_lead = replace(rules or BulkRules(), lead_ms=-began)
    name = column(columns.name).cast("string")
    judged_rows = judged(frame, replace(columns, name=None), any_lead, began).withColumn(OWN + "name", name)
    clock = F.unix_millis(F.current_timestamp()) if now is None else F.lit(now)
    wrongs = [F.when(wrong, F.concat(*sentence)) for wrong, sentence in _wrongs(columns, clock, past)]
    return judged_rows.withColumn(OWN + REASON, F.coalesce(F.col(OWN + REASON), *wrongs))


def _wrongs(columns: Columns, clock: Column, past: bool) -> Iterator[Wrong]:
    due, name, expires = (F.col(OWN + field) for field in ("due_ms", "name", "expires_ms"))

    def says(field: str, *parts: object) -> list[Column]:
        return sentence(columns, field, *parts)

    if not past:
        yield due < clock - LONG_PAST_MS, says("due_ms", due.cast("string"), f" {LONG_PAST}")
    yield name.isNull(), says("name", "is null; every message needs one")
    yield (
        ~name.rlike(_NAME) | (F.octet_length(name) > NAME_BYTES),
        says("name", f"must have {NAME_RULE}, not '", shown(F.make_valid_utf8(name)), "'"),
    )
    if columns.has_headers:
        reserved = F.exists(F.col(OWN + "headers"), lambda header: header["name"].isin(*TIME_HEADERS))
        yield (
            reserved,
            says("headers", f"{' and '.join(TIME_HEADERS)} say when a record is due: no headers of a message"),
        )
    if columns.labels is not None:
        padded = F.exists(F.col(OWN + "labels"), lambda label: label.rlike(_PADDED))
        yield padded, says("labels", "a label must not begin or end with a space")
    if columns.expires is not None:
        yield expires < clock, says("expires_ms", expires.cast("string"), " has passed")
