"""Commands below what was applied, and the ledger's answers to them.

Everything but a schedule without a name has an answer. What each kind of command can be answered is a table here; which
of these answers is right for a message is decided in `changes.decided`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.model.log.ledger import Answer
from duemq.pipeline.audit.violations import listed

_OF_CHANGES: Final = (
    Answer.OK, Answer.DELIVERED, Answer.CANCELLED_BEFORE, Answer.UNKNOWN, Answer.DEAD, Answer.REPEATED,
    Answer.CHANGED_BEFORE,
)  # fmt: skip
_OF_THE_DEAD: Final = (*_OF_CHANGES, Answer.NOT_DEAD, Answer.PURGED)
POSSIBLE: Final[Mapping[str, tuple[Answer, ...]]] = {
    "schedule": (Answer.ACCEPTED, Answer.DUPLICATE, Answer.CONFLICT),
    "cancel": _OF_CHANGES, "move": (*_OF_CHANGES, Answer.EXHAUSTED), "deliver_now": (*_OF_CHANGES, Answer.EXHAUSTED),
    "purge": _OF_THE_DEAD, "redrive": (*_OF_THE_DEAD, Answer.EXHAUSTED),
    "import": (Answer.FILE_PENDING, Answer.FILE_DUPLICATE),
    "malformed": (),
}  # fmt: skip
"""The answers of each kind of command beside MALFORMED. A schedule without a name has no answer."""
RULES: dict[str, str] = {
    "unanswered": "answer IS NULL",
    "refused": "kind <> 'malformed' AND answer = :malformed AND NOT elsewhere AND NOT doubtful",
    "false_answer": "answer <> :malformed AND (NOT possible OR bad)",
    "two_answers": "answers > 1",
    "no_command": "no_command",
    "no_original": "answer = :file_duplicate AND original IS NULL AND whole",
    "no_holder": "by_name AND holder IS NULL AND answer <> :unknown AND answer <> :malformed AND possible AND whole",
}
"""Conditions on a command and its answer. `elsewhere`: a plain client has sent it to a partition that its name or file
does not belong to. `doubtful`: it names an id of which only who has the cluster's secret knows whether it is
genuine, or versions of the server judge its time in different ways."""


def verdicts(commands: DataFrame, answers: DataFrame, changes: DataFrame, windows: DataFrame, shards: int) -> DataFrame:
    """The commands that need an answer, and those that have one that they need not: `shard`, `offset`, `kind`, `name`,
    `plain`, `answer`, and what `RULES` are about."""
    applied = F.broadcast(windows.select("shard", "known_from", "applied", "whole"))
    within = (F.col("offset") >= F.col("known_from")) & (F.col("offset") < F.col("applied"))
    inside = commands.join(applied, "shard").where(within)
    needs = inside.where("kind <> 'schedule' OR name IS NOT NULL")
    answer_counts = answers.groupBy("shard", "offset").agg(
        F.max("answer").alias("answer"), F.count("*").alias("answers")
    )
    narrow = ("shard", "offset", "kind", "name", "plain", "sha256", "first_offset", "whole", "disputed")
    answered = needs.select(*narrow).join(answer_counts, ["shard", "offset"], "left")
    # The others are few: answers to schedules without a name, and to nothing at all.
    others = answer_counts.join(needs.select("shard", "offset"), ["shard", "offset"], "left_anti").join(
        applied, "shard"
    )
    strays = others.where(within).drop("known_from", "applied", "whole")
    unnamed = strays.join(inside.select(*narrow), ["shard", "offset"], "left")
    kinds = answered.withColumn("strange", F.lit(False)).unionByName(unnamed.withColumn("strange", F.lit(True)))
    first = commands.where("kind = 'import'").join(
        answers.where(F.col("answer") == int(Answer.FILE_PENDING)).select("shard", "offset"), ["shard", "offset"]
    )
    originals = first.groupBy("shard", "sha256").agg(F.min("offset").alias("original"))
    holders = changes.where("NOT by_id").select(
        "shard", F.col("command").alias("offset"), F.col("offset").alias("holder")
    )
    whole = kinds.join(originals, ["shard", "sha256"], "left").join(holders, ["shard", "offset"], "left")
    possible = reduce(
        lambda cases, one: cases.when((F.col("kind") == one[0]) & ~F.col("strange"), _is_one_of(one[1])),
        list(POSSIBLE.items())[1:],
        F.when((F.col("kind") == "schedule") & ~F.col("strange"), _is_one_of(POSSIBLE["schedule"])),
    )
    looks_like_an_id = F.col("first_offset").isNotNull() | F.col("name").rlike("^n:[A-Za-z0-9_-]{32}$")
    return whole.withColumns({
        "possible": F.coalesce(possible.otherwise(False), F.lit(False)),
        "bad": F.coalesce(F.col("kind") == "malformed", F.lit(False)),
        "elsewhere": F.col("plain") & (is_elsewhere("name", shards) | _is_elsewhere_file(shards)),
        "doubtful": F.col("plain")
        & (
            F.coalesce(F.col("disputed"), F.lit(False))
            | (F.col("kind").isin("cancel", "move") & F.coalesce(looks_like_an_id, F.lit(False)))
        ),
        "by_name": F.col("kind").isin("cancel", "move") & F.col("first_offset").isNull(),
        "no_command": F.col("kind").isNull(),
    })  # fmt: skip


def violations(verdicts: DataFrame) -> DataFrame:
    """Rows of `VIOLATIONS`: `unanswered`, `refused`, `false_answer` and `ledger`."""
    numbers = {one.name.lower(): str(int(one)) for one in Answer}
    name = F.element_at(F.array(*(F.lit(one.name.lower()) for one in Answer)), F.col("answer") + 1)
    about = F.concat(F.lit("command "), "offset", F.lit(", a "), "kind")
    sentence = F.concat(about, F.lit(", was answered "), name)

    def rule(name: str) -> Column:
        text = RULES[name]
        for word in ("malformed", "file_duplicate", "unknown"):
            text = text.replace(f":{word}", numbers[word])
        return F.expr(text)

    has_command = ~F.col("no_command")
    # One pass over the verdicts, each of which may break several rules.
    broken = (
        (rule("unanswered"), "unanswered", F.concat(about, F.lit(", has no answer"))),
        (rule("refused"), "refused", sentence),
        (rule("false_answer") & has_command, "false_answer", sentence),
        (rule("no_original"), "false_answer", F.concat(sentence, F.lit(", and no file of this content was wanted"))),
        (rule("no_holder"), "false_answer", F.concat(sentence, F.lit(", and no message has its name"))),
        (rule("two_answers"), "ledger", F.concat(about, F.lit(", has more than one answer"))),
        (rule("no_command"), "ledger", F.concat(F.lit("an answer to offset "), "offset", F.lit(", no command"))),
    )
    each = (F.when(when, F.struct(F.lit(kind).alias("kind"), text.alias("detail"))) for when, kind, text in broken)
    rows = verdicts.select("*", F.explode(F.array_compact(F.array(*each))).alias("broken"))
    return listed(rows, F.col("broken.kind"), F.col("broken.detail"))


def doubtful(verdicts: DataFrame) -> DataFrame:
    """The commands of which it cannot be known whether they were refused rightly."""
    return verdicts.where(F.col("doubtful") & (F.col("answer") == int(Answer.MALFORMED)))


def _is_one_of(answers: tuple[Answer, ...]) -> Column:
    return F.col("answer").isin(*map(int, (*answers, Answer.MALFORMED)))


def is_elsewhere(name: str, shards: int) -> Column:
    """Whether a plain client's name (with its prefix) belongs to another partition. False without a name."""
    return F.coalesce(F.crc32(F.col(name).cast("binary")) % shards != F.col("shard"), F.lit(False))


def _is_elsewhere_file(shards: int) -> Column:
    number = F.conv(F.substring("sha256", 1, 8), 16, 10).cast("bigint")
    return F.coalesce(number % shards != F.col("shard"), F.lit(False))
