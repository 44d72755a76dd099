"""The limits for messages in imported files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ImportLimits:
    """The limits for one message. `topics` are names or patterns (`orders.*`); empty = any topic."""

    max_payload_bytes: int = 1 << 20
    max_headers: int = 64
    max_headers_bytes: int = 64 << 10
    max_key_bytes: int = 32 << 10
    topics: tuple[str, ...] = ()
