"""Mass cancel and mass move: the rows of a table with an answer for each.

The commands are sent when the answers are computed. Computed twice, they are sent twice, which changes nothing: the
answers are the same as long as no message comes due in between.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from duemq.pipeline.errors import BadInput
from duemq.pipeline.instants import A_TIME, epoch_ms
from duemq.pipeline.mass.asking import ANSWERS_DDL, Server, cancelling, moving
from duemq.pipeline.mass.slots import Slots
from duemq.pipeline.mass.targets import TARGET, Targets

STATUSES: Final = (
    "cancelled", "moved", "already_delivered", "already_cancelled", "already_dead", "unknown", "pending", "refused",
)  # fmt: skip
ADDED: Final = ("status", "at_ms", "detail")
CONNECTIONS: Final = 8
_TASKS: Final = 32  # for each connection: a billion ids take each of them some 15 minutes
_DUE: Final = "__duemq_due"


def mass_cancel(rows: DataFrame, targets: Targets, server: Server, connections: int = CONNECTIONS) -> DataFrame:
    """The rows and what became of each: `status`, `at_ms` and `detail`.

    `status`: cancelled (now or before), already_delivered, already_dead, unknown, or pending (not known in time: ask
    again); `at_ms`: when it ended (epoch ms). Each message is asked about once, however many rows name it, by at most
    `connections` requests at the same time from each machine of the cluster. Raises BadInput; a job in which the server
    did not answer fails with `Unavailable`.
    """
    meant = _meant(rows, targets)
    asked = in_order(meant.where(F.col(TARGET).isNotNull()).select(F.col(TARGET).alias("id")).distinct(), connections)
    return _joined(meant, asked.mapInArrow(cancelling(server, _slots(server, connections)), ANSWERS_DDL), targets)


def mass_move(
    rows: DataFrame, targets: Targets, server: Server, to: str, by_ms: int = 0, connections: int = CONNECTIONS
) -> DataFrame:
    """Move messages to the time that the SQL expression `to` gives of their row (see `epoch_ms`), shifted by `by_ms`.

    Answers as `mass_cancel`: `status` moved with the new due time as `at_ms`, already_cancelled with the time of the
    cancel, or refused with the reason: no time, or a message that is named with several times. What is due in the past
    is delivered at once.
    """
    meant = _meant(rows, targets)
    kind = meant.select(F.expr(to)).schema[0].dataType
    if (due := epoch_ms(F.expr(to), kind)) is None:
        raise BadInput(f"{to} must be {A_TIME}, not {kind.simpleString()}")
    meant = meant.withColumn(_DUE, due + F.lit(by_ms).cast("bigint"))
    wanted = meant.where(F.col(TARGET).isNotNull()).select(F.col(TARGET).alias("id"), _DUE)
    each = wanted.groupBy("id").agg(
        F.min(_DUE).alias("due_ms"), F.max(_DUE).alias("last"), F.max(F.col(_DUE).isNull()).alias("none")
    )
    asked = in_order(each.select("id", "due_ms", _why_refused(to).alias("refused")), connections)
    return _joined(
        meant.drop(_DUE), asked.mapInArrow(moving(server, _slots(server, connections)), ANSWERS_DDL), targets
    )


def in_order(asked: DataFrame, connections: int) -> DataFrame:
    """Ids that are alike are of messages due at nearly the same time: asked about in one request they are found in a
    delay file by reading a few of its row groups, in place of one for each message. Tasks are many, for one that fails
    begins anew."""
    return asked.repartitionByRange(_TASKS * connections, "id").sortWithinPartitions("id")


def _slots(server: Server, connections: int) -> Slots:
    return Slots(server.url or "", connections)


def _why_refused(to: str) -> Column:
    none = F.lit(f"{to} gives no time here, or one without a zone")
    several = F.concat(
        F.lit("rows name this message with several times, from "), F.col("due_ms"), F.lit(" to "), "last"
    )
    return F.when(F.col("none"), none).when(F.col("due_ms") < F.col("last"), several)


def _meant(rows: DataFrame, targets: Targets) -> DataFrame:
    if taken := [name for name in ADDED if name in rows.columns]:
        raise BadInput(f"column {taken[0]}: the answers have one of that name; rename that of the table")
    return targets.of(rows)


def _joined(meant: DataFrame, answers: DataFrame, targets: Targets) -> DataFrame:
    told = answers.withColumnRenamed("id", TARGET)
    none = F.lit("no id" if targets.ids is None else "no id for this key")
    no_id = F.col(TARGET).isNull()
    return (
        meant.join(told, TARGET, "left")
        .withColumns({"status": F.when(no_id, "unknown").otherwise(F.col("status")),
                      "detail": F.when(no_id, none).otherwise(F.col("detail"))})
        .drop(TARGET)
    )  # fmt: skip
