"""The nodes, and the master and progress of each shard, in one view for all interfaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from duemq.election.base import Member
from duemq.model.log.ledger import Entry
from duemq.model.messages.key import due_of


class ClusterView(Protocol):
    """The part of an election that processes outside it can see."""

    def members(self) -> Sequence[Member]:
        """The live nodes, by name."""
        ...

    def masters(self) -> Mapping[int, str]:
        """The name of the master of each shard that has one."""
        ...


class Operator(Protocol):
    """An operator's requests to a cluster. Both methods raise Rejected `unknown_node`."""

    async def drain(self, name: str) -> None:
        """Make a node hand over its shards; it gets no shards until it is resumed. Idempotent."""
        ...

    async def resume(self, name: str) -> None:
        """Let a drained node get shards again. Idempotent."""
        ...


def cluster_json(
    cluster: str, shards: int, entries: Mapping[int, Entry], view: ClusterView, now: int
) -> dict[str, Any]:
    """Nodes and shards as JSON-able values. `entries`: the last known ledger entry of each shard; `now` in epoch ms."""
    masters = view.masters()
    return {
        "cluster": cluster,
        "nodes": [_node(member, masters) for member in view.members()],
        "shards": [_shard(number, masters.get(number), entries.get(number), now) for number in range(shards)],
    }


def _node(member: Member, masters: Mapping[int, str]) -> dict[str, Any]:
    health = member.health
    return {
        "name": member.name, "url": member.url, "rack": member.rack,
        "state": str(health.state), "reason": health.reason, "watermark": health.watermark, "full": health.full,
        "master_of": sorted(shard for shard, name in masters.items() if name == member.name),
        "holds": None if member.holds is None else sorted(member.holds),
        "unfit": {str(shard): why for shard, why in sorted(health.unfit.items())},
        "lag": {str(shard): behind for shard, behind in sorted(health.lag.items())},
    }  # fmt: skip


def _shard(number: int, master: str | None, entry: Entry | None, now: int) -> dict[str, Any]:
    document: dict[str, Any] = {"shard": number, "master": master}
    if entry is None or entry.number < 0:
        return document
    cursor_ms = due_of(entry.cursor)
    return document | {
        "entry": entry.number, "entry_age_ms": max(now - entry.at, 0), "applied": entry.applied,
        "cursor_ms": cursor_ms, "cursor_age_ms": max(now - cursor_ms, 0) if cursor_ms else None,
        "pending": entry.pending, "outcomes": entry.outcomes._asdict(),
    }  # fmt: skip
