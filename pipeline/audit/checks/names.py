"""Names: whether two messages had one at the same time, and what the second one of a name was told.

A second one is a repeat of the first where both have the same content, and a conflict where not: what that means is in
the fingerprint of its command (`logs.commands`). Those of the API and those of plain clients are never equal.

A name belongs to its message until the history of that is over (docs/adr/0024): until a ledger entry says so by its
horizons, which the next entries go by.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from duemq.model.log.ledger import Answer
from duemq.pipeline.audit.violations import id_text, listed

RULES: dict[str, str] = {
    "name_twice": "answer = :accepted AND earlier IS NOT NULL AND horizon_before IS NOT NULL AND NOT forgotten",
    "no_original": "answer <> :accepted AND earlier IS NULL AND whole",
    "no_repeat": "answer = :duplicate AND earlier IS NOT NULL AND NOT same",
    "no_conflict": "answer = :conflict AND earlier IS NOT NULL AND same",
}


def claims(
    commands: DataFrame, answers: DataFrame, summary: DataFrame, cycles: DataFrame, windows: DataFrame
) -> DataFrame:
    """The schedules under a name that another one was sent under before, and repeats without a first one: `shard`,
    `offset`, `first_due`, `name`, `answer`, `earlier` (the offset of the message that had the name), `same` (whether it
    has the same content; null where that is not known), `forgotten`.

    `summary`: `changes.summary`; `cycles`: `changes.cycles`; `windows`: with `whole`.
    """
    codes = tuple(map(int, (Answer.ACCEPTED, Answer.DUPLICATE, Answer.CONFLICT)))
    named = commands.where("kind = 'schedule' AND name IS NOT NULL").select(
        "shard", "offset", "due", "name", "plain", "fingerprint"
    )
    answered = named.join(answers, ["shard", "offset"]).where(F.col("answer").isin(*codes))
    of_name = Window.partitionBy("shard", "name")
    before = of_name.orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    accepted = F.when(F.col("answer") == int(Answer.ACCEPTED), F.struct("offset", "due", "plain", "fingerprint"))
    repeats = answered.withColumn("first", F.last(accepted, ignorenulls=True).over(before)).where(
        F.col("first").isNotNull() | (F.col("answer") != int(Answer.ACCEPTED))
    )
    state = summary.where("row = 0").select(
        "shard", F.col("offset").alias("earlier"), "place_due", "place_offset", "cancels", "is_dead", "ended_at"
    )
    same = (F.col("plain") == F.col("first.plain")) & (F.col("fingerprint") == F.col("first.fingerprint"))
    with_state = repeats.withColumns(
        {"earlier": F.col("first.offset"), "earlier_due": F.col("first.due"), "same": same}
    ).join(state, ["shard", "earlier"], "left")
    with_cycle = with_state.join(cycles, ["shard", "n"], "left").join(
        F.broadcast(windows.select("shard", "whole")), "shard"
    )  # fmt: skip
    ended = F.coalesce((F.col("cancels") > 0) | F.col("is_dead"), F.lit(False))
    key_due = F.coalesce("place_due", "earlier_due")
    key = F.struct(key_due, F.coalesce("place_offset", "earlier"), F.lit(0).cast("bigint"))
    over = ended | (key <= F.col("cursor_before"))
    forgotten = ((key_due < F.col("horizon_before")) & over) | (
        ended & (F.col("ended_at") < F.col("end_horizon_before"))
    )
    return with_cycle.select(
        "shard", "offset", F.col("due").alias("first_due"), "name", "answer", "earlier", "horizon_before", "whole",
        "same", F.coalesce(forgotten, F.lit(False)).alias("forgotten"),
    )  # fmt: skip


def violations(claims: DataFrame) -> DataFrame:
    """Rows of `VIOLATIONS`: `name_twice`, and `false_answer` for a repeat of nothing, a repeat that is none, and a
    conflict that is none."""
    rules = dict(RULES)
    for answer in (Answer.ACCEPTED, Answer.DUPLICATE, Answer.CONFLICT):
        word = f":{answer.name.lower()}"
        rules = {kind: text.replace(word, str(int(answer))) for kind, text in rules.items()}
    rows = claims.withColumn("row", F.lit(0)).withColumn("id", id_text(F.col("first_due"), F.lit(None).cast("bigint")))
    twice = F.concat(F.lit("message "), "earlier", F.lit(" of this shard has the name "), "name")
    none = F.concat(F.lit("answered as a repeat, and no message has the name "), "name")
    first = F.concat(F.lit(" message "), "earlier", F.lit(", which has the name "), "name")
    other = F.concat(F.lit("answered as a repeat of"), first, F.lit(" and another content"))
    repeat = F.concat(F.lit("answered as another one than"), first, F.lit(" and the same content"))
    return (
        listed(rows.where(rules["name_twice"]), "name_twice", twice)
        .unionByName(listed(rows.where(rules["no_original"]), "false_answer", none))
        .unionByName(listed(rows.where(rules["no_repeat"]), "false_answer", other))
        .unionByName(listed(rows.where(rules["no_conflict"]), "false_answer", repeat))
    )
