"""Watermarks for the use of the data disk, in percent, and the measure taken at each.

They follow other brokers: RocketMQ deletes ahead of schedule at 75 % (`diskMaxUsedSpaceRatio`) and by force at 85 %,
Elasticsearch makes indexes read-only at its flood stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from duemq.model.disk_use import DiskUse

_BELOW = 1.0  # a level ends this many percent below its mark, so that it does not flap


class Watermark(IntEnum):
    """The highest mark reached."""

    FREE = 0
    CLEAN = 1  # forgotten history is dropped at once, ahead of schedule
    SHORTEN = 2  # history is kept no longer than necessary
    REFUSE = 3  # new messages are refused


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Marks in percent of the disk. If less than `min_free_bytes` is free, the level is REFUSE, whatever the disk's
    size."""

    clean: float = 75
    shorten: float = 85
    refuse: float = 90
    min_free_bytes: int = 256 << 20

    def level(self, disk: DiskUse, before: Watermark) -> Watermark:
        """The level for this use of the disk. `before`: the previous level, which ends only slightly below its mark."""
        if disk.free < self.min_free_bytes:
            return Watermark.REFUSE
        marks = {Watermark.REFUSE: self.refuse, Watermark.SHORTEN: self.shorten, Watermark.CLEAN: self.clean}
        for level, mark in marks.items():
            if disk.percent >= (mark - _BELOW if before >= level else mark):
                return level
        return Watermark.FREE

    def why_full(self, folder: object, disk: DiskUse) -> str:
        """The reason for refusing new messages, shown to their senders."""
        if disk.free < self.min_free_bytes:
            least = self.min_free_bytes >> 20
            return (
                f"the disk of {folder} has {disk.free >> 20} MiB free, new messages need {least} MiB "
                "(storage.min_free_bytes)"
            )
        return (
            f"the disk of {folder} is {disk.percent:.1f} % full: at {self.refuse:g} % (storage.refuse_percent) new "
            f"messages are refused, until it is below {self.refuse - _BELOW:g} %"
        )


NEVER = Watermarks(101, 101, 101, 0)
"""Marks for nodes that must ignore how full the disk is."""
