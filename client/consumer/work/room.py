"""How many messages may be pulled next, and from which partitions.

The number of messages in hand is limited for the whole consumer. If failed messages are retried in place, that is, stay
in hand until then, they may do so for hours. In that case, half of the room is first come, first served, and the other
half is divided evenly among the partitions: a partition with many failed messages cannot use the room reserved for the
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sized
from typing import TypeVar

from duemq.client.consumer.options import ConsumerOptions

Partition = TypeVar("Partition")

_MAX = 1_000  # messages pulled at once
_FIRST_BYTES = 16 << 10
_ENOUGH = 3 / 4  # pull again when less than this share of the limit is in hand
# The common half counts as full when less than 1/8 of it is left: otherwise messages would be pulled one by one.
_LITTLE = 8


class Room:
    """The room for messages in one consumer. `in_place`: failed messages stay in hand until they are retried."""

    def __init__(self, options: ConsumerOptions, in_place: bool) -> None:
        self._most, self._most_bytes, self._in_place = options.max_in_hand, options.max_in_hand_bytes, in_place
        self.messages = self.bytes = 0
        """Number of messages in hand, and their total size. If `full` is set, call `recheck` after subtracting from
        them."""
        self.full = False
        """Whether the consumer is waiting for room."""
        self._each_bytes = _FIRST_BYTES  # average size of the latest messages
        self._enough = 0  # more messages are pulled once at most this number is in hand
        self.there = asyncio.Event()

    def add(self, count: int, size: int) -> None:
        """`count` messages were pulled, `size` bytes in total."""
        self.messages += count
        self.bytes += size
        if count:
            self._each_bytes = max(size // count, 1)

    def remove(self, size: int) -> None:
        """A message of `size` bytes has ended."""
        self.messages -= 1
        self.bytes -= size
        self.recheck()

    def admitted(
        self, trackers: Mapping[Partition, Sized], partitions: Callable[[], Collection[Partition]]
    ) -> tuple[int, frozenset[Partition]]:
        """How many messages may be pulled, and from which partitions none may be pulled. `trackers`: the messages in
        hand, by partition; `partitions`: returns all partitions of this member."""
        room, free = self._most - self.messages, self._most_bytes - self.bytes
        if room <= 0 or free <= 0:
            return 0, frozenset()
        most, limit = max(min(room, free // self._each_bytes, _MAX), 1), self._limit()
        if not self._in_place or self.messages + most <= limit // 2:
            return most, frozenset()
        counts = {each: len(trackers[each]) if each in trackers else 0 for each in partitions()}
        return shared(most, limit, counts)

    def _limit(self) -> int:
        """How many messages may be in hand if all are as large as the current ones are on average."""
        if not self.bytes:
            return self._most
        return min(self._most, max(self._most_bytes * self.messages // self.bytes, 1))

    async def wait(self, partitions: int, most_s: float) -> bool:
        """Wait until there is room, or `open` is called. False after `most_s`."""
        # If messages are retried in place, a partition may get room as soon as a few of its messages end, however many
        # messages the other partitions have: so check after a few have ended.
        some = max(reserved(self._limit(), partitions) // 2, 1)
        self._enough = self.messages - some if self._in_place else int(self._most * _ENOUGH)
        self.full = True
        self.there.clear()
        try:
            async with asyncio.timeout(most_s):
                await self.there.wait()
        except TimeoutError:
            return False
        finally:
            self.full = False
        return True

    def recheck(self) -> None:
        """Let `wait` return if there is room again."""
        if self.messages <= self._enough and (self._in_place or self.bytes < self._most_bytes * _ENOUGH):
            self.there.set()

    def open(self) -> None:
        """Let `wait` return."""
        self.there.set()


def reserved(limit: int, partitions: int) -> int:
    """How many of the `limit` messages in hand are reserved for each partition."""
    return max(limit // (2 * max(partitions, 1)), 1)


def shared(most: int, limit: int, counts: Mapping[Partition, int]) -> tuple[int, frozenset[Partition]]:
    """How many messages may be pulled, at most `most`, and from which partitions none may be pulled. Pure.

    `limit`: how many messages may be in hand in all; `counts`: messages in hand by partition. Whichever partitions the
    pulled messages come from, every other partition keeps its reserved room.
    """
    if not counts:
        return most, frozenset()
    own = reserved(limit, len(counts))
    common = max(limit - own * len(counts), 0)
    left = common - sum(max(count - own, 0) for count in counts.values())
    if left <= 0 or left < common // _LITTLE:
        full_partitions = frozenset(each for each, count in counts.items() if count >= own)
        return min(
            most, min((own - counts[each] for each in counts.keys() - full_partitions), default=0)
        ), full_partitions
    return min(most, left + min(max(own - count, 0) for count in counts.values())), frozenset()
