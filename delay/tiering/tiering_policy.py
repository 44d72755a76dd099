"""Which windows of a shard are sealed into delay files, rewritten, and loaded, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from duemq.model.timing import WINDOW_MS, window_of
from duemq.storage.delay_files.catalog import DelayFileCatalog

_MAX_WINDOWS = 64
_MAX_ROWS = 2_000_000  # about ten seconds of sealing
_GROWN = 1.01  # a window that has so many times the messages it had still grows


@dataclass(frozen=True, slots=True)
class TieringPolicy:
    """What is sealed, and when it comes back.

    `rows`: windows with fewer messages in RocksDB stay there. `windows`: how many windows ahead of now are never
    sealed. `ahead_ms`: how long before its start a window is loaded. `settle_ms`: how long hardly any messages have to
    have come for a window before it is sealed. `rewrite_share`: the share of cancelled and moved messages in the files
    of a window from which on these are rewritten, unless they are fewer than `rewrite_rows`.
    """

    rows: int = 5_000
    windows: int = 2
    ahead_ms: int = 600_000
    settle_ms: int = 10_000
    rewrite_share: float = 0.5
    rewrite_rows: int = 1_000

    def worth_it(self, delay_files: DelayFileCatalog, totals: Mapping[int, int], now: int) -> dict[int, int]:
        """The far windows with messages enough out of files, and how many. `totals`: pending per window."""
        nearest, least, pending, loading = self._nearest(now), self.rows, delay_files.pending, delay_files.loading
        return {
            window: count - file_rows
            for window, count in totals.items()
            # A small file beside a large one would cost each look-up in the window.
            if count >= least
            and window >= nearest
            and count - (file_rows := pending(window)) >= max(least, file_rows // 4)
            # Where an earlier load was cut short, rows may be in both places (and the clock went back since).
            and window not in loading
        }

    def to_load(self, delay_files: DelayFileCatalog, now: int) -> list[int]:
        """The earliest windows that near, as many as are loaded together."""
        if delay_files.first is None or delay_files.first - self.ahead_ms > now:
            return []
        near = [window for window in delay_files.windows() if window - self.ahead_ms <= now]
        return _together(near, delay_files.pending)

    def to_rewrite(self, delay_files: DelayFileCatalog, now: int) -> list[int]:
        """Windows whose files hold little that is pending: those with nothing left, or others."""
        nearest = self._nearest(now)
        dead = [
            window
            for window, drop_count in delay_files.drop_counts().items()
            if window >= nearest
            and drop_count >= max(delay_files.rows(window) * self.rewrite_share, 1)
            and window not in delay_files.loading
        ]
        empty = [window for window in dead if delay_files.pending(window) == 0]
        return _together(
            sorted(empty or (window for window in dead if delay_files.drop_count(window) >= self.rewrite_rows)),
            delay_files.rows,
        )

    def _nearest(self, now: int) -> int:
        return window_of(now) + (self.windows + 1) * WINDOW_MS


class SettleTracker:
    """Finds the windows that do not grow any more."""

    def __init__(self, settle_ms: int) -> None:
        self._settle_ms = settle_ms
        # By window: how many messages are growth, and since when they were fewer.
        self._thresholds: dict[int, tuple[float, int]] = {}

    def among(self, counts: Mapping[int, int], now: int) -> list[int]:
        """Those of the windows with so many messages that do not grow: the earliest, as many as are sealed together."""
        before = self._thresholds
        self._thresholds = {
            window: threshold
            if (threshold := before.get(window)) is not None and count <= threshold[0]
            else (count * _GROWN, now)
            for window, count in counts.items()
        }
        latest = now - self._settle_ms
        return _together(
            sorted(window for window, (_, since) in self._thresholds.items() if since <= latest), counts.__getitem__
        )

    def forget(self, window: int) -> None:
        """Watch a window afresh, for it has grown."""
        self._thresholds.pop(window, None)


def _together(windows: Iterable[int], rows_of: Callable[[int], int]) -> list[int]:
    """The first windows, up to a number of windows and of rows that one run can do, but one at least."""
    chosen: list[int] = []
    rows = 0
    for window in windows:
        rows += rows_of(window)
        if chosen and (len(chosen) == _MAX_WINDOWS or rows > _MAX_ROWS):
            break
        chosen.append(window)
    return chosen


def runs_of(windows: Iterable[int]) -> list[tuple[int, int]]:
    """Neighbouring windows together: the start of the first and the end of the last one (ms)."""
    runs: list[tuple[int, int]] = []
    for window in sorted(windows):
        if runs and runs[-1][1] == window:
            runs[-1] = (runs[-1][0], window + WINDOW_MS)
        else:
            runs.append((window, window + WINDOW_MS))
    return runs
