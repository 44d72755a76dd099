"""The steps of a cycle are taken in order, or refused: nothing is decided after the ledger entry was made."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import cast

import pytest

from duemq.delay.core.command_batch import CommandBatch, View
from duemq.delay.core.cycle import Cycle, Phase, PhaseError
from duemq.model.log.ledger import START, DeferredMessage
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import make_key

NOTHING = CommandBatch([], [], {})
KEY = make_key(2_000, 0, 0)
STEPS: dict[str, tuple[Phase, Callable[[Cycle], object]]] = {
    "lose": (Phase.COMMANDS, lambda cycle: cycle.lose(7)),
    "read": (Phase.COMMANDS, lambda cycle: cycle.read([])),
    "apply": (Phase.COMMANDS, lambda cycle: cycle.apply(NOTHING)),
    "take": (Phase.COMMANDS, lambda cycle: cycle.take(1_000, [], [], True)),
    "follow": (Phase.COMMANDS, lambda cycle: cycle.follow(START, [], [])),
    "decide_files": (Phase.DUE, lambda cycle: cycle.decide_files(())),
    "rest_at": (Phase.DUE, lambda cycle: cycle.rest_at(KEY)),
    "defer": (Phase.DUE, lambda cycle: cycle.defer((KEY, b""), DeferredMessage(KEY, None, 0, "expired"))),
    "entry": (Phase.DUE, lambda cycle: cycle.entry(1_000)),
}
FIRST: dict[Phase, tuple[str, ...]] = {
    Phase.COMMANDS: (),
    Phase.DUE: ("take",),
    Phase.RECORDED: ("take", "entry"),
}


def cycle_in(phase: Phase) -> Cycle:
    cycle = Cycle(START, cast(View, None), IdCodec(b"s" * 32), 0, 1)
    for name in FIRST[phase]:
        STEPS[name][1](cycle)
    return cycle


@pytest.mark.parametrize(("phase", "name"), list(product(Phase, STEPS)))
def test_each_step_belongs_to_one_phase(phase: Phase, name: str) -> None:
    own_phase, step = STEPS[name]
    cycle = cycle_in(phase)
    if phase is own_phase or (name, phase) == ("entry", Phase.RECORDED):
        step(cycle)
        return
    before = repr(vars(cycle))
    with pytest.raises(
        PhaseError, match=f"{name} belongs to the phase {own_phase.name} of a cycle, not to {phase.name}"
    ):
        step(cycle)
    assert repr(vars(cycle)) == before, "a refused step changes nothing"


def test_an_entry_is_the_same_when_it_is_asked_for_again() -> None:
    cycle = cycle_in(Phase.DUE)
    assert cycle.entry(1_000) == cycle.entry(1_000)
