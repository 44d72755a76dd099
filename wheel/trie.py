"""The counts: finds the block that counts a due time, for single due times and for batches."""

from collections.abc import Iterator, Mapping
from itertools import chain

import numpy as np

from duemq.wheel.block import Block
from duemq.wheel.slots import COARSER, FINER, Dues, Level, Slot
from duemq.wheel.windows import Windows

# Up to this many items, a plain loop is faster than numpy, because numpy's calls have a fixed cost.
_FEW = 80
_WINDOW, _MINUTE, _SECOND = int(Level.WINDOW), int(Level.MINUTE), int(Level.SECOND)


class Trie:
    """Windows, and the blocks that some of their slots were expanded into.

    blocks: for each level of slots, {start: block}; the finest level first.

    A block never exists without its parent.
    """

    def __init__(self, totals: Mapping[int, int]) -> None:
        self._milliseconds: dict[int, Block] = {}
        self._seconds: dict[int, Block] = {}
        self._minutes: dict[int, Block] = {}
        self.blocks = {
            Level.MILLISECOND: self._milliseconds,
            Level.SECOND: self._seconds,
            Level.MINUTE: self._minutes,
        }
        self.windows = Windows(self._minutes, totals)

    def __iter__(self) -> Iterator[Block]:
        """All blocks, the finest level first."""
        return chain(self._milliseconds.values(), self._seconds.values(), self._minutes.values())

    def change(self, dues: Dues, step: int) -> None:
        """Adds `step` for each due time, shape (n,), to the slot that counts it. CountMismatch below zero."""
        if len(dues) <= _FEW:
            self._change_few(dues.tolist(), step)
        else:
            self._change_many(dues, step)

    def _change_few(self, dues: list[int], step: int) -> None:
        for due in dues:
            window = due - due % _WINDOW
            block = self._minutes.get(window)
            if block is not None:
                if (finer := self._seconds.get(due - due % _MINUTE)) is not None:
                    block = self._milliseconds.get(due - due % _SECOND, finer)
                block.change_one(due, step)
            self.windows.change_one(window, step)

    def _change_many(self, dues: Dues, step: int) -> None:
        numbers = dues // _WINDOW
        first, last = int(numbers.min()), int(numbers.max())
        if last - first < max(len(dues), 1024):
            counts = np.bincount(numbers - first)
            indices = counts.nonzero()[0]
            starts, counts = (indices + first) * _WINDOW, counts[indices]
        else:
            distinct, counts = np.unique(numbers, return_counts=True)
            starts = distinct * _WINDOW
        for start, block in self._minutes.items():
            number = start // _WINDOW
            if first == last == number:
                self._change_block(block, dues, step)
            elif first <= number <= last and len(inside := dues[numbers == number]):
                self._change_block(block, inside, step)
        self.windows.change(starts.tolist(), counts.tolist(), step)

    def _change_block(self, block: Block, dues: Dues, step: int) -> None:
        """Counts due times, all of them within the block, in the block or in its expanded slots."""
        index, counts = block.tally(dues)
        if block.level is not Level.MILLISECOND:
            for child in self.blocks[FINER[block.level]].values():
                slot = (child.start - block.start) // block.length
                if 0 <= slot < len(counts) and counts[slot]:
                    self._change_block(child, dues[index == slot], step)
                    counts[slot] = 0
        block.change(counts, step)

    def count(self, start: int, level: Level) -> int | None:
        """Rows in a slot that is not expanded. None if the block that counts the slot is missing or still being
        read."""
        if level is Level.WINDOW:
            return self.windows.totals.get(start, 0)
        parent = self.blocks[level].get(start - start % COARSER[level])
        if parent is None or parent.running:
            return None
        return parent.cells[(start - parent.start) // parent.length]

    def expand(self, start: int, level: Level, *, running: bool) -> Block:
        """Adds a block of zeros for the slot, and sets the slot's own count to zero."""
        if level is Level.WINDOW:
            self.windows.hide(start)
        else:
            parent = self._parent(start, level)
            parent.change_one(start, -parent.cells[(start - parent.start) // parent.length])
        block = self.blocks[FINER[level]][start] = Block(start, FINER[level], running=running)
        return block

    def fold(self, now: int, spans: int, bound: int) -> None:
        """Folds blocks that ended `spans` of their own length before `now` back into their coarser slot.

        bound: blocks that end after this ms are not folded.
        """
        for level, blocks in self.blocks.items():  # finest level first, so that no folded block has children
            latest = min(bound, now - spans * COARSER[level])
            for block in [block for block in blocks.values() if block.end <= latest]:
                del blocks[block.start]
                if level is Level.MINUTE:
                    self.windows.show(block.start)
                else:
                    self._parent(block.start, COARSER[level]).change_one(block.start, block.total)

    def drop(self, bound: int) -> None:
        """Drops the blocks that end at or before `bound`. They must be empty."""
        for block in [block for block in self if block.end <= bound]:
            del self.blocks[block.level][block.start]

    def leftover(self, bound: int) -> Slot | None:
        """A slot that ends at or before `bound` and still has rows, from the finest level with such a slot."""
        for block in self:
            if block.total and block.start < bound and (index := block.first()) is not None:
                if index < block.before(bound):
                    return Slot(block.slot_start(index), block.level, block.cells[index])
        waiting = self.windows.waiting
        if waiting and waiting[0] + _WINDOW <= bound:
            return Slot(waiting[0], Level.WINDOW, self.windows.totals[waiting[0]])
        return None

    def _parent(self, start: int, level: Level) -> Block:
        """The block that counts the slot. KeyError if there is none."""
        return self.blocks[level][start - start % COARSER[level]]
