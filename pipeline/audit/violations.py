"""Where the logs contradict themselves: one row per message and kind of violation.

The rules are text, so that they can be read in one piece, and so that a test can change each of them and see that
something is found no more, or too much.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import reduce
from operator import add
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.pipeline.audit.outcomes import PLACE_BITS

KINDS: Final = {
    "lost": "delivered by the ledger, and its topic has no record",
    "missing": "an id that a sender holds, and that is in no log",
    "twice": "more than one record",
    "name_twice": "accepted under a name that another message had, and that was not forgotten",
    "early": "a record before it was due",
    "overdue": "pending, or not applied yet, although it was due or sent long before the end of the range",
    "after_cancel": "a record, although a cancel was won",
    "after_death": "a record, although it ended in the dead letters",
    "unrecorded": "a record, although the ledger says it was pending still",
    "unknown_id": "a record with an id that was never issued",
    "wrong_topic": "a record in another topic than it was sent to",
    "wrong_partition": "a record in another partition than that of its key",
    "out_of_order": "a record behind one of its key that should have come later",
    "altered": "a record with another payload than was sent",
    "altered_headers": "a record with another key, other labels or other headers than were sent",
    "wrong_due": "a record that shows another due time in duemq-due",
    "wrong_attempt": "a record that shows another number of attempts in duemq-attempt",
    "lost_letter": "dead or refused by the ledger, and the dead letters have no record",
    "stray_letter": "more dead letters than the ledger has",
    "altered_letter": "a dead letter with another payload, key, headers, topic or reason than the message",
    "refused": "a command that is right, and was called malformed",
    "unanswered": "a command that was applied, and that the ledger has no answer to",
    "false_answer": "an answer that does not fit what was said before it",
    "ledger": "entries that do not fit together, or do not fit the commands",
    "clock_ahead": "a node's clock ahead of the brokers': what was due by it came before its time",
    "lost_commands": "accepted commands that the log dropped before any node had read them, as the ledger says",
    "after_expiry": "a record, although it had expired",
    "wrong_death": "dead as expired, although it had no expiry, or that was yet to come",
    "wrong_deferral": "deferred for longer than any pause between attempts, or with another number of attempts",
}
"""What each kind means. `ledger`, `clock_ahead` and `lost_commands` are about a shard, `refused`, `unanswered` and some
of `false_answer` about a command, all others about a message."""
VIOLATIONS: Final = (
    "kind string, shard int, id string, topic string, asked bigint, delivered_at bigint, records bigint, "
    "detail string, offset bigint, row bigint"
)
OVERDUE_MS: Final = 600_000
"""The time after which a due message is overdue. Less is what a shard may take to work off what an outage has left."""
MARGIN_MS: Final = 60_000
"""How far a record's time may be from its cycle's: a transaction takes time, and brokers have clocks."""

CONDITIONS: dict[str, str] = {
    "recorded": "records > 0",
    "mine": "accepts > 0",
    "of_range": "part = 'range' AND mine",
    "by_then": "delivered_at + :tolerance < ended_at",
    "before": "delivered_at + :tolerance < asked",
    "waiting": "outcome IN ('pending', 'moved')",
    "one_id": "least_mac = most_mac AND least_id_due = most_id_due",
    "issued": "one_id AND least_id_due = first_due",
    "forged": "of_range AND NOT counted AND NOT issued",
    "never_sent": "part = 'nowhere' OR (part = 'range' AND NOT mine) OR (part = 'later' AND offset >= buffer_end)",
    "unknown": "never_sent OR forged OR NOT one_id",
    "letters_there": "greatest(asked, accepted_at) > :letters_from",
    "there_then": "imported = 0 OR unknown_at > accepted_at",
    "stands": "moves = 0 AND redriven = 0",
}
"""Conditions on a row of `outcomes.outcomes`. Each may use those before it by their names."""
RULES: dict[str, str] = {
    "lost": "outcome = 'lost'",
    "twice": "records > 1 AND one_id AND part <> 'nowhere'",
    "early": "recorded AND of_range AND before AND (outcome = 'delivered' OR (waiting AND by_then))",
    "overdue": "NOT recorded AND ((of_range AND waiting AND key_due + :overdue < seen_at) "
    "OR (part = 'later' AND mine AND accepted_at + :overdue < seen_at))",
    "after_cancel": "recorded AND cancels > 0",
    "after_death": "recorded AND outcome = 'dead' AND by_then",
    "unrecorded": "recorded AND mine AND by_then AND NOT unknown AND NOT before AND (waiting OR part = 'later')",
    "unknown_id": "(recorded AND unknown) OR (letters > 0 AND part = 'range' AND NOT mine)",
    "wrong_topic": "recorded AND mine AND redriven = 0 AND NOT (least_topic = topic_hash AND most_topic = topic_hash)",
    "altered": "recorded AND mine AND NOT (least_content = content AND most_content = content)",
    "altered_headers": "recorded AND mine AND NOT (least_metadata = metadata AND most_metadata = metadata)",
    "wrong_due": "outcome = 'delivered' AND NOT counted AND NOT (least_shown = coalesce(shown, first_due) "
    "AND most_shown = coalesce(shown, first_due))",
    "wrong_attempt": "outcome = 'delivered' AND NOT (least_attempt = failures + 1 AND most_attempt = failures + 1)",
    "lost_letter": "of_range AND letters < buried AND letters_there",
    "stray_letter": "of_range AND letters > buried AND letter_at < ended_at",
    "altered_letter": "of_range AND letters > 0 AND NOT (least_letter_content = content "
    "AND most_letter_content = content AND least_letter_metadata = metadata AND most_letter_metadata = metadata "
    "AND (redriven > 0 OR (least_letter_topic = topic_hash AND most_letter_topic = topic_hash)) "
    "AND (letters <> buried OR (least_letter_reason = least_reason AND most_letter_reason = most_reason)))",
    "false_answer": "(of_range AND (untrue > 0 OR (unknown_at IS NOT NULL AND there_then))) "
    "OR (of_range AND exhausted > 0 AND expires = 0) OR (part = 'range' AND NOT mine AND claims > 0)",
    "after_expiry": "recorded AND of_range AND stands AND expires > 0 AND most_delivered_at > expires + :margin",
    "wrong_death": "of_range AND expired_at IS NOT NULL AND (expires = 0 OR (stands AND expires >= expired_at))",
    "wrong_deferral": "of_range AND wrong_deferrals > 0",
}
"""When a row is a violation of each kind. The kinds that are not here are found by `checks`. A redrive may name another
topic, so that of what was redriven topics are not judged; it and a move may change an expiry (`stands`)."""

_COLUMNS: Final = (
    "shard", "offset", "row", "part", "outcome", "topic", "accepts", "first_due", "key_due", "key_offset", "key_row",
    "asked", "asked_at", "accepted_at", "passed", "records", "delivered_at", "late", "letters", "cancels", "moves",
    "buried", "redriven", "is_dead", "untrue_command", "least_id_due", "least_mac", "least_place", "most_place",
)  # fmt: skip


def judged(outcomes: DataFrame, letters_from: int | None, tolerance_ms: int = 0) -> DataFrame:
    """`outcomes.outcomes` with `violated`: a bit for each of `KINDS`, in their order. The table that is kept of each
    message.

    `letters_from`: dead letters up to this time (epoch ms) may have been dropped; None where they were not read.
    `tolerance_ms`: how much earlier than due a record may be: brokers' and nodes' clocks differ.
    """
    values = {
        "tolerance": f"{tolerance_ms}", "overdue": f"{OVERDUE_MS}",
        "margin": f"{MARGIN_MS + tolerance_ms}",
        "letters_from": "CAST(NULL AS BIGINT)" if letters_from is None else f"{letters_from}",
    }  # fmt: skip
    rules = expanded(RULES, CONDITIONS, values)
    bits = [
        F.when(F.expr(rules[kind]), F.lit(1 << at)).otherwise(0).cast("bigint")
        for at, kind in enumerate(KINDS)
        if kind in rules
    ]
    return outcomes.select(*_COLUMNS, reduce(add, bits).alias("violated"))


def expanded(rules: Mapping[str, str], conditions: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Rules with the text of conditions in place of their names, and values in place of `:name`."""
    whole: dict[str, str] = {}

    def put_in(text: str) -> str:
        text = re.sub(r":(\w+)", lambda match: values[match[1]], text)
        return re.sub(r"\b[a-z_]+\b", lambda match: f"({whole[match[0]]})" if match[0] in whole else match[0], text)

    for name, text in conditions.items():
        whole[name] = put_in(text)
    return {kind: put_in(text) for kind, text in rules.items()}


def violations(judged: DataFrame) -> DataFrame:
    """A row for each kind of violation of each message, with the columns of `VIOLATIONS`."""
    kinds = F.array_compact(
        F.array(*(
            F.when(F.col("violated").bitwiseAND(F.lit(1 << at).cast("bigint")) != 0, F.lit(kind))
            for at, kind in enumerate(KINDS)
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
    return id_text(F.coalesce("least_id_due", "first_due"), F.col("least_mac"))


def id_text(due: Column, mac: Column) -> Column:
    """The id of the message of `shard`, `offset` and `row`, with its first due time."""

    def hexed(column: Column | str, digits: int) -> Column:
        return F.lpad(F.hex(column), digits, "0")

    body = F.concat(hexed("shard", 4), hexed(due, 12), hexed("offset", 12), hexed("row", 8))
    whole = F.when(mac.isNull(), F.concat(_text(body), F.lit("…"))).otherwise(_text(F.concat(body, hexed(mac, 12))))
    return F.when(F.col("shard") >= 0, whole)


def _text(digits: Column) -> Column:
    return F.translate(F.base64(F.unhex(digits)), "+/", "-_")


def place_text(place: Column) -> Column:
    """Partition and offset of a record as `1@42`."""
    partition = F.shiftright(place, PLACE_BITS)
    return F.concat(partition, F.lit("@"), place - F.shiftleft(partition, PLACE_BITS))


def _detail() -> Column:
    """A violation in words: where the records of its message are, and what is known of it."""
    least, most = place_text(F.col("least_place")), place_text(F.col("most_place"))
    places = F.when(F.col("records") == 0, F.lit("no record")).when(
        F.col("records") == 1, F.concat(F.lit("record "), least)
    ).otherwise(F.concat("records", F.lit(" records, "), least, F.lit(" and "), most))  # fmt: skip
    by = F.when(F.col("late") < 0, F.concat(F.lit(", "), -F.col("late"), F.lit(" ms early"))).otherwise(F.lit(""))
    false_answer = F.lit(1 << list(KINDS).index("false_answer")).cast("bigint")
    facts = F.concat_ws(
        ", ",
        F.when(F.col("cancels") > 0, F.lit("cancel won")),
        F.when(F.col("buried") > 0, F.concat(F.lit("buried "), "buried", F.lit("x, "), "letters", F.lit(" letters"))),
        F.when(F.col("moves") > 0, F.concat(F.lit("moved "), "moves", F.lit("x"))),
        F.when(F.col("outcome") != "none", F.concat(F.lit("by the ledger "), _by_ledger())),
        F.when(
            F.col("violated").bitwiseAND(false_answer) != 0,
            F.concat(F.lit("but command "), "untrue_command", F.lit(" was answered otherwise")),
        ),
    )
    return F.concat_ws(", ", F.concat(places, by), F.when(facts != "", facts))


def _by_ledger() -> Column:
    return F.when(F.col("outcome").isin("lost", "unproven"), F.lit("delivered")).otherwise(F.col("outcome"))


def listed(frame: DataFrame, kind: Column | str, detail: Column | str) -> DataFrame:
    """Rows of `VIOLATIONS`; what `frame` does not have of their columns is null, and `row` 0."""
    kind, text = (F.lit(one) if isinstance(one, str) else one for one in (kind, detail))
    values = {"kind": kind, "detail": text, "row": F.col("row") if "row" in frame.columns else F.lit(0)}
    columns = []
    for field in VIOLATIONS.split(", "):
        name, type_ = field.split()
        value = values.get(name, F.col(name) if name in frame.columns else F.lit(None))
        columns.append(value.cast(type_).alias(name))
    return frame.select(*columns)
