"""The names of duemq's own topics, and of committers."""

from __future__ import annotations

from duemq.bus.base import Bus
from duemq.model.topics.topic_names import is_of_another

BUFFER = "duemq.buffer"  # commands, one partition per shard
LEDGER = "duemq.ledger"  # entries, one partition per shard
ADMIN = "duemq.admin"  # administrative state, one partition (ADR 38)
JOBS = "duemq.jobs"  # the plans of bulk jobs, one partition (ADR 41)
TRAIL = "duemq.trail"  # the audit trail: one partition of acts, one of denials
RELAYS = "duemq.relays"  # recent figures of relays, one partition; created by the first relay
INTERNAL = frozenset((BUFFER, LEDGER, ADMIN, JOBS, TRAIL, RELAYS))

IMPORTER = "import"  # the committer, shared by all proxies, that appends the commands for many files at once


def is_internal(topic: str) -> bool:
    """Whether the topic is one of duemq's own topics, or may be one of another cluster's."""
    return topic in INTERNAL or is_of_another(topic)


async def create_logs(bus: Bus, shards: int) -> None:
    """Create missing topics. Raises TopicRefused for the buffer and the ledger only.

    Brokers must not drop ledger entries by age, because the last entry decides which replicas are current. Masters trim
    the ledger up to the last entry.
    """
    await bus.create_log(BUFFER, shards, in_ids=True)
    await bus.create_log(LEDGER, shards, expires=False)
    await create_admin_log(bus)
    await bus.create_log(JOBS, 1, expires=False, vital=False)
    await bus.create_log(TRAIL, 2, expires=False, vital=False)


async def create_admin_log(bus: Bus) -> None:
    """Create the log of the administrative state, which is also followed by processes without shards."""
    await bus.create_log(ADMIN, 1, expires=False, vital=False)


def committer_name(shard: int) -> str:
    return f"shard-{shard}"
