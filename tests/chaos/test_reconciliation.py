"""The proof proves something: a reconciliation that is given a record too few, too many or too early fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.probe import Probe, reconcile_probes
from tests.chaos.takeover import longest_pause
from tests.e2e.outcomes import ABSENT, Kind, Message, State
from tests.e2e.reconcile import reconcile

Record = dict[str, Any]
DUE = 1_800_000_000_000


def sent(payload: str) -> Message:
    message = Message(payload, {ABSENT, State(Kind.HELD, DUE)})
    message.accepted({"id": f"id-{payload}", "deliver_at_ms": DUE})
    return message


def record(payload: str, at: int = DUE + 5, id_: str = "") -> Record:
    headers = {"duemq-id": id_ or f"id-{payload}", "duemq-due": str(DUE), "duemq-attempt": "1"}
    return {"partition": 0, "offset": 0, "timestamp_ms": at, "payload": payload, "headers": headers}


def story() -> tuple[list[Message], list[Record]]:
    """One message delivered, one cancelled, one cancelled too late, one whose sender never got an answer."""
    delivered, cancelled, late = sent("delivered"), sent("cancelled"), sent("late")
    cancelled.changed("cancel", "ok")
    late.changed("cancel", "already_delivered")
    unknown = Message("unknown", {ABSENT, State(Kind.HELD, DUE)})
    return [delivered, cancelled, late, unknown], [record("delivered"), record("late")]


def test_a_true_story_passes() -> None:
    messages, records = story()
    reconcile(messages, records)
    messages, records = story()
    reconcile(messages, [*records, record("unknown", id_="any")])


TAMPERED: dict[str, Callable[[list[Record]], list[Record]]] = {
    "lost": lambda records: records[1:],
    "lost though answered already delivered": lambda records: records[:1],
    "twice": lambda records: [*records, records[0]],
    "twice under two ids": lambda records: [*records, record("delivered", id_="other")],
    "early": lambda records: [record("delivered", DUE - 1), records[1]],
    "delivered after a cancel that was won": lambda records: [*records, record("cancelled")],
    "under the id of another": lambda records: [record("delivered", id_="other"), records[1]],
    "sent by nobody": lambda records: [*records, record("nobody")],
}


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED)
def test_a_tampered_topic_fails(tamper: Callable[[list[Record]], list[Record]]) -> None:
    messages, records = story()
    with pytest.raises((AssertionError, ValueError)):
        reconcile(messages, tamper(records))


def test_an_untrue_answer_fails_at_once() -> None:
    message = sent("m")
    message.changed("cancel", "ok")
    with pytest.raises(AssertionError):
        message.changed("move", "ok", DUE + 1_000)


def test_a_message_sent_at_once_is_delivered_unless_its_topic_is_away() -> None:
    waiting, gone = sent("waiting"), sent("gone")
    for message, status in ((waiting, "scheduled"), (gone, "delivered")):
        message.changed("deliver-now", "ok")
        message.seen("sent at once", {"status": status, "deliver_at_ms": DUE, "delivered_at_ms": DUE - 5})
    waiting.changed("move", "ok", DUE + 1_000)
    with pytest.raises(AssertionError):
        gone.changed("move", "ok", DUE + 1_000)


def test_a_cancel_without_an_answer_may_still_take_effect_until_the_end() -> None:
    scheduled = {"status": "scheduled", "deliver_at_ms": DUE}
    for records in ([], [record("m")]):
        message = sent("m")
        message.changed("cancel", None)
        message.seen("look", scheduled)
        message.reconcile(records)
        with pytest.raises(AssertionError):
            message.seen("look", scheduled if not records else {"status": "cancelled", "deliver_at_ms": DUE})


def test_probes() -> None:
    probe = Probe("", "probe", 1)
    probe.sent, probe.open = {f"0.{DUE}", f"0.{DUE + 20}"}, {f"0.{DUE + 40}"}

    def probed(payload: str, at: int = DUE + 5) -> Record:
        found = record(payload, at)
        return found | {"headers": found["headers"] | {"null": None}}

    true = [probed(f"0.{DUE}"), probed(f"0.{DUE + 20}", DUE + 20)]
    reconcile_probes(probe, true)
    reconcile_probes(probe, [*true, probed(f"0.{DUE + 40}", DUE + 40)])
    wrong = true[0] | {"headers": true[0]["headers"] | {"null": ""}}
    for false in (
        true[:1], [*true, true[0]], [true[0], probed(f"0.{DUE + 20}", DUE)], [*true, probed("0.1")], [wrong, true[1]],
    ):  # fmt: skip
        with pytest.raises(AssertionError):
            reconcile_probes(probe, false)


def test_the_pause_is_that_of_the_next_master() -> None:
    steady = list(range(0, 1_000, 20))
    after = list(range(1_700, 3_000, 20))
    assert longest_pause([*steady, 1_004, *after], 1_000, 3_000) == (696, 700)  # 1,004: on its way when the node died
    assert longest_pause([*steady, *after, 9_000], 1_000, 2_500).after_fault == 700
    with pytest.raises(ValueError, match="nothing was delivered"):
        longest_pause(steady, 1_000, 3_000)
