"""Names of the topics duemq keeps for itself, and of the committers that write them."""

from __future__ import annotations

BUFFER = "duemq.buffer"  # commands, one partition per shard
LEDGER = "duemq.ledger"  # entries, one partition per shard
INTERNAL = frozenset((BUFFER, LEDGER))


def committer_name(shard: int) -> str:
    return f"shard-{shard}"
