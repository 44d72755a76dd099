"""Lag as JSON for programs. See docs/operate/lag.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from duemq.client.lag.values import GroupLag, Matches, PartitionLag, TopicLag, Total

_PARTITION = (
    "partition", "state", "start", "max", "commit", "pull", "lag", "inflight", "available", "lag_ms", "inflight_ms",
    "available_ms", "lost",
)  # fmt: skip
_TOTAL = (
    "partitions", "unknown", "lag", "inflight", "available", "lag_ms", "inflight_ms", "available_ms", "lost",
)  # fmt: skip


def document(groups: Iterable[GroupLag], at_ms: int) -> dict[str, Any]:
    """Lag as a JSON document. Unknown values are null; `matching` is present only if tags were given."""
    return {"read_at_ms": at_ms, "groups": [_group(one) for one in groups]}


def _group(one: GroupLag) -> dict[str, Any]:
    return {
        "group": one.group, "state": one.state, "members": one.members, "total": _total(one.total),
        "retry_total": _total(one.retry_total), "topics": [_topic(topic) for topic in one.topics],
    }  # fmt: skip


def _topic(one: TopicLag) -> dict[str, Any]:
    return {
        "topic": one.topic, "retry": one.retry, "total": _total(one.total),
        "partitions": [_partition(partition) for partition in one.partitions],
    }  # fmt: skip


def _partition(one: PartitionLag) -> dict[str, Any]:
    return {name: getattr(one, name) for name in _PARTITION} | _matching(one.matching)


def _total(one: Total) -> dict[str, Any]:
    return {name: getattr(one, name) for name in _TOTAL} | _matching(one.matching)


def _matching(matches: Matches | None) -> dict[str, Any]:
    return {} if matches is None else {"matching": matches._asdict()}
