"""How many messages may be pulled next, and from which partitions.

Messages in hand are limited for the whole consumer. If failed messages are retried in place, messages of a partition
may stay in hand for hours. Then half of the room is first come, first served, and the other half is shared out: a stuck
partition cannot take the room reserved for the others.
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
_LITTLE = 8  # the common half counts as full when less than 1/8 is left: else messages come one by one


class Room:
    """The room for messages in one consumer. `in_place`: failed messages stay in hand until they are retried."""

    def __init__(self, options: ConsumerOptions, in_place: bool) -> None:
        self._most, self._most_bytes, self._in_place = options.max_in_hand, options.max_in_hand_bytes, in_place
        self.messages = self.bytes = 0
        """Messages in hand. If `full` is set, call `recheck` after removing any."""
        self.full = False
        """The consumer waits for room."""
        self._each_bytes = _FIRST_BYTES  # average size of the latest messages
        self._enough = 0  # with fewer in hand, more are pulled
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
        """How many messages may be pulled, and the partitions that must not be pulled from. `trackers`: messages in
        hand by partition; `partitions`: all of them."""
        room, free = self._most - self.messages, self._most_bytes - self.bytes
        if room <= 0 or free <= 0:
            return 0, frozenset()
        most, limit = max(min(room, free // self._each_bytes, _MAX), 1), self._limit()
        if not self._in_place or self.messages + most <= limit // 2:
            return most, frozenset()
        counts = {each: len(trackers[each]) if each in trackers else 0 for each in partitions()}
        return shared(most, limit, counts)

    def _limit(self) -> int:
        """Limit of messages in hand if the next messages are as large as the latest."""
        if not self.bytes:
            return self._most
        return min(self._most, max(self._most_bytes * self.messages // self.bytes, 1))

    async def wait(self, partitions: int, most_s: float) -> bool:
        """Wait until there is room, or `open` is called. False after `most_s`."""
        # In place, any partition may get room when a few messages end, however many the others have: check after a few.
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
        """Check whether there is room again."""
        if self.messages <= self._enough and (self._in_place or self.bytes < self._most_bytes * _ENOUGH):
            self.there.set()

    def open(self) -> None:
        """Let `wait` return."""
        self.there.set()


def reserved(limit: int, partitions: int) -> int:
    """Messages of each partition that always have room, out of `limit` messages in all."""
    return max(limit // (2 * max(partitions, 1)), 1)


def shared(most: int, limit: int, counts: Mapping[Partition, int]) -> tuple[int, frozenset[Partition]]:
    """How many messages may be pulled, at most `most`, and the partitions that must not be pulled from. Pure.

    `limit`: of messages in hand in all; `counts`: messages in hand by partition. Whichever partitions are pulled from,
    each other one keeps its reserved room.
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
