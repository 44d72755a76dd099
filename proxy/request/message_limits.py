"""The limits for messages. The settings can import this module without the packages that a server needs."""

from __future__ import annotations

from dataclasses import dataclass, field

from duemq.model.messages import dead_letters
from duemq.model.timing import TimePolicy


@dataclass(frozen=True)
class MessageLimits:
    """The limits for one message or batch. `topics` are names or patterns (`orders.*`); none = any topic.

    `purgeable`: names and patterns of the topics of dead letters that a caller with the scope `operate` may purge.
    """

    max_payload_bytes: int = 1 << 20
    max_headers: int = 64
    max_headers_bytes: int = 64 << 10
    max_key_bytes: int = 32 << 10
    max_batch_items: int = 10_000
    max_batch_bytes: int = 32 << 20
    topics: tuple[str, ...] = ()
    time: TimePolicy = field(default_factory=TimePolicy)
    max_redrives: int = 16
    purgeable: tuple[str, ...] = (*dead_letters.TOPICS, "duemq.dlq")
