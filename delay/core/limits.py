"""Limits of one cycle, and of the delivery attempts for a message."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CycleLimits:
    """Bounds of a cycle.

    `retry_ms`: the pauses after failed attempts; the last one applies to all further attempts. `retention_ms`: how long
    after its end a message stays known; None = forever. `min_retention_ms`: the same while the disk is short of space.
    """

    max_commands: int = 4_096
    max_messages: int = 4_096
    max_bytes: int = 8 << 20
    max_attempts: int = 16
    retry_ms: tuple[int, ...] = (1_000, 5_000, 10_000, 30_000, 60_000)
    dead_letter_topic: str = "duemq.dlq"
    retention_ms: int | None = None
    min_retention_ms: int = 600_000
