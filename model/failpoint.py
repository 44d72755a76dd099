"""The only interface through which tests inject faults."""

from __future__ import annotations

from collections.abc import Callable

Failpoint = Callable[[str], None]


def no_failpoint(step: str) -> None:
    """The default failpoint, which does nothing. A failpoint is called with the name of each step; tests pass one that
    crashes."""
