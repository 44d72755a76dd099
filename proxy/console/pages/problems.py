"""What is wrong now, the worst first: shards, nodes, disks, destinations, lateness."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.views import ms_text

_LATE_MS: Final = 5_000
_LAG: Final = 1_000  # ledger entries
_NOT_READY: Final = frozenset(("joining", "out"))
_MAX_SHOWN: Final = 20


class Problem(NamedTuple):
    """`page`: where more is seen, as from the root of the console."""

    severe: bool
    text: str
    page: str


def problems(service: Service) -> list[Problem]:
    """At most 20."""
    return sorted(_all(service), key=lambda problem: not problem.severe)[:_MAX_SHOWN]


def _all(service: Service) -> Iterator[Problem]:
    for reason in (service.gateway.why_not_ready(), service.access.why_not_ready()):
        if reason is not None:
            yield Problem(True, f"Not ready: {reason}", "cluster")
    now = service.history.now
    for shard in now.cluster["shards"]:
        if now.at and shard.get("master") is None:
            yield Problem(True, f"Shard {shard['shard']} has no master: what is due there is not delivered", "cluster")
    if now.overdue_ms > _LATE_MS:
        yield Problem(True, f"The oldest overdue message is {ms_text(now.overdue_ms)} late", "./")
    for node in now.cluster["nodes"]:
        yield from _of_node(node)
    for topic, trouble in service.gateway.troubles().items():
        yield Problem(False, f"Topic {topic} refuses messages: {trouble}", f"topics/{topic}")


def _of_node(node: dict[str, Any]) -> Iterator[Problem]:
    name = node["name"]
    if node.get("full"):
        yield Problem(True, f"Node {name} takes no new messages: {node['full']}", "cluster")
    elif node.get("watermark"):
        yield Problem(False, f"The disk of node {name} is filling up (mark {node['watermark']} of 3)", "cluster")
    if node.get("state") in _NOT_READY:
        yield Problem(False, f"Node {name} is {node['state']}: {node['reason']}", "cluster")
    for shard, why in node.get("unfit", {}).items():
        yield Problem(True, f"Node {name} cannot hold shard {shard}: {why}", "cluster")
    for shard, behind in node.get("lag", {}).items():
        if behind > _LAG:
            yield Problem(False, f"Node {name} is {behind} ledger entries behind in shard {shard}", "cluster")
