"""Reads the envelopes of duemq's own commands (`duemq.model.messages.message`) with Spark's expressions, so that no
record has to go through Python.

If an envelope is invalid by the server's rules, its command is `malformed`.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.model.messages.message import (
    CANCEL,
    DELIVER_NOW,
    ENVELOPE,
    FORMAT,
    MAX_HEADERS,
    MOVE,
    MOVE_WITH_EXPIRY,
    NO_KEY,
    PURGE,
    REDRIVE,
    SCHEDULE,
)
from duemq.model.messages.names import FINGERPRINT_BYTES
from duemq.model.timing import LAST_MS

_LONG_MAX: Final = 2**63 - 1
_KINDS: Final = {
    SCHEDULE: "schedule", CANCEL: "cancel", MOVE: "move", DELIVER_NOW: "deliver_now", REDRIVE: "redrive",
    PURGE: "purge", MOVE_WITH_EXPIRY: "move",
}  # fmt: skip
_TOPIC: Final = "^[A-Za-z0-9._-]{1,249}$"
_HEAD: Final = ENVELOPE.size
assert _HEAD == 34
# Each field: name, first byte, number of bytes. Schedules and changes share the first two. Reading a number is the most
# expensive step, so small fields are read together as one number: `_PARTS` has their bits.
_START: Final = (("_first", 0, 6), ("_due", 6, 8))
_SCHEDULE: Final = (("_expires", 14, 8), ("_topic", 22, 1), ("_sizes", 23, 7), ("_headers", 30, 4))
_PARTS: Final = (
    ("_kind", "_first", 40, 8), ("_format", "_first", 32, 8), ("_size", "_first", 0, 32),
    ("_key", "_sizes", 40, 16), ("_labels", "_sizes", 24, 16), ("_name", "_sizes", 16, 8), ("_count", "_sizes", 0, 16),
)  # fmt: skip
_CHANGE: Final = (("_first_offset", 14, 8), ("_first_row", 22, 4), ("_to", 26, 8))
_TERMS: Final = (("_tag_bytes", 2, 1), ("_to_topic_bytes", 3, 1))
_TERMS_HEAD: Final = 38  # a change with terms adds the maximum of redrives (2 bytes), and the sizes of tag and topic
_TAG: Final = "^[a-z0-9]{1,32}/[0-9]{1,10}$"


def number(digits: Column | str, at: int, size: int, kind: str = "bigint") -> Column:
    """The unsigned number in the `size` bytes from byte `at`, given as hex digits; at most 2**63 - 1. Null for null."""
    text = F.conv(F.substring(digits, 2 * at + 1, 2 * size), 16, 10)
    if size < 8:
        return text.cast(kind)
    return F.when(text.isNotNull(), F.coalesce(text.try_cast("bigint"), F.lit(_LONG_MAX)))


def metadata_hash(key_bytes: Column, label_bytes: Column, content: Column) -> Column:
    """The hash of a message without its payload: `key_bytes` (65535: no key), `label_bytes`, and the key, the labels
    (joined by LF) and the packed headers (`duemq.model.messages.record`) in one piece."""
    return F.xxhash64(key_bytes.cast("int"), label_bytes.cast("int"), content)


def packed_hash(metadata: str) -> Column:
    """`metadata_hash` of one piece of bytes that begins with both lengths, two bytes each. Null if it is null."""
    digits = F.hex(F.substring(metadata, 1, 4))
    of = metadata_hash(
        number(digits, 0, 2), number(digits, 2, 2), F.expr(f"substring({metadata}, 5, octet_length({metadata}))")
    )
    return F.when(F.col(metadata).isNotNull(), of)


def decoded(records: DataFrame) -> DataFrame:
    """Commands (`logs.commands`) and `said`. The input columns are `shard`, `offset`, `at`, `own`, `envelope` (null for
    a record from another client), `said` and `content`."""
    c = F.col
    digits = records.withColumn("_head", F.when(F.octet_length("envelope") >= _HEAD, F.hex(_bytes(0, F.lit(_HEAD)))))
    starts = digits.withColumns({name: number("_head", at, size) for name, at, size in _START})
    numbers = starts.withColumns(_parts_of("_first"))
    is_schedule = c("_kind") == SCHEDULE
    is_change = c("_kind").between(CANCEL, MOVE_WITH_EXPIRY)
    has_terms = is_change & (c("_size") > _HEAD)
    fields = numbers.withColumns(
        {name: F.when(is_schedule, number("_head", at, size)) for name, at, size in _SCHEDULE}
        | {name: F.when(is_change, number("_head", at, size)) for name, at, size in _CHANGE}
    ).withColumns(_parts_of("_sizes"))
    key = F.when(c("_key") == NO_KEY, F.lit(0)).otherwise(c("_key"))
    named = F.when(c("_name") > 0, c("_name") + FINGERPRINT_BYTES).otherwise(0)
    placed = fields.withColumns({
        "_topic_text": F.when(is_schedule, _bytes(_HEAD, c("_topic")).cast("string")),
        "_middle": F.lit(_HEAD) + c("_topic"),
        "_whole": F.lit(_HEAD) + c("_topic") + key + c("_labels") + c("_headers") + named,
        "_carries": key + c("_labels") + c("_headers"),
    })  # fmt: skip
    terms = {name: F.when(has_terms, number(F.hex(_bytes(_HEAD, F.lit(4))), at, size)) for name, at, size in _TERMS}
    placed = placed.withColumns(terms).withColumns({
        "_tag": F.when(has_terms, _bytes(_TERMS_HEAD, c("_tag_bytes")).cast("string")),
        "_to_topic": F.when(
            has_terms, _bytes(F.lit(_TERMS_HEAD) + c("_tag_bytes"), c("_to_topic_bytes")).cast("string")
        ),
    })  # fmt: skip
    sized = (c("_format") == FORMAT) & (c("_size") == F.octet_length("envelope"))
    schedule = (
        sized & (c("_size") == c("_whole")) & (c("_due") <= LAST_MS) & (c("_expires") <= LAST_MS) & _is_topic()
        & _are_headers(c("_middle") + key + c("_labels"))
        & ((c("_labels") == 0) | F.is_valid_utf8(_bytes(c("_middle") + key, c("_labels")).cast("string")))
    )  # fmt: skip
    sound_terms = (
        (c("_size") == F.lit(_TERMS_HEAD) + c("_tag_bytes") + c("_to_topic_bytes"))
        & ((c("_tag_bytes") == 0) | c("_tag").rlike(_TAG)) & ((c("_to_topic_bytes") == 0) | _is_topic("_to_topic"))
    )  # fmt: skip
    plain_change = (c("_size") == _HEAD) & (c("_kind") < PURGE)
    change = sized & (plain_change | sound_terms) & (c("_to") <= LAST_MS)
    judged = placed.withColumn(
        "kind",
        F.when(~c("own"), F.lit(None).cast("string"))
        .when(F.coalesce(is_schedule & schedule, F.lit(False)), "schedule")
        .when(
            F.coalesce(is_change & change, F.lit(False)),
            F.element_at(F.array(*(F.lit(_KINDS[kind]) for kind in sorted(_KINDS))), c("_kind").cast("int")),
        )
        .otherwise("malformed"),
    )
    sent = c("kind") == "schedule"
    changed = c("kind").isin("cancel", "move", "deliver_now", "redrive", "purge")
    # The due time of "deliver now" and "redrive" is the time when the command was appended (delay/core/cycle.py).
    due = (
        F.when(sent, c("_due"))
        .when(c("kind") == "move", c("_to"))
        .when(changed & ~c("kind").isin("cancel", "purge"), c("at"))
    )  # fmt: skip
    # The name in an idempotency key is a digest. Decoded as text, many digests would become the same name.
    name = _bytes(c("_middle") + c("_carries"), c("_name"))
    text = F.when(F.is_valid_utf8(name.cast("string")), name.cast("string")).otherwise(
        F.concat(F.lit("0x"), F.hex(name))
    )
    fingerprint = F.xxhash64(_bytes(c("_middle") + c("_carries") + c("_name"), F.lit(FINGERPRINT_BYTES)))
    none = {"path": "string", "sha256": "string", "size": "bigint", "window": "bigint", "rows": "bigint"}
    return judged.select(
        "shard", "offset", "at", "kind", (~c("own")).alias("plain"), due.alias("due"),
        F.when(sent, c("_topic_text")).alias("topic"),
        F.when(sent & (c("_name") > 0), text).alias("name"),
        F.when(sent, c("_expires")).alias("expires"), F.when(changed, c("_due")).alias("first_due"),
        F.when(changed, c("_first_offset")).alias("first_offset"),
        F.when(changed, c("_first_row")).alias("first_row"),
        *(F.lit(None).cast(kind).alias(name) for name, kind in none.items()),
        F.lit(False).alias("disputed"), F.when(changed & (c("_tag_bytes") > 0), c("_tag")).alias("tag"), "content",
        F.when(sent, metadata_hash(c("_key"), c("_labels"), _bytes(c("_middle"), c("_carries")))).alias("metadata"),
        F.when(sent & (c("_name") > 0), fingerprint).alias("fingerprint"),
        "said",
    )  # fmt: skip


def _parts_of(whole: str) -> dict[str, Column]:
    """The small fields that were read as one number."""
    parts = ((name, low, (1 << bits) - 1) for name, of, low, bits in _PARTS if of == whole)
    return {name: F.shiftright(whole, low).bitwiseAND(F.lit(mask)) for name, low, mask in parts}


def _bytes(at: Column | int, size: Column) -> Column:
    """The `size` bytes of the envelope from byte `at`."""
    first = (F.lit(at) if isinstance(at, int) else at) + 1
    return F.substring("envelope", first.cast("int"), size.cast("int"))


def _is_topic(column: str = "_topic_text") -> Column:
    text = F.col(column)
    ours = text.startswith("duemq.") | text.startswith("__") | text.isin(".", "..")
    return text.rlike(_TOPIC) & ~ours


def _are_headers(start: Column) -> Column:
    """Whether the headers from byte `start` have the number and size in the envelope, and names in UTF-8."""
    count, size = F.col("_count"), F.col("_headers")

    def after(at: Column, _: Column) -> Column:
        """The end of the header at byte `at`; null if it is invalid."""
        head = F.hex(_bytes(at, F.lit(6)))
        name_bytes, value_bytes = number(head, 0, 2), number(head, 2, 4)
        text = F.is_valid_utf8(_bytes(at + 6, name_bytes).cast("string"))
        return F.when((F.length(head) == 12) & text, at + 6 + name_bytes + value_bytes)

    walked = F.aggregate(F.sequence(F.lit(1), count.cast("int")), start.cast("bigint"), after) == start + size
    return F.when(count == 0, size == 0).when(count > MAX_HEADERS, F.lit(False)).otherwise(
        F.coalesce(walked, F.lit(False))
    )  # fmt: skip
