"""Answers decided once more: a table of what happened to a message, and of what a change of it must be told.

Mutants of the code that decides are run over the same table, and each must be found.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from duemq.model.log.ledger import Answer
from duemq.pipeline.audit import changes
from duemq.pipeline.audit.checks import names
from tests.support.spark.log_frames import frame_of
from tests.support.spark.spark_site import spark_tests

pytestmark = spark_tests

A = Answer
LAST = 9  # the entry whose answer is judged
CYCLES = (
    "shard int, n bigint, told_at bigint, applied_before bigint, horizon_before bigint, end_horizon_before bigint, "
    "cursor_before struct<cursor_due_before: bigint, cursor_offset_before: bigint, cursor_row_before: bigint>"
)
CHANGES = (
    "shard int, at bigint, command bigint, kind string, answer int, n bigint, plain boolean, by_id boolean, "
    "due bigint, first_due bigint, offset bigint, row bigint"
)
DEFERRALS = (
    "shard int, offset bigint, row bigint, position bigint, n bigint, told_at bigint, to_due bigint, to_offset bigint, "
    "to_row bigint, attempt int, reason string"
)

Step = tuple[Any, ...]
"""A change: its offset, kind, answer, entry and due time; or `put off`: position, entry and new due (None: dead)."""


class Case(NamedTuple):
    """Message 5 was due at 100. The last step is the one that is judged; `right` is None where nothing can be said."""

    what: str
    steps: tuple[Step, ...]
    right: Answer | None
    forgotten: bool = False
    cursor: tuple[int, int, int] | None = (50, 0, 0)
    applied: int = 20
    horizon: int = 0
    end_horizon: int = 0


CANCEL = (20, "cancel", A.OK, LAST, None)
DELIVERED = (100, 9, 0)
CASES = (
    Case("it waits", (CANCEL,), A.OK),
    Case("it waits, and the cursor is right before it", (CANCEL,), A.OK, cursor=(100, 4, 0)),
    Case("it was delivered", (CANCEL,), A.DELIVERED, cursor=DELIVERED),
    Case("it was delivered last", (CANCEL,), A.DELIVERED, cursor=(100, 5, 0)),
    Case("it was sent too late, in the same cycle", (CANCEL,), A.OK, cursor=DELIVERED, applied=5),
    Case("it was cancelled", ((10, "cancel", A.OK, 3, None), CANCEL), A.CANCELLED_BEFORE),
    Case("a cancel before came too late", ((10, "cancel", A.DELIVERED, 3, None), CANCEL), A.DELIVERED,
         cursor=DELIVERED),
    Case("it died", (("put off", 10, 3, None), CANCEL), A.DEAD),
    Case("it died, and is wanted again", (("put off", 10, 3, None), (20, "redrive", A.OK, LAST, 300)), A.OK),
    Case("it was wanted again", (("put off", 10, 3, None), (15, "redrive", A.OK, 5, 300), CANCEL), A.OK),
    Case("it never died", ((20, "redrive", A.NOT_DEAD, LAST, 300),), A.NOT_DEAD),
    Case("it was delivered, and is wanted again", ((20, "redrive", A.OK, LAST, 300),), A.DELIVERED, cursor=DELIVERED),
    Case("it was cancelled, and is wanted again",
         ((10, "cancel", A.OK, 3, None), (20, "redrive", A.OK, LAST, 300)), A.CANCELLED_BEFORE),
    Case("it was moved on", ((10, "move", A.OK, 3, 500), CANCEL), A.OK, cursor=(300, 0, 0)),
    Case("it was moved on, and came", ((10, "move", A.OK, 3, 500), CANCEL), A.DELIVERED, cursor=(500, 10, 0)),
    Case("a move came too late", ((10, "move", A.DELIVERED, 3, 500), CANCEL), A.DELIVERED, cursor=(300, 0, 0)),
    Case("it was asked for at once", ((10, "deliver_now", A.OK, 3, 20), CANCEL), A.DELIVERED),
    Case("it was put off", (("put off", 10, 3, 500), CANCEL), A.OK, cursor=(300, 0, 0)),
    Case("it was put off behind a move", ((10, "move", A.OK, 3, 200), ("put off", 10, 3, 500), CANCEL), A.OK,
         cursor=(300, 0, 0)),
    Case("it was put off twice", (("put off", 10, 4, 600), ("put off", 10, 3, 200), CANCEL), A.OK, cursor=(300, 0, 0)),
    Case("it was delivered long ago", (CANCEL,), A.DELIVERED, True, cursor=(200, 0, 0), horizon=101),
    Case("it was delivered, and not long ago", (CANCEL,), A.DELIVERED, False, cursor=(200, 0, 0), horizon=100),
    Case("it waits in spite of the horizon", (CANCEL,), A.OK, False, horizon=150),
    Case("it was cancelled long ago", ((10, "cancel", A.OK, 3, None), CANCEL), A.CANCELLED_BEFORE, True,
         end_horizon=31),
    Case("it was cancelled, and not long ago", ((10, "cancel", A.OK, 3, None), CANCEL), A.CANCELLED_BEFORE, False,
         end_horizon=30),
    Case("it was cancelled, and due long ago", ((10, "cancel", A.OK, 3, None), CANCEL), A.CANCELLED_BEFORE, True,
         horizon=101),
    Case("the entry before is not there", (CANCEL,), None, cursor=None),
)  # fmt: skip


def frames(spark: SparkSession) -> tuple[Any, Any, Any]:
    cycles, said, put_off = [], [], []
    for shard, case in enumerate(CASES):
        for n in range(LAST + 1):
            cursor = case.cursor if n == LAST else (0, 0, 0)
            known = cursor is not None
            cycles.append({
                "shard": shard, "n": n, "told_at": 10 * n, "applied_before": case.applied if known else None,
                "horizon_before": case.horizon, "end_horizon_before": case.end_horizon, "cursor_before": cursor,
            })  # fmt: skip
        for step in case.steps:
            if step[0] == "put off":
                _, position, n, to = step
                put_off.append({
                    "shard": shard, "offset": 5, "row": 0, "position": position, "n": n, "told_at": 10 * n,
                    "to_due": to, "to_offset": None if to is None else 5, "to_row": None if to is None else 0,
                    "attempt": 1,
                })  # fmt: skip
            else:
                command, kind, answer, n, due = step
                said.append({
                    "shard": shard, "at": 1, "command": command, "kind": kind, "answer": int(answer), "n": n,
                    "plain": False, "by_id": True, "due": due, "first_due": 100, "offset": 5, "row": 0,
                })  # fmt: skip
    return frame_of(spark, CHANGES, said), frame_of(spark, DEFERRALS, put_off), frame_of(spark, CYCLES, cycles)


def decided(module: Any, given: tuple[Any, Any, Any]) -> dict[str, tuple[int | None, bool]]:
    rows = module.decided(*given).where("position = 20 AND turn = -1").collect()
    return {CASES[row.shard].what: (row.right, bool(row.forgotten)) for row in rows}


def test_what_each_change_must_be_told(spark: SparkSession) -> None:
    expected = {case.what: (case.right, case.forgotten) for case in CASES}
    assert decided(changes, frames(spark)) == {
        what: (None if right is None else int(right), forgotten) for what, (right, forgotten) in expected.items()
    }


MUTANTS = (
    ('.when(F.col("_state") == "cancelled", int(Answer.CANCELLED_BEFORE))', ""),
    ('.when((F.col("_state") == "dead") & happened.isin("redrive", "purge"), int(Answer.OK))', ""),
    ('.when(F.col("_state") == "dead", int(Answer.DEAD))', ""),
    (".when(delivered, int(Answer.DELIVERED))", ""),
    ('.when(happened.isin("redrive", "purge"), int(Answer.NOT_DEAD))', ""),
    ('F.when(F.col("cursor_before").isNull() | happened', "F.when(happened"),
    ("(key <= F.col(\"cursor_before\"))", "(key < F.col(\"cursor_before\"))"),
    ('(F.col("_placed.position") < F.col("applied_before"))', "F.lit(True)"),
    ('(F.col("_placed.position") < F.col("applied_before"))', "F.lit(False)"),
    ("(ended | delivered)", "F.lit(True)"),
    ("(ended | delivered)", "ended"),
    ("(ended | delivered)", "delivered"),
    ('(F.col("_placed.due") < F.col("horizon_before"))', '(F.col("_placed.due") <= F.col("horizon_before"))'),
    ('(F.col("_placed.due") < F.col("horizon_before"))', "F.lit(False)"),
    ('(F.col("_ended_at") < F.col("end_horizon_before"))', '(F.col("_ended_at") <= F.col("end_horizon_before"))'),
    ('(F.col("_ended_at") < F.col("end_horizon_before"))', "F.lit(False)"),
    ('happened.isin("move", "deliver_now", "redrive", "defer")', 'happened.isin("deliver_now", "redrive", "defer")'),
    ('happened.isin("move", "deliver_now", "redrive", "defer")', 'happened.isin("move", "redrive", "defer")'),
    ('happened.isin("move", "deliver_now", "redrive", "defer")', 'happened.isin("move", "deliver_now", "defer")'),
    ('happened.isin("move", "deliver_now", "redrive", "defer")', 'happened.isin("move", "deliver_now", "redrive")'),
    ("places = ok & ", "places = "),
    ('F.when(ok & (happened == "cancel"), "cancelled")', 'F.when(happened == "cancel", "cancelled")'),
    ('.orderBy("position", "turn")', '.orderBy("turn", "position")'),
    ('.orderBy("position", "turn")', '.orderBy("position")'),
)  # fmt: skip


@pytest.mark.parametrize(("text", "other"), MUTANTS)
def test_each_mutant_is_found(spark: SparkSession, text: str, other: str) -> None:
    source = inspect.getsource(changes)
    part = source[source.index("def decided") : source.index("def summary")]
    assert text in part
    mutant = ModuleType("mutant")
    exec(compile(source.replace(part, part.replace(text, other)), "mutant", "exec"), mutant.__dict__)
    given = frames(spark)
    assert decided(mutant, given) != decided(changes, given)


# --- names ------------------------------------------------------------------------------------------------------------

SUMMARY = (
    "shard int, offset bigint, row bigint, place_due bigint, place_offset bigint, cancels bigint, is_dead boolean, "
    "ended_at bigint"
)


class Name(NamedTuple):
    """Message 5 was sent under a name, due at 100; message 15 under the same one, and answered `answer`. `content`: its
    fingerprint (that of the first one is 1); `plain`: whether it came from a plain client, as the first one did not."""

    what: str
    kinds: tuple[str, ...]
    answer: Answer = A.ACCEPTED
    first: bool = True
    state: dict[str, Any] | None = None
    cursor: tuple[int, int, int] | None = DELIVERED
    horizon: int = 0
    end_horizon: int = 0
    whole: bool = True
    content: int | None = 1
    plain: bool = False


ENDED = {"cancels": 1, "is_dead": False, "ended_at": 60}
NAMES = (
    Name("the first one was delivered", ("name_twice",)),
    Name("the first one waits", ("name_twice",), cursor=(50, 0, 0)),
    Name("the first one waits in spite of the horizon", ("name_twice",), cursor=(50, 0, 0), horizon=150),
    Name("the first one is forgotten", (), horizon=101),
    Name("the first one is nearly forgotten", ("name_twice",), horizon=100),
    Name("the first one was moved behind the horizon", ("name_twice",), horizon=101,
         state={"place_due": 400, "place_offset": 9, "cancels": 0, "is_dead": False}),
    Name("the first one was cancelled", ("name_twice",), state=ENDED),
    Name("the first one was cancelled long ago", (), state=ENDED, end_horizon=61),
    Name("the first one was cancelled, and not long ago", ("name_twice",), state=ENDED, end_horizon=60),
    Name("the first one died long ago", (), state={"cancels": 0, "is_dead": True, "ended_at": 60}, end_horizon=61),
    Name("what was forgotten is not known", (), cursor=None),
    Name("a repeat", (), answer=A.DUPLICATE),
    Name("another one", (), answer=A.CONFLICT, content=2),
    Name("another one that was called a repeat", ("false_answer",), answer=A.DUPLICATE, content=2),
    Name("a repeat that was called another one", ("false_answer",), answer=A.CONFLICT),
    Name("a plain client's", (), answer=A.CONFLICT, plain=True),
    Name("a plain client's that was called a repeat", ("false_answer",), answer=A.DUPLICATE, plain=True),
    Name("a repeat of one that is forgotten", (), answer=A.DUPLICATE, horizon=101),
    Name("a repeat, perhaps", (), answer=A.DUPLICATE, content=None),
    Name("another one, perhaps", (), answer=A.CONFLICT, content=None),
    Name("a repeat of nothing", ("false_answer",), answer=A.DUPLICATE, first=False),
    Name("a repeat of one that is not read, perhaps", (), answer=A.DUPLICATE, first=False, whole=False),
)  # fmt: skip


def judgements(spark: SparkSession, module: Any = names) -> dict[str, tuple[str, ...]]:
    sent, said, states, cycles, windows = [], [], [], [], []
    for shard, case in enumerate(NAMES):
        for offset in (5, 15)[0 if case.first else 1 :]:
            second = {"plain": case.plain, "fingerprint": case.content} if offset == 15 else {}
            sent.append({
                "shard": shard, "offset": offset, "due": 20 * offset, "kind": "schedule", "name": "n:a", "plain": False,
                "fingerprint": 1,
            } | second)  # fmt: skip
            answer = case.answer if offset == 15 else A.ACCEPTED
            said.append({"shard": shard, "offset": offset, "answer": int(answer), "n": 1 if offset == 5 else LAST})
        if case.state is not None:
            states.append({"shard": shard, "offset": 5, "row": 0} | case.state)
        known = case.cursor is not None
        cycles.append({
            "shard": shard, "n": LAST, "told_at": 90, "applied_before": 15, "cursor_before": case.cursor,
            "horizon_before": case.horizon if known else None, "end_horizon_before": case.end_horizon,
        })  # fmt: skip
        windows.append({"shard": shard, "whole": case.whole})
    commands = "shard int, offset bigint, due bigint, kind string, name string, plain boolean, fingerprint bigint"
    taken = module.claims(
        frame_of(spark, commands, sent),
        frame_of(spark, "shard int, offset bigint, answer int, n bigint", said), frame_of(spark, SUMMARY, states),
        frame_of(spark, CYCLES, cycles), frame_of(spark, "shard int, whole boolean", windows),
    )  # fmt: skip
    rows = module.violations(taken).collect()
    assert {row.offset for row in rows} <= {15}
    return {
        case.what: tuple(sorted(row.kind for row in rows if row.shard == shard)) for shard, case in enumerate(NAMES)
    }


def test_names_that_two_messages_have(spark: SparkSession) -> None:
    assert judgements(spark) == {case.what: case.kinds for case in NAMES}


@pytest.mark.parametrize("rule", names.RULES)
@pytest.mark.parametrize("text", ["false", "answer IS NOT NULL"])
def test_each_mutant_of_the_rules_of_names_is_found(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, rule: str, text: str
) -> None:
    monkeypatch.setitem(names.RULES, rule, text)
    assert judgements(spark) != {case.what: case.kinds for case in NAMES}


@pytest.mark.parametrize(
    "part", ['(F.col("plain") == F.col("first.plain"))', '(F.col("fingerprint") == F.col("first.fingerprint"))']
)
def test_each_mutant_of_what_a_repeat_is_is_found(spark: SparkSession, part: str) -> None:
    source = inspect.getsource(names)
    assert source.count(part) == 1
    mutant = ModuleType("mutant")
    exec(compile(source.replace(part, "F.lit(True)"), "mutant", "exec"), mutant.__dict__)
    assert judgements(spark, mutant) != {case.what: case.kinds for case in NAMES}
