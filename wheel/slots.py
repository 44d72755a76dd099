"""Levels of the wheel, and the slot that a caller must read next."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Dues = npt.NDArray[np.int64]
"""Due times, shape (n,), epoch ms, in any order; repeated values are allowed."""


class Level(IntEnum):
    """Length of a level's slots, ms. Each length divides the next one, so that slots nest."""

    MILLISECOND = 1
    SECOND = 1_000
    MINUTE = 60_000
    WINDOW = 1_800_000


COARSER = {Level.MILLISECOND: Level.SECOND, Level.SECOND: Level.MINUTE, Level.MINUTE: Level.WINDOW}
FINER = {coarser: level for level, coarser in COARSER.items()}


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot: the interval [start, end) at one level, epoch ms, and the number of rows counted in it."""

    start: int
    level: Level
    count: int

    @property
    def length(self) -> int:
        """Length, ms."""
        return int(self.level)

    @property
    def end(self) -> int:
        """First ms after the slot."""
        return self.start + self.level


@dataclass(frozen=True, slots=True)
class Leads:
    """How long before its start a slot of each level must be expanded, ms.

    A lead leaves time to read every key of the slot: 18,000,000 in a full window and 600,000 in a full minute at 10,000
    messages/s.
    """

    window: int = 60_000
    minute: int = 10_000
    second: int = 3_000
