"""Mass cancel and mass move: the rows of a table with an answer for each.

The commands are sent when the answers are computed. Computed twice, they are sent twice, which changes nothing: the
answers are the same as long as no message comes due in between.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from duemq.pipeline.bulk_change.messages import TARGET, Targets
from duemq.pipeline.bulk_change.requests import ANSWERS_DDL, ChangeClient, cancelling, moving
from duemq.pipeline.bulk_change.slots import Slots
from duemq.pipeline.columns.instants import check_zone, need_time, shown
from duemq.pipeline.errors import BadInput

STATUSES: Final = (
    "cancelled", "moved", "already_delivered", "already_cancelled", "already_dead", "unknown", "pending", "refused",
)  # fmt: skip
ADDED: Final = ("status", "at_ms", "detail")
CONNECTIONS: Final = 8
_TASKS: Final = 32  # for each connection: a billion ids take each of them some 15 minutes
_DUE: Final = "__duemq_due"
_WHY_NOT: Final = "__duemq_why_not"


def mass_cancel(rows: DataFrame, targets: Targets, server: ChangeClient, connections: int = CONNECTIONS) -> DataFrame:
    """The rows and what became of each: `status`, `at_ms` and `detail`.

    `status`: cancelled (now or before), already_delivered, already_dead, unknown, or pending (not known in time: ask
    again); `at_ms`: when it ended (epoch ms). Each message is asked about once, however many rows name it, by at most
    `connections` requests at the same time from each machine of the cluster. Raises BadInput; a job in which the server
    did not answer fails with `Unavailable`.
    """
    target_rows = _with_targets(rows, targets)
    messages = in_order(
        target_rows.where(F.col(TARGET).isNotNull()).select(F.col(TARGET).alias("id")).distinct(), connections
    )
    return _joined(
        target_rows, messages.mapInArrow(cancelling(server, _slots(server, connections)), ANSWERS_DDL), targets
    )


def mass_move(
    rows: DataFrame,
    targets: Targets,
    server: ChangeClient,
    to: str,
    by_ms: int = 0,
    connections: int = CONNECTIONS,
    zone: str | None = None,
) -> DataFrame:
    """Move messages to the time that the SQL expression `to` gives of their row, shifted by `by_ms`. `zone` is that of
    times without one (see `read_time`).

    Answers as `mass_cancel`: `status` moved with the new due time as `at_ms`, already_cancelled with the time of the
    cancel, or refused with the reason: no time, or a message that is named with several times. What is due in the past
    is delivered at once.
    """
    target_rows = _with_targets(rows, targets)
    messages = in_order(new_times(target_rows, to, by_ms, zone), connections)
    return _joined(target_rows, messages.mapInArrow(moving(server, _slots(server, connections)), ANSWERS_DDL), targets)


def new_times(target_rows: DataFrame, to: str, by_ms: int = 0, zone: str | None = None) -> DataFrame:
    """One row for each message that rows with a `TARGET` name: `id`, `due_ms` and `refused`, which is why it has no new
    time, or null. See `mass_move`. Raises BadInput."""
    if zone is not None:
        check_zone(target_rows.sparkSession, zone)
    value = F.expr(to)
    time = need_time(value, target_rows.select(value).schema[0].dataType, to, zone=zone)
    due = F.try_add(time.ms, F.lit(by_ms).cast("bigint"))
    why_not = (
        F.when(value.isNull(), f"{to} is null: there is no time to move to")
        .when(time.problem.isNotNull(), F.concat(F.lit(f"{to}: '"), shown(value), F.lit("' "), time.problem))
        .when(due.isNull(), F.concat(F.lit(f"{to}: '"), shown(value), F.lit(f"' and {by_ms} ms are out of range")))
    )
    times = target_rows.where(F.col(TARGET).isNotNull()).select(
        F.col(TARGET).alias("id"), due.alias(_DUE), why_not.alias(_WHY_NOT)
    )
    each = times.groupBy("id").agg(
        F.min(_DUE).alias("due_ms"), F.max(_DUE).alias("last"), F.min(_WHY_NOT).alias(_WHY_NOT)
    )
    several = F.concat(
        F.lit("rows name this message with several times, from "), F.col("due_ms"), F.lit(" to "), "last"
    )
    refused = F.coalesce(F.col(_WHY_NOT), F.when(F.col("due_ms") < F.col("last"), several))
    return each.select("id", "due_ms", refused.alias("refused"))


def in_order(messages: DataFrame, connections: int) -> DataFrame:
    """Ids that are alike are of messages due at nearly the same time: asked about in one request they are found in a
    delay file by reading a few of its row groups, in place of one for each message. Tasks are many, for one that fails
    begins anew."""
    return messages.repartitionByRange(_TASKS * connections, "id").sortWithinPartitions("id")


def _slots(server: ChangeClient, connections: int) -> Slots:
    return Slots(server.url or "", connections)


def _with_targets(rows: DataFrame, targets: Targets) -> DataFrame:
    if clashes := [name for name in ADDED if name in rows.columns]:
        raise BadInput(f"column {clashes[0]}: the answers have one of that name; rename that of the table")
    return targets.of(rows)


def _joined(target_rows: DataFrame, answers: DataFrame, targets: Targets) -> DataFrame:
    by_target = answers.withColumnRenamed("id", TARGET)
    none = F.lit("no id" if targets.ids is None else "no id for this key")
    no_id = F.col(TARGET).isNull()
    return (
        target_rows.join(by_target, TARGET, "left")
        .withColumns({"status": F.when(no_id, "unknown").otherwise(F.col("status")),
                      "detail": F.when(no_id, none).otherwise(F.col("detail"))})
        .drop(TARGET)
    )  # fmt: skip
