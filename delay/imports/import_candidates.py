"""The requested files of a shard, ordered by the decisions that are possible for them. Pure.

A cycle asks for the current decisions. The cost depends on their number, not on the number of waiting files.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import takewhile

from duemq.model.log.ledger import FileDecision
from duemq.model.messages.import_command import cut
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.shard.records import ImportRecord

_MAX_DECISIONS = 1_000  # the most files per ledger entry
_MAX_DECISION_BYTES = 32 << 10  # the most bytes for them, below the smallest record limit of any log
_ENTRY_BYTES = 64  # the size of a decision without a reason


class Candidates:
    """Files by the offset of their command. A decided file stays until it is dropped, because a cycle may fail."""

    def __init__(self, policy: ImportPolicy, why: Callable[[int], str]) -> None:
        """`why`: returns why a file is still waiting, in a few words; may be empty."""
        self._policy, self._why = policy, why
        self._windows: dict[int, int] = {}
        self.by_window: list[tuple[int, int]] = []  # window and offset
        self._sound: dict[int, FileDecision] = {}
        self._refusals: dict[int, tuple[int, str]] = {}  # the time after which a file is refused (ms), and the reason
        self.by_time: list[tuple[int, int]] = []  # the same times, and offsets

    def __len__(self) -> int:
        return len(self._windows)

    def add_new(self, records: dict[int, ImportRecord]) -> list[ImportRecord]:
        """Add new files: the last ones of `records`, which are in log order."""
        windows = self._windows
        new_records = list(takewhile(lambda record: record.offset not in windows, reversed(records.values())))[::-1]
        for record in new_records:
            windows[record.offset] = record.import_command.window
            insort(self.by_window, (record.import_command.window, record.offset))
        return new_records

    def import_file(self, offset: int, rows: int, checksum: int) -> None:
        """Record that the file is valid, and that enough replicas have it."""
        self.wait(offset)
        self._sound[offset] = FileDecision(offset, rows, checksum)

    def refuse(self, offset: int, reason: str, after: int) -> None:
        """Record that the file cannot be imported, unless this changes before `after` (ms)."""
        self.wait(offset)
        self._refusals[offset] = after, reason
        insort(self.by_time, (after, offset))

    def wait(self, offset: int) -> None:
        """Record that the file is undecided: it is refused only if its window is too near or too far."""
        self._sound.pop(offset, None)
        if (refusal := self._refusals.pop(offset, None)) is not None:
            del self.by_time[bisect_left(self.by_time, (refusal[0], offset))]

    def drop(self, offset: int) -> None:
        self.wait(offset)
        if (window := self._windows.pop(offset, None)) is not None:
            del self.by_window[bisect_left(self.by_window, (window, offset))]

    def decide(self, now: int, start: int) -> list[FileDecision]:
        """The decisions at `now`, as many as fit into one entry. Windows must begin at `start` (ms) or later."""
        decisions: dict[int, FileDecision] = {}
        size = 0
        for decision in self._decidable(now, start):
            if decision.offset in decisions:
                continue
            size += _ENTRY_BYTES + len(decision.reason.encode())
            if len(decisions) == _MAX_DECISIONS or (decisions and size > _MAX_DECISION_BYTES):
                break
            decisions[decision.offset] = decision
        return sorted(decisions.values())

    def _decidable(self, now: int, start: int) -> Iterator[FileDecision]:
        """Refusals because of the window come first: a file is not imported if its window is too near or too far."""
        policy, latest = self._policy, now + self._policy.furthest_ms
        for _, offset in takewhile(lambda one: one[0] < start, self.by_window):
            why = self._why(offset)
            yield FileDecision(offset, 0, 0, cut(f"{policy.too_near} ({why})" if why else policy.too_near))
        for _, offset in takewhile(lambda one: one[0] > latest, reversed(self.by_window)):
            yield FileDecision(offset, 0, 0, policy.too_far)
        yield from self._sound.values()
        for _, offset in takewhile(lambda one: one[0] < now, self.by_time):
            yield FileDecision(offset, 0, 0, cut(self._refusals[offset][1]))
