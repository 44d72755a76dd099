"""Detects a CancelledError in a task that was not cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class StrayCancellation(Exception):
    """A task awaited a cancelled task or future; the task itself was not cancelled."""


@contextmanager
def own_cancellation_only() -> Iterator[None]:
    """Raise StrayCancellation for a CancelledError while this task is not being cancelled.

    Such an error comes from a library that awaits a task or future after it has cancelled that task or future. Left
    alone, a task group would treat the error as a normal end of the task, and report no error.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise StrayCancellation("something that this task waited for was cancelled") from error
