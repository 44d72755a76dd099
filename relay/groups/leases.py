"""Which messages of a group wait, and which are leased to whom until when. Pure: `now` is ms of a monotonic clock.

ready --take--> leased --end--> (done or failed)
  ^               |  |
  +---give_back---+  +--expired--> (failed)
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from duemq.client.consumer.work.work import Work

_REMEMBERED = 10_000  # acks whose repeat is answered as the first
_SPARE = 1_000  # entries of the heap that may be out of date, beyond one per lease


@dataclass(slots=True, eq=False)
class Lease:
    """`until`: its end; `began`: when the message was received; `queued`: when to look whether it has ended, at `until`
    or earlier. All in ms of the monotonic clock."""

    number: int
    work: Work
    began: int
    until: int
    queued: int


class Leases:
    """The messages in hand of one group."""

    def __init__(self) -> None:
        self._ready: deque[Work] = deque()
        self._leased: dict[int, Lease] = {}
        self._ends: list[tuple[int, int]] = []  # a heap of (queued, number); other entries are out of date
        self._last = 0
        self._acked: dict[int, None] = {}
        self.leased_bytes = 0

    @property
    def ready(self) -> int:
        """Messages that wait for a receiver."""
        return len(self._ready)

    @property
    def leased(self) -> int:
        return len(self._leased)

    @property
    def looks(self) -> int:
        """Entries that tell when to look for expired leases."""
        return len(self._ends)

    def put(self, works: Iterable[Work]) -> None:
        self._ready.extend(works)

    def take(self, most: int, most_bytes: int, visibility: int, now: int) -> list[Lease]:
        """Lease the next messages: at most `most`, and `most_bytes` or one. `visibility`: ms from now."""
        leases = list[Lease]()
        while self._ready and len(leases) < most:
            work = self._ready[0]
            most_bytes -= work.size
            if leases and most_bytes < 0:
                break
            self._ready.popleft()
            self._last += 1
            lease = Lease(self._last, work, now, now + visibility, now + visibility)
            self._leased[lease.number] = lease
            self.leased_bytes += work.size
            heapq.heappush(self._ends, (lease.queued, lease.number))
            leases.append(lease)
        return leases

    def end(self, number: int, *, acked: bool = False) -> Lease | None:
        """End a lease before its time; None if there is none of this number, or no longer."""
        lease = self._leased.pop(number, None)
        if lease is None:
            return None
        self.leased_bytes -= lease.work.size
        if acked:
            self._acked[number] = None
            if len(self._acked) > _REMEMBERED:
                del self._acked[next(iter(self._acked))]
        self._tidy()
        return lease

    def was_acked(self, number: int) -> bool:
        return number in self._acked

    def extend(self, number: int, until: int) -> bool:
        """Give a lease another end. False if there is none of this number, or no longer."""
        lease = self._leased.get(number)
        if lease is None:
            return False
        lease.until = until
        if until < lease.queued:
            lease.queued = until
            heapq.heappush(self._ends, (until, number))
            self._tidy()
        return True

    def give_back(self, numbers: Iterable[int]) -> None:
        """Let these messages wait again, before all others: their receiver has gone."""
        leases = [lease for number in numbers if (lease := self.end(number)) is not None]
        self._ready.extendleft(lease.work for lease in reversed(leases))

    def expired(self, now: int) -> Iterator[Lease]:
        """Leases that end by now. They are no longer in force."""
        while self._ends and self._ends[0][0] <= now:
            queued, number = heapq.heappop(self._ends)
            lease = self._leased.get(number)
            if lease is None or lease.queued != queued:
                continue
            if lease.until > now:  # it was extended
                lease.queued = lease.until
                heapq.heappush(self._ends, (lease.queued, number))
            else:
                self.end(number)
                yield lease

    def next_look(self) -> int | None:
        """When to call `expired` again; None: not before another lease."""
        return self._ends[0][0] if self._ends else None

    def drop(self, is_gone: Callable[[Work], bool]) -> list[Work]:
        """Take out all messages that match, ready or leased."""
        dropped = [work for work in self._ready if is_gone(work)]
        self._ready = deque(work for work in self._ready if not is_gone(work))
        gone = [number for number, lease in self._leased.items() if is_gone(lease.work)]
        return dropped + [lease.work for number in gone if (lease := self.end(number)) is not None]

    def _tidy(self) -> None:
        """Drop entries that are out of date, once they are most of the heap: a lease may end hours before its time."""
        if len(self._ends) > 2 * len(self._leased) + _SPARE:
            self._ends = [(lease.queued, lease.number) for lease in self._leased.values()]
            heapq.heapify(self._ends)
