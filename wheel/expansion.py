"""Reads one slot's rows into its finer slots, in parts, while rows are added and removed."""

from duemq.wheel.block import Block
from duemq.wheel.count_mismatch import CountMismatch
from duemq.wheel.slots import Dues, Slot


class Expansion:
    """A running expansion. `Wheel.begin` creates it at the moment when the store's snapshot is taken.

    slot: the slot to read; each of the snapshot's pending rows with start <= due < end must be fed exactly once.
    expected: rows counted in the slot at that moment.
    fed_rows: rows read so far.

    Rows added or removed during the expansion are counted directly in the finer slots, so the snapshot must not reflect
    them.
    """

    def __init__(self, slot: Slot, block: Block) -> None:
        self.slot = slot
        self.fed_rows = 0
        self._block = block

    @property
    def expected(self) -> int:
        return self.slot.count

    def feed(self, dues: Dues) -> None:
        """Adds the due times of rows that were read, shape (n,), epoch ms. ValueError for a due time outside the
        slot."""
        _, counts = self._block.tally(dues)
        self._block.change(counts, 1)
        self.fed_rows += len(dues)

    def finish(self) -> None:
        """Ends the expansion. CountMismatch if the snapshot contained more or fewer rows than were counted."""
        slot, block = self.slot, self._block
        if self.fed_rows != slot.count:
            raise CountMismatch(slot.start, slot.level, expected=slot.count, left=slot.count - self.fed_rows)
        lowest = int(block.counts.argmin())
        if block.cells[lowest] < 0:  # the total is right, but a row was removed that never existed
            raise CountMismatch(block.slot_start(lowest), block.level, expected=0, left=block.cells[lowest])
        block.running = False
