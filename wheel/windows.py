"""The coarsest level: totals of the 30-minute windows, sparse and without a limit in time."""

from bisect import bisect_left, insort
from collections.abc import Container, Mapping

from duemq.wheel.count_mismatch import CountMismatch
from duemq.wheel.slots import Level

_FEW = 16


class Windows:
    """Remaining rows per window, expanded or not.

    expanded: starts of the windows whose rows are counted in finer slots; the wheel maintains it.
    waiting: sorted starts of the other non-empty windows, which are counted as a whole.
    touched: starts of the windows whose total has changed since the set was last taken.
    """

    def __init__(self, expanded: Container[int], totals: Mapping[int, int]) -> None:
        for start, total in totals.items():
            if start % Level.WINDOW or total < 0:
                raise ValueError(f"not a window total: {total} rows at {start} ms")
        self._expanded = expanded
        self.totals = {start: total for start, total in totals.items() if total}
        self.waiting = sorted(self.totals)
        self.touched: set[int] = set()

    def change_one(self, start: int, step: int) -> None:
        """Adds `step` rows to the window. CountMismatch below zero."""
        before = self.totals.get(start, 0)
        after = before + step
        if after < 0:
            raise CountMismatch(start, Level.WINDOW, expected=before, left=after)
        self.touched.add(start)
        if after:
            self.totals[start] = after
            if not before and start not in self._expanded:
                insort(self.waiting, start)
        else:
            del self.totals[start]
            if start not in self._expanded:
                self.hide(start)

    def change(self, starts: list[int], counts: list[int], step: int) -> None:
        """Adds `step` times the counts to distinct windows. CountMismatch below zero."""
        if len(starts) < _FEW:
            for start, count in zip(starts, counts, strict=True):
                self.change_one(start, step * count)
            return
        totals = self.totals
        new_starts: list[int] = []
        empty_starts: list[int] = []
        for start, count in zip(starts, counts, strict=True):
            before = totals.get(start, 0)
            after = before + step * count
            if after < 0:
                raise CountMismatch(start, Level.WINDOW, expected=before, left=after)
            totals[start] = after
            if not before:
                new_starts.append(start)
            elif not after:
                empty_starts.append(start)
        self.touched.update(starts)
        if new_starts:
            self.waiting.extend(start for start in new_starts if start not in self._expanded)
            self.waiting.sort()
        if empty_starts:
            for start in empty_starts:
                del totals[start]
            self.waiting = [start for start in self.waiting if start in totals]

    def show(self, start: int) -> None:
        """Records that the window is no longer expanded."""
        if start in self.totals:
            insort(self.waiting, start)

    def hide(self, start: int) -> None:
        """Records that the window is expanded, or has become empty."""
        index = bisect_left(self.waiting, start)
        if index < len(self.waiting) and self.waiting[index] == start:
            del self.waiting[index]
