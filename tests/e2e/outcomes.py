"""What may have become of a message, given the answers so far: the reconciliation of the kill -9 loops.

A request that got no answer may have taken effect or not. So for each message the states that it may be in are kept,
each answer strikes out those it contradicts, and in the end the records of the topic have to fit one that is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any


class Kind(Enum):
    ABSENT = "never accepted"
    HELD = "accepted: waits for its due time, or has been delivered at it"
    DELIVERED = "delivered for certain"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class State:
    """`due` in epoch ms; `loose`: that or later, for the server takes its own clock for a time that has passed.
    `hurried`: it may be delivered before it."""

    kind: Kind
    due: int = 0
    loose: bool = False
    hurried: bool = False

    def at(self, due: int) -> State | None:
        """With its due time known, if it can be this one."""
        fits = self.kind in (Kind.HELD, Kind.DELIVERED) and (due == self.due or (self.loose and due > self.due))
        return replace(self, due=due, loose=False) if fits else None


ABSENT, CANCELLED = State(Kind.ABSENT), State(Kind.CANCELLED)


@dataclass
class Message:
    """One message of the load, known by its payload. Change requests to it are made one after the other.

    `unsettled`: changes (with the new due time of a move) that got no answer. They may take effect at any later time.
    """

    payload: str
    states: set[State]
    id: str | None = None
    unsettled: list[tuple[str, int | None]] = field(default_factory=list)
    history: list[str] = field(default_factory=list)

    def answered(self, what: str, answer: str | None, possible: set[State]) -> None:
        """Note an answer and what it leaves possible."""
        self.history.append(f"{what} -> {answer or 'no answer'}: {possible or 'CONTRADICTION'}")
        assert possible, "\n".join((f"{self.payload} {self.id}", *self.history))
        self.states = possible

    def accepted(self, receipt: Mapping[str, Any]) -> None:
        """A receipt, be it the first one or that of a repeat."""
        assert self.id in (None, receipt["id"]), f"one name, two ids: {self.id}, {receipt['id']}, {self.history}"
        self.id = receipt["id"]
        self.answered("send", f"{receipt}", self._due_at(receipt["deliver_at_ms"]))

    def changed(self, what: str, code: str | None, moved_to: int | None = None) -> None:
        """The answer to a cancel, move or deliver-now: "ok", a problem's code, or None where there was none."""
        after: set[State] = set()
        if code is None:
            self.unsettled.append((what, moved_to))
        for state in self._by_now():
            match state.kind, code:
                case Kind.HELD, "ok":
                    after.add(self._effect(what, state, moved_to))
                case Kind.HELD, None:
                    after |= {state, self._effect(what, state, moved_to)}
                case Kind.HELD | Kind.DELIVERED, "already_delivered":
                    after.add(replace(state, kind=Kind.DELIVERED))
                case (Kind.CANCELLED, "already_cancelled") | (Kind.ABSENT, "unknown_message") | (_, None):
                    after.add(state)
                case Kind.CANCELLED, "ok" if what == "cancel":
                    after.add(state)
        self.answered(what if moved_to is None else f"{what} to {moved_to}", code, after)

    @staticmethod
    def _effect(what: str, state: State, moved_to: int | None) -> State:
        match what:
            case "cancel":
                return CANCELLED
            case "move":
                return State(Kind.HELD, moved_to or 0, loose=True)
            case "deliver-now":  # at once, or as soon as its destination takes it: the state in the answer tells
                return replace(state, hurried=True)
        raise AssertionError(what)

    def seen(self, what: str, shown: Mapping[str, Any]) -> None:
        """A look at the message's state: its own answer, or what a move or deliver-now says."""
        status, after = shown["status"], self._due_at(shown["deliver_at_ms"])
        if status == "scheduled":
            after = {state for state in after if state.kind is Kind.HELD}
        elif status == "delivered":
            after = {replace(state, kind=Kind.DELIVERED) for state in after}
        else:
            after = self._by_now() & {CANCELLED}
        self.answered(what, f"{status} {shown['deliver_at_ms']}", after)
        if status == "delivered":
            assert self.may_come_at(shown["delivered_at_ms"]), f"early: {shown}, {self.history}"

    def reconcile(self, records: Sequence[Mapping[str, Any]]) -> None:
        """After everything has fallen due: the records with this payload fit what was answered."""
        if not records:
            self.answered("no record", "", self._by_now() & {ABSENT, CANCELLED})
            self.unsettled.clear()
            return
        (record,) = records
        headers = record["headers"]
        assert self.id in (None, headers["duemq-id"]), (self.id, record)
        assert headers["duemq-attempt"] == "1"
        due = int(headers["duemq-due"])
        self.answered(f"record due {due} at {record['timestamp_ms']}", "", self._due_at(due))
        self.unsettled.clear()
        self.id = headers["duemq-id"]
        assert self.may_come_at(record["timestamp_ms"]), f"early: {record}, {self.history}"

    def may_come_at(self, at: int) -> bool:
        return any(state.hurried or at >= state.due for state in self.states)

    def _due_at(self, due: int) -> set[State]:
        return {known for state in self._by_now() if (known := state.at(due)) is not None}

    def _by_now(self) -> set[State]:
        """The states left by the answers, and those that unsettled changes may have led to since."""
        found, new = set[State](), self.states
        while new:
            found |= new
            held = [state for state in new if state.kind is Kind.HELD]
            new = {self._effect(what, state, to) for state in held for what, to in self.unsettled} - found
        return found
