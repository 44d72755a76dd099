"""A CancelledError in a task that was not cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class StrayCancellation(Exception):
    """A task awaited something that was cancelled; the task itself was not cancelled."""


@contextmanager
def own_cancellation_only() -> Iterator[None]:
    """Raise StrayCancellation for a CancelledError while this task is not being cancelled.

    A library raises it when it awaits a task or a future that it has cancelled. A task group takes it for a normal end
    of the task and reports no error.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise StrayCancellation("something that this task waited for was cancelled") from error
