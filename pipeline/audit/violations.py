"""Where the logs contradict themselves: one row per message and kind of violation."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.pipeline.audit.fates import PLACE_BITS

KINDS: Final = {
    "lost": "delivered by the ledger, and its topic has no record",
    "twice": "more than one record",
    "early": "a record before it was due",
    "after_cancel": "a record, although a cancel was won",
    "after_death": "a record, although it ended in the dead letters",
    "unrecorded": "a record, although the ledger says it was pending still",
    "unknown_id": "a record with an id that was never issued",
    "wrong_topic": "a record in another topic than it was sent to",
    "altered": "a record with another payload than was sent",
    "lost_letter": "dead by the ledger, and the dead letters have no record",
    "stray_letter": "more dead letters than the ledger has",
    "false_answer": "an answer that does not fit what became of it",
    "ledger": "entries that do not fit together, or do not fit the commands",
    "clock_ahead": "a node's clock ahead of the brokers': what was due by it came before its time",
}
"""What each kind means. `ledger` and `clock_ahead` are about a shard, all others about a message."""


_COLUMNS: Final = (
    "shard", "offset", "row", "part", "fate", "topic", "accepts", "first_due", "asked", "asked_at", "accepted_at",
    "passed", "records", "delivered_at", "late", "letters", "cancels", "moves", "buried", "redriven", "is_dead",
    "least_asked", "least_mac", "least_place", "most_place",
)  # fmt: skip


def judged(fates: DataFrame, letters_from: int | None, tolerance_ms: int = 0) -> DataFrame:
    """`fates.fates` with `violated`: a bit for each of `KINDS`, in their order. The table that is kept of each message.

    `letters_from`: dead letters up to this time (epoch ms) may have been dropped; None where they were not read.
    `tolerance_ms`: how much earlier than due a record may be: brokers' and nodes' clocks differ.
    """
    c = F.col
    recorded, mine = c("records") > 0, c("accepts") > 0
    of_range = (c("part") == "range") & mine
    by_then = c("delivered_at") + tolerance_ms < c("ended_at")
    before = c("delivered_at") + tolerance_ms < c("asked")
    waiting = c("fate").isin("pending", "moved")
    one_id = (c("least_mac") == c("most_mac")) & (c("least_asked") == c("most_asked"))
    issued = (c("least_asked") == c("first_due")) & (c("most_asked") == c("first_due")) & one_id
    unknown = (
        ((c("part") == "range") & ~mine)
        | (c("part") == "nowhere")
        | ((c("part") == "later") & (c("offset") >= c("buffer_end")))
        | (of_range & ~c("counted") & ~issued)
        | ~one_id
    )
    buried_from = F.lit(letters_from).cast("bigint")
    letters_there = F.coalesce(F.greatest("asked", "accepted_at") > buried_from, F.lit(False))
    told = (
        ((c("told_delivered") > 0) & ~c("fate").isin("delivered", "lost", "unproven"))
        | ((c("told_cancelled") > 0) & (c("cancels") == 0))
        | ((c("told_dead") > 0) & (c("buried") == 0))
        | (c("cancels") > 1)
    )
    known = ~unknown & (c("part") != "nowhere")
    found: dict[str, Column] = {
        "lost": c("fate") == "lost",
        "twice": (c("records") > 1) & one_id & (c("part") != "nowhere"),
        "early": recorded & of_range & before & (c("fate").isin("delivered") | (waiting & by_then)),
        "after_cancel": recorded & (c("cancels") > 0),
        "after_death": recorded & (c("fate") == "dead") & by_then,
        "unrecorded": recorded & known & by_then & mine & ~before & (waiting | (c("part") == "later")),
        "unknown_id": (recorded & unknown) | ((c("letters") > 0) & (c("part") == "range") & ~mine),
        "wrong_topic": recorded & mine & ((c("least_topic") != c("topic_hash")) | (c("most_topic") != c("topic_hash"))),
        "altered": recorded & mine & ((c("least_content") != c("content")) | (c("most_content") != c("content"))),
        "lost_letter": of_range & (c("letters") < c("buried")) & letters_there,
        "stray_letter": of_range & (c("letters") > c("buried")) & (c("letter_at") < c("ended_at")),
        "false_answer": of_range & told,
    }  # fmt: skip
    bits = [F.when(found[kind], F.lit(1 << at)).otherwise(0) for at, kind in enumerate(KINDS) if kind in found]
    return fates.select(*_COLUMNS, reduce(add, bits).alias("violated"))


def violations(judged: DataFrame) -> DataFrame:
    """A row for each kind of violation of each message: `kind`, `shard`, `id`, `topic`, `asked`, `delivered_at`,
    `records`, `detail`, `offset`, `row`."""
    kinds = F.array_compact(
        F.array(*(
            F.when(F.col("violated").bitwiseAND(F.lit(1 << at)) != 0, F.lit(kind)) for at, kind in enumerate(KINDS)
        ))
    )  # fmt: skip
    return (
        judged.where("violated != 0")
        .withColumn("kind", F.explode(kinds))
        .select(
            "kind", "shard", id_of().alias("id"), "topic", "asked", "delivered_at", "records",
            _detail().alias("detail"), "offset", "row",
        )
    )  # fmt: skip


def id_of() -> Column:
    """The id of a message as a record shows it. Without a record only its first 24 characters are known; `…` stands for
    the others, which are made with the cluster's secret."""

    def hexed(column: Column | str, digits: int) -> Column:
        return F.lpad(F.hex(column), digits, "0")

    body = F.concat(
        hexed("shard", 4), hexed(F.coalesce("least_asked", "first_due"), 12), hexed("offset", 12), hexed("row", 8)
    )
    whole = F.when(F.col("least_mac").isNull(), F.concat(_text(body), F.lit("…"))).otherwise(
        _text(F.concat(body, hexed("least_mac", 12)))
    )
    return F.when(F.col("shard") >= 0, whole)


def _text(digits: Column) -> Column:
    return F.translate(F.base64(F.unhex(digits)), "+/", "-_")


def _detail() -> Column:
    """In words: where its records are, and what is known of it."""

    def place(of: str) -> Column:
        partition = F.shiftright(F.col(of), PLACE_BITS)
        return F.concat(partition, F.lit("@"), F.col(of) - F.shiftleft(partition, PLACE_BITS))

    places = F.when(F.col("records") == 0, F.lit("no record")).when(
        F.col("records") == 1, F.concat(F.lit("record "), place("least_place"))
    ).otherwise(
        F.concat("records", F.lit(" records, "), place("least_place"), F.lit(" and "), place("most_place"))
    )  # fmt: skip
    by = F.when(F.col("late") < 0, F.concat(F.lit(", "), -F.col("late"), F.lit(" ms early"))).otherwise(F.lit(""))
    said = F.concat_ws(
        ", ",
        F.when(F.col("cancels") > 0, F.lit("cancel won")),
        F.when(F.col("buried") > 0, F.concat(F.lit("buried "), "buried", F.lit("x, "), "letters", F.lit(" letters"))),
        F.when(F.col("moves") > 0, F.concat(F.lit("moved "), "moves", F.lit("x"))),
        F.when(F.col("fate") != "none", F.concat(F.lit("by the ledger "), _by_ledger())),
    )
    return F.concat_ws(", ", F.concat(places, by), F.when(said != "", said))


def _by_ledger() -> Column:
    return F.when(F.col("fate").isin("lost", "unproven"), F.lit("delivered")).otherwise(F.col("fate"))
