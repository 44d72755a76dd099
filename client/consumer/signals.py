"""SIGINT and SIGTERM stop all consumers that run in this process, and are as they were when the last of them ended."""

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
    """Have SIGINT and SIGTERM set this event, beside those of all others who are in such a block. In another thread
    than the main one nothing happens: Python takes signals in the main thread only.

    These are handlers of `signal`, not of the loop: a loop has one per signal, would forget the one it had before, and
    tells nobody what that was. Setting them wakes the loop, and what the loop itself has goes on working.
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
                # Not where somebody else took it meanwhile. None: it was set by C code, and cannot be set by Python.
                if signal.getsignal(each) is _stop_all and before is not None:
                    signal.signal(each, before)
            _before.clear()


def _stop_all(number: int, frame: FrameType | None) -> None:
    for loop, stop in tuple(_stops):
        with suppress(RuntimeError):  # the loop was closed under its consumer
            loop.call_soon_threadsafe(stop.set)
