"""`wheel`: measures the memory of the counting wheel alone, and the cost of a message in it, without a server or
store."""

import time
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from duemq.bench.harness.progress_bar import Advance, ProgressScreen
from duemq.bench.report.figures import Figure, ScenarioOutcome, vital
from duemq.wheel.wheel import Wheel

_WINDOW_MS = 1_800_000
_LOOK_EVERY = 50  # ticks
_START_MS = 1_000_000 * _WINDOW_MS
_KIB = 1024

Dues = npt.NDArray[np.int64]


class _Store:
    """A stand-in for the shard's store: the number of rows due in each ms of two windows."""

    def __init__(self) -> None:
        self._counts = np.zeros(2 * _WINDOW_MS, np.int32)

    def add(self, dues: Dues) -> None:
        np.add.at(self._counts, dues - _START_MS, 1)

    def rows(self, start: int, end: int) -> Dues:
        """The due times of the rows in [start, end), in order."""
        return np.repeat(np.arange(start, end), self._counts[start - _START_MS : end - _START_MS])


class _Clock:
    """Measures the time per kind of call, and per message."""

    def __init__(self) -> None:
        self.ns: defaultdict[str, int] = defaultdict(int)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.messages: defaultdict[str, int] = defaultdict(int)

    @contextmanager
    def around(self, call: str, messages: int = 0) -> Iterator[None]:
        began = time.perf_counter_ns()
        yield
        self.ns[call] += time.perf_counter_ns() - began
        self.calls[call] += 1
        self.messages[call] += messages

    def read(self) -> None:
        """Does nothing, because the clock measures only calls."""


class _Scales:
    """Measures the bytes that the wheel's own code has allocated, and the additional bytes needed during one call."""

    def __init__(self) -> None:
        self.wheel_bytes, self.beside = 0, 0
        self._own = [tracemalloc.Filter(True, "*/duemq/wheel/*.py")]

    @contextmanager
    def around(self, call: str, messages: int = 0) -> Iterator[None]:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        yield
        self.beside = max(self.beside, tracemalloc.get_traced_memory()[1] - before)

    def read(self) -> None:
        snapshot = tracemalloc.take_snapshot().filter_traces(self._own)
        self.wheel_bytes = max(self.wheel_bytes, sum(trace.size for trace in snapshot.traces))


def wheel(screen: ProgressScreen, *, count: int, tick_ms: int = 100) -> ScenarioOutcome:
    """Add `count` messages that are due within 30 minutes to the wheel, and deliver them as time passes. As many
    messages are added for the next 30 minutes, so `count` are pending all the time. The run is made twice: first the
    time is measured, then all allocations are traced.

    `tick_ms`: how often the wheel is asked for due messages, which determines how many are due at a time.
    """
    clock, scales = _Clock(), _Scales()
    with screen.phase("wheel, by the clock", 2 * count) as advance:
        wrong = _play(count, tick_ms, clock, advance)
    tracemalloc.start()
    try:
        with screen.phase("wheel, weighed", 2 * count) as advance:
            wrong += _play(count, tick_ms, scales, advance)
    finally:
        tracemalloc.stop()
    each = {call: clock.ns[call] / max(clock.messages[call], 1) for call in clock.ns}
    per_call = {call: clock.ns[call] / 1000 / max(clock.calls[call], 1) for call in clock.ns}
    return ScenarioOutcome((
        Figure("held_kib", "memory held, at most", scales.wheel_bytes / _KIB, "KiB"),
        Figure("held_b", "  per message pending", scales.wheel_bytes / count, "B"),
        Figure("beside_kib", "additional memory during one call, at most", scales.beside / _KIB, "KiB"),
        Figure("add_ns", "count in, per message", each["add"], "ns"),
        Figure("expand_ns", "expand a slot, per message and level", each["expand"], "ns"),
        Figure("take_ns", "count out and verify, per message", each["take"], "ns"),
        Figure("due_us", "ask what is due", per_call["due"], "us"),
        Figure("next_us", "ask which slot to expand next", per_call["next"], "us"),
        vital("wrong", "ticks at which it counted other than the store", wrong),
    ))  # fmt: skip


def _play(count: int, tick_ms: int, gauge: _Clock | _Scales, advance: Advance) -> int:
    """Make one run; return how often the wheel was wrong about due messages."""
    random = np.random.default_rng(1)
    store, wheel = _Store(), Wheel()
    per_tick = max(count * tick_ms // _WINDOW_MS, 1)
    ticks = range(_START_MS, _START_MS + _WINDOW_MS, tick_ms)
    for number, now in enumerate(ticks):  # the half hour before the messages are due
        dues = now + random.integers(0, tick_ms, per_tick)
        store.add(dues)
        with gauge.around("add", per_tick):
            wheel.add(dues)
        advance(number * per_tick)
        if number % _LOOK_EVERY == 0:
            gauge.read()
    wrong = 0
    for number, now in enumerate(ticks):
        dues = now + _WINDOW_MS + random.integers(0, tick_ms, per_tick)
        store.add(dues)
        with gauge.around("add", per_tick):
            wheel.add(dues)
        _expand(wheel, store, now + tick_ms - 1, gauge)
        if number % _LOOK_EVERY == 0:
            gauge.read()
        rows = store.rows(now, now + tick_ms)
        with gauge.around("due"):
            due = wheel.due(now + tick_ms - 1)
        wrong += due != len(rows)
        with gauge.around("take", len(rows)):
            wheel.take(rows, now + tick_ms)
        advance((len(ticks) + number) * per_tick)
    return wrong


def _expand(wheel: Wheel, store: _Store, now: int, gauge: _Clock | _Scales) -> None:
    while True:
        with gauge.around("next"):
            slot = wheel.expandable(now)
        if slot is None:
            return
        rows = store.rows(slot.start, slot.end)
        with gauge.around("expand", len(rows)):
            expansion = wheel.begin(slot)
            for first in range(0, len(rows), 2_000):  # in parts, as the shard does it
                expansion.feed(rows[first : first + 2_000])
            expansion.finish()
