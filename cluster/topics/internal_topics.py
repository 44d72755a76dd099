"""Names of the topics duemq keeps for itself, and of the committers that write them."""

from __future__ import annotations

from duemq.bus.base import Bus
from duemq.model.topics.topic_names import is_of_another

BUFFER = "duemq.buffer"  # commands, one partition per shard
LEDGER = "duemq.ledger"  # entries, one partition per shard
ADMIN = "duemq.admin"  # administrative state, one partition (ADR 38)
JOBS = "duemq.jobs"  # the plans of bulk jobs, one partition (ADR 41)
TRAIL = "duemq.trail"  # who changed what: one partition of acts, one of denials
RELAYS = "duemq.relays"  # what relays have counted lately, one partition; made by the first relay
INTERNAL = frozenset((BUFFER, LEDGER, ADMIN, JOBS, TRAIL, RELAYS))

IMPORTER = "import"  # the committer that appends the commands of many files at once, of all proxies


def is_internal(topic: str) -> bool:
    """Whether it is one of these, or may be another cluster's."""
    return topic in INTERNAL or is_of_another(topic)


async def create_logs(bus: Bus, shards: int) -> None:
    """Make those that are missing. Raises TopicRefused, of the buffer and the ledger alone.

    No broker may drop an entry of the ledger by its age: its last entry says which replicas are current. Masters trim
    it up to there.
    """
    await bus.create_log(BUFFER, shards, in_ids=True)
    await bus.create_log(LEDGER, shards, expires=False)
    await create_admin_log(bus)
    await bus.create_log(JOBS, 1, expires=False, vital=False)
    await bus.create_log(TRAIL, 2, expires=False, vital=False)


async def create_admin_log(bus: Bus) -> None:
    """The one of the administrative state, which also processes without shards follow."""
    await bus.create_log(ADMIN, 1, expires=False, vital=False)


def committer_name(shard: int) -> str:
    return f"shard-{shard}"
