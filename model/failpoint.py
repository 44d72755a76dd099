"""The one seam through which faults are injected."""

from __future__ import annotations

from collections.abc import Callable

Failpoint = Callable[[str], None]


def no_failpoint(step: str) -> None:
    """Where tests put a crash: called with the name of each step."""
