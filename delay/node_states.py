"""The states of a node, as tables: its phases, and the conditions that decide whether it is ready."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from duemq.election.base import NodeState
from duemq.model.state_table import StateTable


class NodePhase(StrEnum):
    CLOSED = "closed"
    OPENING = "opening"  # it opens the log and the stores, and joins the election
    SERVING = "serving"  # its shards run; its condition decides whether it serves requests
    CLOSING = "closing"  # its shards are being flushed and closed


class NodeEvent(StrEnum):
    START = "start"  # also after a failure
    OPENED = "opened"
    END = "end"  # it was stopped, or a disk or the log failed
    CLOSED = "closed"


NODE: Final = StateTable(
    "node",
    NodePhase.CLOSED,
    {
        (NodePhase.CLOSED, NodeEvent.START): NodePhase.OPENING,
        (NodePhase.OPENING, NodeEvent.OPENED): NodePhase.SERVING,
        (NodePhase.OPENING, NodeEvent.END): NodePhase.CLOSING,
        (NodePhase.SERVING, NodeEvent.END): NodePhase.CLOSING,
        (NodePhase.CLOSING, NodeEvent.CLOSED): NodePhase.CLOSED,
    },
)


class Condition(StrEnum):
    """The decisive condition of a serving node, most severe first."""

    LOG_LOST = "log_lost"
    CLOCK_WRONG = "clock_wrong"
    CATCHING_UP = "catching_up"
    UNFIT = "unfit"  # the node can lead no shard; a node that runs alone: there is a shard that it cannot lead
    DRAINED = "drained"
    FIT = "fit"


class Effect(NamedTuple):
    """`state`: the state reported to other nodes. `serves`: whether requests are served."""

    state: NodeState
    serves: bool


EFFECTS: Final[Mapping[Condition, Effect]] = {
    Condition.LOG_LOST: Effect(NodeState.OUT, serves=False),
    Condition.CLOCK_WRONG: Effect(NodeState.OUT, serves=True),
    Condition.CATCHING_UP: Effect(NodeState.JOINING, serves=False),
    Condition.UNFIT: Effect(NodeState.OUT, serves=True),
    Condition.DRAINED: Effect(NodeState.DRAINING, serves=True),
    Condition.FIT: Effect(NodeState.READY, serves=True),
}
