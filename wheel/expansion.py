"""Reads one slot's rows into its finer slots, in parts, while adds and removes continue."""

from duemq.wheel.block import Block
from duemq.wheel.count_mismatch import CountMismatch
from duemq.wheel.slots import Dues, Slot


class Expansion:
    """A running expansion, made by `Wheel.begin` at the moment the store's snapshot is taken.

    slot: what to read; every pending row of the snapshot with start <= due < end must be fed once.
    expected: rows counted in the slot at that moment.
    fed_rows: rows read so far.

    Adds and removes during the expansion go straight to the finer slots, so they must not be in the snapshot.
    """

    def __init__(self, slot: Slot, block: Block) -> None:
        self.slot = slot
        self.fed_rows = 0
        self._block = block

    @property
    def expected(self) -> int:
        return self.slot.count

    def feed(self, dues: Dues) -> None:
        """Adds rows read, shape (n,), epoch ms. A due outside the slot is a ValueError."""
        _, counts = self._block.tally(dues)
        self._block.change(counts, 1)
        self.fed_rows += len(dues)

    def finish(self) -> None:
        """Ends the expansion; CountMismatch if the snapshot held more or fewer rows than were counted."""
        slot, block = self.slot, self._block
        if self.fed_rows != slot.count:
            raise CountMismatch(slot.start, slot.level, expected=slot.count, left=slot.count - self.fed_rows)
        lowest = int(block.counts.argmin())
        if block.cells[lowest] < 0:  # the total is right, but a removed row never existed
            raise CountMismatch(block.slot_start(lowest), block.level, expected=0, left=block.cells[lowest])
        block.running = False
