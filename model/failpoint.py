"""The one seam through which faults are injected."""

from __future__ import annotations

from collections.abc import Callable

Failpoint = Callable[[str], None]


def no_failpoint(step: str) -> None:
    """The default failpoint, called with the name of each step: tests inject crashes instead."""
