"""The tables of states, and the page that is drawn from them."""

from __future__ import annotations

import pytest

from duemq.delay.node_states import EFFECTS, Condition
from duemq.delay.shard.states import SHARD, ShardState
from duemq.election.base import NodeState
from duemq.model.state_table import IllegalStep
from tests.support.docs.states_page import TABLES, states_page


def test_the_page_draws_each_table_and_each_condition() -> None:
    page = states_page()
    assert all(f"## {title}\n" in page and table.diagram() in page for title, (table, _, _) in TABLES.items())
    assert all(
        f"| `{condition.replace('_', ' ')}` | `{effect.state}` |" in page for condition, effect in EFFECTS.items()
    )


@pytest.mark.parametrize("title", TABLES)
def test_every_state_is_reached_and_every_event_leads_to_a_state(title: str) -> None:
    table, states, _ = TABLES[title]
    assert {table.start, *table.steps.values()} == set(states)
    assert {state for state, _ in table.steps} <= set(states)


def test_a_step_that_is_not_listed_is_refused() -> None:
    state, event = next(iter(SHARD.steps))
    assert SHARD.next(state, event) is SHARD.steps[state, event]
    with pytest.raises(IllegalStep, match="shard: given cannot happen while stopped"):
        SHARD.next(ShardState.STOPPED, event)


def test_every_condition_has_an_effect() -> None:
    assert set(EFFECTS) == set(Condition)
    assert {effect.state for effect in EFFECTS.values()} == set(NodeState)
