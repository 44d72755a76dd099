"""One expanded slot: the counts of its finer slots."""

from array import array

import numpy as np

from duemq.wheel.count_mismatch import CountMismatch
from duemq.wheel.slots import COARSER, Dues, Level


class Block:
    """Counts of the finer slots that one coarser slot, [start, end), was expanded into.

    level: the level of the finer slots.
    total: sum of the counts.
    running: the slot's rows are still being read into the block. Until they all are, a count may be negative, because a
        row may be removed before the reader adds it.
    """

    __slots__ = ("_low", "cells", "counts", "end", "length", "level", "running", "start", "total")

    def __init__(self, start: int, level: Level, *, running: bool = False) -> None:
        span = int(COARSER[level])
        self.start = start
        self.end = start + span
        self.level = level
        self.length = int(level)
        # Two views of the same memory: numpy for batches, array for single items, with which numpy is several times
        # slower.
        self.cells = array("q", bytes(8 * (span // self.length)))
        self.counts = np.frombuffer(self.cells, np.int64)
        self.total = 0
        self.running = running
        self._low = 0  # no slot before this one holds rows

    def tally(self, dues: Dues) -> tuple[Dues, Dues]:
        """Slot index of each due time (n,), and rows per slot (slots,). ValueError for a due time outside the block."""
        index = (dues - self.start) // self.length
        counts = np.bincount(index, minlength=len(self.cells))
        if len(counts) > len(self.cells):
            raise ValueError(f"due outside [{self.start}, {self.end})")
        return index, counts

    def change(self, counts: Dues, step: int) -> None:
        """Adds `step` times the counts, shape (slots,). CountMismatch if a slot would go below zero."""
        after = self.counts + step * counts
        if step < 0 and not self.running:
            lowest = int(after.argmin())
            if after[lowest] < 0:
                raise self.mismatch(lowest, left=int(after[lowest]))
        self.counts[:] = after
        self._low = min(self._low, int((counts != 0).argmax()))
        self.total += step * int(counts.sum())

    def change_one(self, due: int, step: int) -> None:
        """`change` for a single row."""
        index = (due - self.start) // self.length
        after = self.cells[index] + step
        if after < 0 and not self.running:
            raise self.mismatch(index, left=after)
        self.cells[index] = after
        self.total += step
        if index < self._low:
            self._low = index

    def before(self, end: int) -> int:
        """The number of slots that end at or before `end`, from none to all."""
        return min(max(end - self.start, 0) // self.length, len(self.cells))

    def first(self) -> int | None:
        """Index of the first slot whose count is not zero."""
        cells, index, size = self.cells, self._low, len(self.cells)
        if index < size and not cells[index]:
            index += int((self.counts[index:] != 0).argmax())
            self._low = index = index if cells[index] else size
        return index if index < size else None

    def slot_start(self, index: int) -> int:
        return self.start + index * self.length

    def mismatch(self, index: int, *, left: int) -> CountMismatch:
        return CountMismatch(self.slot_start(index), self.level, expected=self.cells[index], left=left)
