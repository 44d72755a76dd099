"""How full a file system is."""

from __future__ import annotations

from typing import NamedTuple


class DiskUse(NamedTuple):
    """The use of a file system, in bytes. `free`: available to this process. Space reserved for root is neither used
    nor free."""

    used: int
    free: int

    @property
    def percent(self) -> float:
        """The used share as `df` computes it; `df` rounds it up."""
        whole = self.used + self.free
        return 100 * self.used / whole if whole else 0.0
