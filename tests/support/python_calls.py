"""Counts calls of Python functions: a cost that no other work on the machine changes."""

from __future__ import annotations

import sys
from collections.abc import Callable


def python_calls(work: Callable[[], object]) -> int:
    """How many Python functions `work` calls, itself included."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls
