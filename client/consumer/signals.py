"""SIGINT and SIGTERM stop all consumers in this process; the former handlers return when the last consumer ends."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_stops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
_before: dict[signal.Signals, Any] = {}


@contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Let SIGINT and SIGTERM set this event, together with the events of all other such blocks. Does nothing outside of
    the main thread: Python handles signals only there.

    Uses `signal`, not the loop's handlers: a loop has one handler per signal, forgets the former one, and does not
    return it. Setting the events wakes the loop, and the loop's own handlers keep working.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    entry = asyncio.get_running_loop(), stop
    if not _stops:
        for each in _SIGNALS:
            _before[each] = signal.signal(each, _stop_all)
    _stops.append(entry)
    try:
        yield
    finally:
        _stops.remove(entry)
        if not _stops:
            for each, before in _before.items():
                # Not if other code has replaced it since. None: it was set by C code, and Python cannot set it again.
                if signal.getsignal(each) is _stop_all and before is not None:
                    signal.signal(each, before)
            _before.clear()


def _stop_all(number: int, frame: FrameType | None) -> None:
    for loop, stop in tuple(_stops):
        with suppress(RuntimeError):  # the loop was closed before its consumer ended
            loop.call_soon_threadsafe(stop.set)
