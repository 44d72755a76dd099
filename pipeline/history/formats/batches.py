"""Which batches a folder holds, by its name."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"batch=(\d+)(?:-(\d+))?")
_DIGITS: Final = 10


class BatchFolder(NamedTuple):
    """A folder of the table, with all rows of the batches `first` to `last`."""

    first: int
    last: int

    @property
    def name(self) -> str:
        first, last = (f"{number:0{_DIGITS}d}" for number in self)
        return f"batch={first}" if self.first == self.last else f"batch={first}-{last}"


def named(name: str) -> BatchFolder | None:
    """What the folder of this name holds; None for a folder of another kind."""
    match = _NAME.fullmatch(name)
    return BatchFolder(int(match[1]), int(match[2] or match[1])) if match else None


def standing(folders: Iterable[BatchFolder]) -> list[BatchFolder]:
    """Folders, in order, that no other one holds as well: a merged folder counts in place of those it was made of."""
    survivors: list[BatchFolder] = []
    end = -1
    for one in sorted(folders, key=lambda one: (one.first, -one.last)):
        if one.last > end:
            survivors.append(one)
            end = one.last
    return survivors


def holds(folders: Sequence[BatchFolder], number: int) -> bool:
    """Whether a batch is in one of the folders, which are as `standing` gives them."""
    at = bisect_right(folders, number, key=lambda one: one.first)
    return at > 0 and number <= folders[at - 1].last
