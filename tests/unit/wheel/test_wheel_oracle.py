"""The wheel against a sorted list, over any mix of adds, removes, deliveries, expansions and time."""

from bisect import bisect_left, bisect_right
from collections import Counter

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from duemq.wheel.expansion import Expansion
from duemq.wheel.slots import Dues, Level
from duemq.wheel.wheel import Wheel

START = 1_700_000_998_000  # 2 s before the end of a window, a minute and a second
DELAY_FILE = 10 * 365 * 86_400_000

reaches = st.sampled_from([3, 1_500, 9_000, 150_000, 5_400_000, 86_400_000, DELAY_FILE])


def array(dues: list[int]) -> Dues:
    return np.array(dues, np.int64)


class WheelMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.wheel = Wheel()
        self.now = START
        self.rows: list[int] = []  # the oracle: due times of the pending rows, sorted
        self.saved: dict[int, int] = {}  # totals per window as the store would keep them
        self.expansions: list[tuple[Expansion, list[int]]] = []  # running ones, with what is left of their snapshot

    @rule(data=st.data(), reach=reaches, size=st.sampled_from([1, 3, 20, 200]), late=st.booleans())
    def add(self, data: st.DataObject, reach: int, size: int, late: bool) -> None:
        seed = data.draw(st.integers(0, 2**32 - 1))
        low = -reach // 4 if late else 0
        dues = (self.now + np.random.default_rng(seed).integers(low, reach, size)).tolist()
        self.wheel.add(array(dues))
        self.rows = sorted(self.rows + dues)

    @rule(ahead=st.integers(0, 5), offsets=st.lists(st.integers(0, Level.WINDOW - 1), min_size=1, max_size=90))
    def add_window(self, ahead: int, offsets: list[int]) -> None:
        start = (self.now // Level.WINDOW + ahead) * Level.WINDOW
        dues = [start + offset for offset in offsets]
        if not self.wheel.add_window(start, len(dues)):
            self.wheel.add(array(dues))
        self.rows = sorted(self.rows + dues)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), size=st.sampled_from([1, 5, 150]))
    def remove(self, data: st.DataObject, size: int) -> None:
        first = data.draw(st.integers(0, len(self.rows) - 1))
        step = data.draw(st.integers(1, 3))
        chosen = slice(first, first + size * step, step)
        self.wheel.remove(array(self.rows[chosen]))
        del self.rows[chosen]

    @rule(by=st.sampled_from([0, 1, 7, 400, 1_000, 30_000, 61_000, 1_800_000, 40_000_000]))
    def wait(self, by: int) -> None:
        self.now += by

    @rule(part=st.integers(1, 100))
    def take(self, part: int) -> None:
        due = self.rows[: bisect_right(self.rows, self.now)]
        taken = due[: max(1, len(due) * part // 100)]
        through = self.now + 1 if len(taken) == len(due) else taken[-1]
        self.wheel.take(array(taken), through)
        del self.rows[: len(taken)]

    @rule()
    def begin(self) -> None:
        slot = self.wheel.expandable(self.now)
        if slot is not None:
            rows = self.rows[bisect_left(self.rows, slot.start) : bisect_left(self.rows, slot.end)]
            assert slot.count == len(rows)
            self.expansions.append((self.wheel.begin(slot), rows))

    @precondition(lambda self: self.expansions)
    @rule(data=st.data(), size=st.integers(1, 100))
    def feed(self, data: st.DataObject, size: int) -> None:
        expansion, unread = data.draw(st.sampled_from(self.expansions))
        expansion.feed(array(unread[:size]))
        del unread[:size]
        if not unread:
            expansion.finish()
            self.expansions.remove((expansion, unread))

    @rule()
    def expand_all(self) -> None:
        while self.expansions or (slot := self.wheel.expandable(self.now)) is not None:
            if not self.expansions:
                assert slot is not None
                self.begin()
            for expansion, unread in self.expansions:
                expansion.feed(array(unread))
                expansion.finish()
            self.expansions.clear()
        # With the slots around now expanded the counts are those of the list, to the ms.
        for ahead in (0, 1, 500, 3_000):
            assert self.wheel.due(self.now + ahead) == bisect_right(self.rows, self.now + ahead)
        if self.rows and self.now <= self.rows[0] <= self.now + 3_000:
            assert self.wheel.next_due() == self.rows[0]

    @rule()
    def restart(self) -> None:
        self.wheel = Wheel.restore(self.saved)
        self.expansions.clear()

    @invariant()
    def total(self) -> None:
        assert self.wheel.total == len(self.rows)
        assert self.wheel.expansion_running == bool(self.expansions)

    @invariant()
    def touched_totals_are_enough_to_restore(self) -> None:
        self.saved.update(self.wheel.window_totals(self.wheel.take_touched_windows()))
        assert +Counter(self.saved) == Counter(due - due % Level.WINDOW for due in self.rows)

    @invariant()
    def nothing_becomes_due_unseen(self) -> None:
        earliest = self.wheel.next_due()
        if self.rows:
            assert earliest is not None and earliest <= self.rows[0]
        if not self.expansions:
            assert (earliest is None) == (not self.rows)
            assert self.wheel.due(self.rows[-1] + Level.WINDOW if self.rows else self.now) == len(self.rows)


TestWheel = WheelMachine.TestCase
TestWheel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
