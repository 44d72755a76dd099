"""The one seam through which faults are injected."""

from __future__ import annotations

from collections.abc import Callable

Fault = Callable[[str], None]


def no_fault(step: str) -> None:
    """Where tests put a crash: called with the name of each step."""
