"""`docs/reference/states.md` is drawn from the tables of states: change a table, and this test says how to draw it
anew."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from duemq.bus.kafka.produce.states import COMMITTER, CommitterState
from duemq.delay.node_states import EFFECTS, NODE, Condition, NodePhase
from duemq.delay.shard.states import SHARD, ShardState
from duemq.election.base import NodeState
from duemq.model.log.job import JOB, JobState
from duemq.model.state_table import IllegalStep, StateTable
from duemq.storage.shard.records import IMPORT_STATES, ImportState
from tests.support.docs.sentences import by_sentences

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "states.md"
TABLES: dict[str, tuple[StateTable[Any, Any], type[StrEnum], str]] = {
    "Shard": (SHARD, ShardState, """\
The state of a shard on one node (`delay/shard/states.py`). `duemq cluster` and `/v1/cluster` show the master of each
shard; the metrics `duemq_shard_master` and `duemq_shard_stopped` are 1 if a node leads a shard or stopped it. Each
step is a log line with `action` `state` at level `debug`."""),
    "Node": (NODE, NodePhase, """\
The life of a node (`delay/node_states.py`). A disk or a log that fails closes the node and opens it again, as after a
crash."""),
    "Import": (IMPORT_STATES, ImportState, """\
A file of messages (`storage/shard/records.py`). `GET /v1/imports/{id}` shows `pending`, `imported` or `rejected`; a
duplicate is answered with the first one's id."""),
    "Job": (JOB, JobState, """\
A bulk job (`model/log/job.py`). `GET /v1/jobs/{id}` shows the state. A job that was paused or cancelled is `active`
until the outcome of every change that it had begun is known."""),
    "Committer": (COMMITTER, CommitterState, """\
The writer of a shard's transactions on Kafka (`bus/kafka/produce/states.py`). After any error it ends, and the shard
opens another one."""),
}  # fmt: skip


def page() -> str:
    parts = [
        "# States",
        "Drawn from the tables in the code by `DRAW=1 pytest tests/unit/docs/test_states.py`. An event a state does "
        "not list is a defect: the code raises `IllegalStep`.",
    ]
    for title, (table, _, text) in TABLES.items():
        parts += [f"## {title}", text, f"```mermaid\n{table.diagram()}\n```"]
        if title == "Node":
            rows = [
                f"| `{condition.replace('_', ' ')}` | `{effect.state}` | {'yes' if effect.serves else 'no, 503'} |"
                for condition, effect in EFFECTS.items()
            ]
            head = ["| condition | state in `/v1/cluster` | serves requests |", "|---|---|---|"]
            parts += [
                "While a node serves, the first condition that holds decides its state:",
                "\n".join(head + rows),
            ]
    return by_sentences("\n\n".join(parts) + "\n")


def test_the_page_is_drawn_from_the_tables() -> None:
    if os.environ.get("DRAW"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "draw it: DRAW=1 pytest tests/unit/docs/test_states.py"


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
