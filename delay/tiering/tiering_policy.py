"""Decides which windows of a shard are sealed into delay files, rewritten, joined or loaded, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from duemq.model.timing import WINDOW_MS, window_of
from duemq.storage.delay_files.catalog import CatalogFile, DelayFileCatalog

_MAX_WINDOWS = 64
_MAX_ROWS = 2_000_000  # about ten seconds of sealing
_JOIN_TOGETHER = 64  # files open at a time, each with a row group of up to 4 MiB
_JOIN_BYTES = 64 << 20  # of files joined into one
_SMALL_BYTES = 1 << 20
_GROWN = 1.01  # a window grows while its messages increase by at least this factor


@dataclass(frozen=True, slots=True)
class TieringPolicy:
    """When windows are sealed, and when they are loaded.

    `rows`: windows with fewer messages in RocksDB stay there. `windows`: how many windows ahead of now are never
    sealed. `ahead_ms`: how long before its start a window is loaded. `quiet_ms`: how long a window must get hardly any
    messages before it is sealed. `rewrite_share`: the files of a window are rewritten from this share of cancelled and
    moved messages on, unless they are fewer than `rewrite_rows`. `join_files`: how many small files of a window are
    joined, `join_ms`: how long it must get no new file before that. `merge_files`: if a window has more files, some are
    joined before it is loaded or rewritten.
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
        """The far windows with enough messages outside of files, and their number. `totals`: pending per window."""
        nearest, least, pending, loading = self._nearest(now), self.rows, delay_files.pending, delay_files.loading
        return {
            window: count - file_rows
            for window, count in totals.items()
            # A small file next to a large one would slow down each lookup in the window.
            if count >= least
            and window >= nearest
            and count - (file_rows := pending(window)) >= max(least, file_rows // 4)
            # After an interrupted load, rows may be in both places (if the clock went back since).
            and window not in loading
        }

    def to_load(self, delay_files: DelayFileCatalog, now: int) -> list[int]:
        """The earliest near windows, as many as are loaded together."""
        if delay_files.first is None or delay_files.first - self.ahead_ms > now:
            return []
        near = [window for window in delay_files.windows() if window - self.ahead_ms <= now]
        return _together(near, delay_files.pending)

    def to_rewrite(self, delay_files: DelayFileCatalog, now: int) -> list[int]:
        """Windows whose files have few pending messages: either those without any, or others."""
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
        """The far windows with many files, and their number."""
        nearest = self._nearest(now)
        return {
            window: count
            for window, count in delay_files.file_counts(self.join_files).items()
            if window >= nearest and window not in delay_files.loading
        }

    def crowded(self, delay_files: DelayFileCatalog, windows: Iterable[int]) -> list[int]:
        """Those of the windows that have too many files to read them at once."""
        return [window for window in windows if len(delay_files.of(window)) > self.merge_files]

    def joins(self, files: Sequence[tuple[int, CatalogFile]], *, crowded: bool) -> list[list[CatalogFile]]:
        """Which of a window's files, given with sizes (bytes), to join: small ones, and larger ones only with at least
        as many bytes again, so that a message is rewritten few times. In a crowded window, all files above the
        limit."""
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
        # By window: the message count that means growth, and since when it was not reached.
        self._thresholds: dict[int, tuple[float, int]] = {}

    def among(self, counts: Mapping[int, int], now: int) -> list[int]:
        """The windows, given with message counts, that have stopped growing: the earliest, as many as are sealed
        together."""
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
    """The first windows, as many (in windows and rows) as one run can do, but at least one."""
    chosen: list[int] = []
    rows = 0
    for window in windows:
        rows += rows_of(window)
        if chosen and (len(chosen) == _MAX_WINDOWS or rows > _MAX_ROWS):
            break
        chosen.append(window)
    return chosen


def runs_of(windows: Iterable[int]) -> list[tuple[int, int]]:
    """Merge adjacent windows: the start of the first and the end of the last one (ms)."""
    runs: list[tuple[int, int]] = []
    for window in sorted(windows):
        if runs and runs[-1][1] == window:
            runs[-1] = (runs[-1][0], window + WINDOW_MS)
        else:
            runs.append((window, window + WINDOW_MS))
    return runs
