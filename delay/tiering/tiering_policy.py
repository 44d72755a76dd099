"""Decides which windows of a shard are sealed into delay files, rewritten, joined or loaded, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from duemq.model.timing import WINDOW_MS, window_of
from duemq.storage.delay_files.catalog import CatalogFile, DelayFileCatalog

_MAX_WINDOWS = 64
_MAX_ROWS = 2_000_000  # sealing them takes about ten seconds
_JOIN_TOGETHER = 64  # files that are open at a time, each with a row group of up to 4 MiB in memory
_JOIN_BYTES = 64 << 20  # the most bytes that are joined into one file
_SMALL_BYTES = 1 << 20
_GROWN = 1.01  # a window counts as growing while its number of messages increases by at least this factor


@dataclass(frozen=True, slots=True)
class TieringPolicy:
    """When windows are sealed, and when they are loaded.

    `rows`: a window with fewer messages in RocksDB is not sealed. `windows`: how many windows after the current one are
    never sealed. `ahead_ms`: how long before its start a window is loaded. `quiet_ms`: a window is sealed once it has
    received hardly any messages for this time. `rewrite_share`: a window's files are rewritten once this share of their
    messages was cancelled or moved, unless these are fewer than `rewrite_rows`. `join_files`: how many small files a
    window must have before they are joined; `join_ms`: how long it must have received no new file before that.
    `merge_files`: if a window has more files, some are joined before it is loaded or rewritten.
    """

    rows: int = 5_000
    windows: int = 2
    ahead_ms: int = 600_000
    quiet_ms: int = 10_000
    rewrite_share: float = 0.5
    rewrite_rows: int = 1_000
    join_files: int = 16
    join_ms: int = 600_000
    merge_files: int = 512

    def worth_it(self, delay_files: DelayFileCatalog, totals: Mapping[int, int], now: int) -> dict[int, int]:
        """The far windows that have enough messages outside of files, with the number of these messages. `totals`:
        pending messages per window."""
        nearest, least, pending, loading = self._nearest(now), self.rows, delay_files.pending, delay_files.loading
        return {
            window: count - file_rows
            for window, count in totals.items()
            # A small file next to a large one would slow down each lookup in the window.
            if count >= least
            and window >= nearest
            and count - (file_rows := pending(window)) >= max(least, file_rows // 4)
            # After an interrupted load, rows may be both in RocksDB and in files (if the clock has gone back since).
            and window not in loading
        }

    def to_load(self, delay_files: DelayFileCatalog, now: int) -> list[int]:
        """The earliest windows that must be loaded now, as many as are loaded together."""
        if delay_files.first is None or delay_files.first - self.ahead_ms > now:
            return []
        near = [window for window in delay_files.windows() if window - self.ahead_ms <= now]
        return _together(near, delay_files.pending)

    def to_rewrite(self, delay_files: DelayFileCatalog, now: int) -> list[int]:
        """Windows whose files have few pending messages left. If some have none at all, only these are returned."""
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

    def worth_joining(self, delay_files: DelayFileCatalog, now: int) -> dict[int, int]:
        """The far windows with many files, and the number of files in each."""
        nearest = self._nearest(now)
        return {
            window: count
            for window, count in delay_files.file_counts(self.join_files).items()
            if window >= nearest and window not in delay_files.loading
        }

    def crowded(self, delay_files: DelayFileCatalog, windows: Iterable[int]) -> list[int]:
        """Those of the windows that have too many files to read at once."""
        return [window for window in windows if len(delay_files.of(window)) > self.merge_files]

    def joins(self, files: Sequence[tuple[int, CatalogFile]], *, crowded: bool) -> list[list[CatalogFile]]:
        """Which of a window's files to join, as groups. `files`: with sizes in bytes.

        Joins the small files. A larger file is joined only if the smaller ones together have at least its size, so that
        each message is rewritten only a few times. In a crowded window, the smallest files are joined: enough of them
        to get below the limit."""
        ascending = sorted(files, key=itemgetter(0))
        small: list[CatalogFile] = []
        if crowded:
            excess = len(files) - self.merge_files
            small = [file for _, file in ascending[: excess + excess // 32 + 2]]
        else:
            total = 0
            for size, file in ascending:
                if size > max(total, _SMALL_BYTES) or total + size > _JOIN_BYTES:
                    break
                small.append(file)
                total += size
            if len(small) < self.join_files:
                return []
        count = -(-len(small) // _JOIN_TOGETHER)
        return [small[len(small) * at // count : len(small) * (at + 1) // count] for at in range(count)]

    def _nearest(self, now: int) -> int:
        return window_of(now) + (self.windows + 1) * WINDOW_MS


class QuietWindows:
    """Finds windows that have stopped growing."""

    def __init__(self, quiet_ms: int) -> None:
        self._quiet_ms = quiet_ms
        # By window: the number of messages above which the window has grown, and the time (ms) since which it has not.
        self._thresholds: dict[int, tuple[float, int]] = {}

    def among(self, counts: Mapping[int, int], now: int) -> list[int]:
        """Those windows that have stopped growing: the earliest ones, as many as are sealed together. `counts`: the
        number of messages by window."""
        before = self._thresholds
        self._thresholds = {
            window: threshold
            if (threshold := before.get(window)) is not None and count <= threshold[0]
            else (count * _GROWN, now)
            for window, count in counts.items()
        }
        latest = now - self._quiet_ms
        return _together(
            sorted(window for window, (_, since) in self._thresholds.items() if since <= latest), counts.__getitem__
        )

    def forget(self, window: int) -> None:
        """Watch a window from the start again, because it has grown."""
        self._thresholds.pop(window, None)


def _together(windows: Iterable[int], rows_of: Callable[[int], int]) -> list[int]:
    """The first windows, as many (in windows and rows) as one run can handle, but at least one."""
    chosen: list[int] = []
    rows = 0
    for window in windows:
        rows += rows_of(window)
        if chosen and (len(chosen) == _MAX_WINDOWS or rows > _MAX_ROWS):
            break
        chosen.append(window)
    return chosen


def runs_of(windows: Iterable[int]) -> list[tuple[int, int]]:
    """Merge adjacent windows into runs: the start of the first window and the end of the last one (ms)."""
    runs: list[tuple[int, int]] = []
    for window in sorted(windows):
        if runs and runs[-1][1] == window:
            runs[-1] = (runs[-1][0], window + WINDOW_MS)
        else:
            runs.append((window, window + WINDOW_MS))
    return runs
