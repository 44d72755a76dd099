"""State machines as tables: the next state for each state and event. Pure. `make docs` draws all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class IllegalStep(RuntimeError):
    """An event in a state that does not allow it. This is a defect in the program, never in its input."""


@dataclass(frozen=True, slots=True)
class StateTable(Generic[S, E]):
    """The states of one kind of thing. `start`: the first state. `steps`: the next state for each state and event."""

    name: str
    start: S
    steps: Mapping[tuple[S, E], S]

    def next(self, state: S, event: E) -> S:
        """Return the state that follows. Raises IllegalStep for an event that the state does not allow."""
        try:
            return self.steps[state, event]
        except KeyError:
            raise IllegalStep(f"{self.name}: {event} cannot happen while {state}") from None

    def diagram(self) -> str:
        """Draw the table as a Mermaid state diagram, one line per step."""
        lines = [f"    {state} --> {to}: {event.replace('_', ' ')}" for (state, event), to in self.steps.items()]
        return "\n".join(["stateDiagram-v2", f"    [*] --> {self.start}", *lines])
