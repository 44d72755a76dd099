"""Refuses due times that are long past: a wrong column or a default date would deliver a whole table at once."""

from __future__ import annotations

from typing import Final

LONG_PAST_MS: Final = 86_400_000
LONG_PAST: Final = "is more than a day past (with past=send it is delivered at once)"


def why_long_past(due: int, now: int) -> str | None:
    """Why a time (epoch ms) is refused without past=send, or None."""
    return f"{due} {LONG_PAST}" if due < now - LONG_PAST_MS else None
