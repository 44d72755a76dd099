"""The files that a shard is asked to import, ordered by what decides about them. Pure.

A cycle asks for what can be decided just now. That costs as much as there is to decide, however many files wait.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import takewhile

from duemq.model.log.ledger import FileDecision
from duemq.model.messages.import_command import cut
from duemq.storage.imports.policy import ImportPolicy
from duemq.storage.shard.records import ImportRecord

_MAX_DECISIONS = 1_000  # files that one ledger entry speaks of,
_MAX_DECISION_BYTES = 32 << 10  # and what it says of them, which is less than the smallest limit of a log's records
_ENTRY_BYTES = 64  # of a decision without a reason


class Candidates:
    """Files by the offset of their command. Those that were decided stay until they are dropped: a cycle may fail."""

    def __init__(self, policy: ImportPolicy, why: Callable[[int], str]) -> None:
        """`why`: what a file is waiting for, in a few words; may be empty."""
        self._policy, self._why = policy, why
        self._windows: dict[int, int] = {}
        self._by_window: list[tuple[int, int]] = []  # window and offset
        self._sound: dict[int, FileDecision] = {}
        self._refusals: dict[int, tuple[int, str]] = {}  # from when on (ms), and the reason
        self._by_time: list[tuple[int, int]] = []  # from when on, and offset

    def __len__(self) -> int:
        return len(self._windows)

    def take(self, records: dict[int, ImportRecord]) -> list[ImportRecord]:
        """Note new files: the last ones of `records`, which are in the order of the log."""
        windows = self._windows
        new_records = list(takewhile(lambda record: record.offset not in windows, reversed(records.values())))[::-1]
        for record in new_records:
            windows[record.offset] = record.import_command.window
            insort(self._by_window, (record.import_command.window, record.offset))
        return new_records

    def import_file(self, offset: int, rows: int, checksum: int) -> None:
        """Note that the file is sound, and on as many replicas as it has to be."""
        self.wait(offset)
        self._sound[offset] = FileDecision(offset, rows, checksum)

    def refuse(self, offset: int, reason: str, after: int) -> None:
        """Note that the file cannot be imported, unless something else is said of it until `after` (ms)."""
        self.wait(offset)
        self._refusals[offset] = after, reason
        insort(self._by_time, (after, offset))

    def wait(self, offset: int) -> None:
        """Note that nothing can be said of the file yet but that its time may run out."""
        self._sound.pop(offset, None)
        if (refusal := self._refusals.pop(offset, None)) is not None:
            del self._by_time[bisect_left(self._by_time, (refusal[0], offset))]

    def drop(self, offset: int) -> None:
        self.wait(offset)
        if (window := self._windows.pop(offset, None)) is not None:
            del self._by_window[bisect_left(self._by_window, (window, offset))]

    def decide(self, now: int, start: int) -> list[FileDecision]:
        """What can be said at `now`. Windows must begin at `start` (ms) or later. As much as one entry may hold."""
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
        """What time says comes first: a file is not imported when its window is near."""
        policy, latest = self._policy, now + self._policy.furthest_ms
        for _, offset in takewhile(lambda one: one[0] < start, self._by_window):
            why = self._why(offset)
            yield FileDecision(offset, 0, 0, cut(f"{policy.too_near} ({why})" if why else policy.too_near))
        for _, offset in takewhile(lambda one: one[0] > latest, reversed(self._by_window)):
            yield FileDecision(offset, 0, 0, policy.too_far)
        yield from self._sound.values()
        for _, offset in takewhile(lambda one: one[0] < now, self._by_time):
            yield FileDecision(offset, 0, 0, cut(self._refusals[offset][1]))
