"""A hierarchical timing wheel that counts.

The store keeps the messages in order of due time. So the rows of any period are one contiguous range of keys, and the
wheel only has to count them. It is a second count, independent of the store: it determines when to read and how many
rows to expect. If the store returns another number of rows, the wheel raises `CountMismatch`.

Levels nest as in hierarchical timing wheels (Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987):
slots of 1 ms, 1 s and 1 min, and windows of 30 min without a limit in time. Here they form a trie of counts:

    windows   {start: rows}           every window that has rows
    minutes   {window: Block of 30}   for the few windows that are expanded
    seconds   {minute: Block of 60}   for the few expanded minutes in those windows
    ms        {second: Block of 1000} for the few expanded seconds in those minutes

A due time is counted only in the finest block that covers it. A slot is expanded into the next finer level shortly
before its time, by reading the keys in its range from the store; an empty slot needs no reading. Blocks before the
cursor are dropped once they are empty, so the blocks in memory are few and take at most 8 KB each, whatever the number
of messages.

Pure: no clock and no IO. All times are epoch ms, all batches int64 arrays.
"""

from collections.abc import Iterable, Mapping
from typing import Self

from duemq.wheel.count_mismatch import CountMismatch
from duemq.wheel.expansion import Expansion
from duemq.wheel.slots import FINER, Dues, Leads, Level, Slot
from duemq.wheel.trie import Trie

# A block that ended this many of its spans ago is folded, so that a long backlog does not take 8 KB per second.
_FOLD_SPANS = 16
_DEFAULT_LEADS = Leads()


class Wheel:
    """Pending rows per slot. After a `CountMismatch`, build another wheel from the store."""

    def __init__(self) -> None:
        self._trie = Trie({})
        self._windows = self._trie.windows
        self._total = 0
        # `expandable`, called with these leads, has nothing to do while `now` is in this interval (ms).
        self._expanded = (0, 0, _DEFAULT_LEADS)

    @classmethod
    def restore(cls, windows: Mapping[int, int]) -> Self:
        """A wheel with the given number of rows per window start, as `window_totals` returns them. Nothing is expanded.

        Raises ValueError for a time that is not the start of a window, and for a negative total.
        """
        wheel = cls()
        wheel._trie = Trie(windows)
        wheel._windows = wheel._trie.windows
        wheel._total = sum(windows.values())
        return wheel

    @property
    def total(self) -> int:
        """The number of rows counted, whatever their due time."""
        return self._total

    @property
    def touched_windows(self) -> frozenset[int]:
        """Starts of the windows whose total has changed since the last `take_touched_windows`."""
        return frozenset(self._windows.touched)

    def take_touched_windows(self) -> set[int]:
        """Returns `touched_windows` and clears it."""
        starts, self._windows.touched = self._windows.touched, set()
        return starts

    def window_totals(self, starts: Iterable[int]) -> dict[int, int]:
        """Rows left in each of the given windows, expanded or not. An empty window has 0."""
        totals = self._windows.totals
        return {start: totals.get(start, 0) for start in starts}

    def all_totals(self) -> Mapping[int, int]:
        """Rows left in each window that is not empty, by the window's start."""
        return self._windows.totals

    def add(self, dues: Dues) -> None:
        """Counts rows in, by their due times, shape (n,)."""
        self._change(dues, 1)

    def add_window(self, start: int, rows: int) -> bool:
        """Counts rows into a whole window. Returns False, without counting, if it is expanded: call `add` instead."""
        if start in self._trie.blocks[Level.MINUTE]:
            return False
        self._windows.change([start], [rows], 1)
        self._total += rows
        return True

    def remove(self, dues: Dues) -> None:
        """Counts out cancelled, moved or delivered rows, shape (n,). CountMismatch if fewer rows were counted."""
        self._change(dues, -1)

    def take(self, dues: Dues, through: int) -> None:
        """Counts out the delivered rows, shape (n,), and advances. CountMismatch as in `remove` and `advance`.

        through: the ms that the cursor reached. Rows in that ms may remain, so a slot can be taken in parts. Once
            everything due at `now` is taken, it may be `now + 1`.
        """
        self._change(dues, -1)
        self._advance(through, dues)

    def advance(self, through: int) -> None:
        """Verifies that no rows are left in slots that end at or before the ms `through`, and drops the blocks before
        it.

        Raises CountMismatch if rows are left: they were counted and never delivered, so the store lost them. Slots at
        or after `horizon()` are left to a later call.
        """
        self._advance(through, None)

    def due(self, now: int) -> int:
        """Rows in the slots that end no later than the ms `now`, inclusive.

        Exact if the slots that contain `now` are expanded; earlier slots may be of any level. Unreliable at or after
        `horizon()`.
        """
        end = now + 1
        rows = 0
        for start in self._windows.waiting:
            if start + Level.WINDOW > end:
                break
            rows += self._windows.totals[start]
        for block in self._trie:
            if block.end <= end:
                rows += block.total
            elif block.start < end and (first := block.first()) is not None and first < (before := block.before(end)):
                rows += int(block.counts[first:before].sum())
        return rows

    def next_due(self) -> int | None:
        """Earliest ms at which rows may be due: exact if expanded to ms, else the start of the earliest slot with rows.
        None if there are no rows."""
        waiting = self._windows.waiting
        earliest = waiting[0] if waiting else None
        for block in self._trie:
            if earliest is not None and block.start >= earliest:
                continue
            if block.running:
                earliest = block.start
            elif block.total and (first := block.first()) is not None:
                start = block.slot_start(first)
                earliest = start if earliest is None else min(earliest, start)
        return earliest

    @property
    def expansion_running(self) -> bool:
        return self.horizon() is not None

    def horizon(self) -> int | None:
        """Start of the earliest slot that is being expanded, or None. Counts before it are exact."""
        return min((block.start for block in self._trie if block.running), default=None)

    def expandable(self, now: int, leads: Leads = _DEFAULT_LEADS) -> Slot | None:
        """The slot to expand next: the slot that contains `now`, else the earliest one within its level's lead.

        None if no slot needs expanding, or if a running expansion must finish first. Also adds blocks for empty slots
        and folds blocks that ended long before `now`, so call it in every cycle.
        """
        since, until, of_leads = self._expanded
        if since <= now < until and leads == of_leads:
            return None
        self._trie.fold(now, _FOLD_SPANS, self._bound(now))
        next_slot: Slot | None = None
        until = now + Level.SECOND
        for level, lead in ((Level.WINDOW, leads.window), (Level.MINUTE, leads.minute), (Level.SECOND, leads.second)):
            length = int(level)
            until = min(until, now + length - (now + lead) % length)
            finer = self._trie.blocks[FINER[level]]
            for start in range(now - now % length, now + lead + 1, length):
                if start in finer:
                    continue
                count = self._trie.count(start, level)
                if count == 0:
                    self._trie.expand(start, level, running=False)
                elif count is not None and (next_slot is None or start < next_slot.start):
                    next_slot = Slot(start, level, count)
        if next_slot is None and not self.expansion_running:
            self._expanded = (now, until, leads)
        return next_slot

    def begin(self, slot: Slot) -> Expansion:
        """Starts to expand the slot. Feed the expansion the slot's rows from a snapshot of the store taken at this
        moment.

        Several expansions may run at once if their slots do not nest. Raises ValueError for a slot that cannot be
        expanded now.
        """
        start, level = slot.start, slot.level
        count = self._trie.count(start, level) if level in FINER and start % level == 0 else None
        if count is None or start in self._trie.blocks[FINER[level]]:
            raise ValueError(f"not a slot to expand: {slot}")
        return Expansion(Slot(start, level, count), self._trie.expand(start, level, running=True))

    def _change(self, dues: Dues, step: int) -> None:
        self._trie.change(dues, step)
        self._total += step * len(dues)

    def _advance(self, through: int, dues: Dues | None) -> None:
        bound = self._bound(through)
        if (slot := self._trie.leftover(bound)) is not None:
            # The rows taken in this call were counted in their slot before it.
            taken_rows = 0 if dues is None else int(((dues >= slot.start) & (dues < slot.end)).sum())
            raise CountMismatch(slot.start, slot.level, expected=slot.count + taken_rows, left=slot.count)
        self._trie.drop(bound)

    def _bound(self, end: int) -> int:
        """The ms up to which counts are exact, at most `end`."""
        horizon = self.horizon()
        return end if horizon is None else min(end, horizon)
