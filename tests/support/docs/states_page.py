"""The page of states, drawn from the tables in the code."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from duemq.bus.kafka.produce.states import COMMITTER, CommitterState
from duemq.delay.node_states import EFFECTS, NODE, NodePhase
from duemq.delay.shard.states import SHARD, ShardState
from duemq.model.log.job import JOB, JobState
from duemq.model.state_table import StateTable
from duemq.storage.shard.records import IMPORT_STATES, ImportState

TABLES: Final[dict[str, tuple[StateTable[Any, Any], type[StrEnum], str]]] = {
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


def states_page() -> str:
    parts = [
        "# States",
        "Drawn from the tables in the code. An event that a state does not list is a defect: the code raises "
        "`IllegalStep`.",
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
    return "\n\n".join(parts) + "\n"
