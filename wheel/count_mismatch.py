"""The wheel's error: its counts differ from the store's rows."""

from duemq.model.errors import Fatal
from duemq.wheel.slots import Level


class CountMismatch(Fatal):
    """The wheel's count differs from the number of stored rows: the store lost or gained rows silently. Stop the shard.

    start: first ms of the slot.
    level: length of the slot.
    expected: rows that the wheel had counted in the slot.
    left: `expected` minus the rows that the store returned; negative if the store returned more rows than were counted.

    Discard the wheel that raised it, and build another one from the store.
    """

    def __init__(self, start: int, level: Level, *, expected: int, left: int) -> None:
        outcome = f"{left} of them are missing from the store" if left > 0 else f"the store gave {-left} more"
        super().__init__(f"{level.name.lower()} slot at {start} ms: {expected} rows were counted, {outcome}")
        self.start = start
        self.level = level
        self.expected = expected
        self.left = left
