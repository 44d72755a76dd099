"""A CancelledError in a task that nobody cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class StrayCancellation(Exception):
    """What a task waited for was cancelled, and not the task."""


@contextmanager
def own_cancellation_only() -> Iterator[None]:
    """Raise StrayCancellation in place of a CancelledError that was not meant for this task.

    A library raises one where it awaits what it has cancelled itself. Task groups and callbacks take it for the wanted
    end of the task, and say nothing.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise StrayCancellation("something that this task waited for was cancelled") from error
