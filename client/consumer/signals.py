"""Lets SIGINT and SIGTERM stop all consumers in this process. The earlier signal handlers are restored when the last
consumer ends."""

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
    """Let SIGINT and SIGTERM set this event, and the events of all other active blocks. Does nothing outside the main
    thread: Python handles signals only there.

    It uses `signal.signal`, not `loop.add_signal_handler`: the latter replaces a handler without returning it, so that
    it could not be restored. Setting the events wakes the loop, and the loop's own signal handlers keep working.
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
                # A handler that other code has set since is kept. None: the earlier handler was set by C code, and
                # Python cannot restore it.
                if signal.getsignal(each) is _stop_all and before is not None:
                    signal.signal(each, before)
            _before.clear()


def _stop_all(number: int, frame: FrameType | None) -> None:
    for loop, stop in tuple(_stops):
        with suppress(RuntimeError):  # the loop was closed before its consumer ended
            loop.call_soon_threadsafe(stop.set)
