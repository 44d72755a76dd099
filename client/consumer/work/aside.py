"""Messages that wait for a suspended key, by their offsets alone. Pure.

A key whose message fails is suspended, and all that follows with this key waits. Only a few messages of a key wait in
memory. The others are set aside: the log has them. Once nothing waits for the key, the partition is read again from the
first one that was set aside; only messages that were set aside are taken then.

    suspended, and enough wait -> set aside -> the key is free -> read again -> taken, in their order
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

_SHARE = 9  # reading again takes a tenth of the time at most: no new message comes until it is through


class Aside:
    """Of one partition."""

    def __init__(self) -> None:
        self.keys: set[Hashable] = set()
        """Keys whose messages are set aside until the partition is read again for them."""
        self.until = 0
        """Records below are read again: what of them is not set aside is done, or in hand."""
        self._next = 0  # the offset that is read next
        self._offsets: dict[Hashable, set[int]] = {}
        self._count = 0
        self._began_s, self._rest_until_s = 0.0, 0.0

    def __len__(self) -> int:
        return self._count

    def add(self, offset: int, key: Hashable) -> None:
        """Set a message aside. As long as its key is in `keys`, each that follows has to be set aside, too."""
        offsets = self._offsets.setdefault(key, set())
        self._count += offset not in offsets
        offsets.add(offset)
        self.keys.add(key)

    def take(self, offset: int, key: Hashable) -> bool:
        """Whether to handle a message that is read again."""
        offsets = self._offsets.get(key, ())
        if key in self.keys or offset not in offsets:
            return False
        self._remove(key, {offset})
        return True

    def came(self, last: int, now_s: float) -> list[int]:
        """Records up to `last` were read. Gives offsets that the log has no record of any more."""
        if self.reading:
            self._rest_until_s = now_s + _SHARE * (now_s - self._began_s)
        self._next = last + 1
        gone = list[int]()
        for key in self._offsets.keys() - self.keys:
            some = {offset for offset in self._offsets[key] if offset <= last}
            gone += some
            self._remove(key, some)
        return gone

    @property
    def reading(self) -> bool:
        """Whether records are read again."""
        return self._next < self.until

    def may_read(self, now_s: float) -> bool:
        return now_s >= self._rest_until_s

    def first(self, keys: Collection[Hashable]) -> int:
        """The offset to read from for these keys, without a gap to what is read again already."""
        return min(self._next, *(min(self._offsets[key]) for key in keys))

    def read_again(self, keys: Collection[Hashable], until: int, now_s: float) -> None:
        """Messages with these keys are taken as they come again. `until`: the offset after the last one pulled."""
        self._next, self.until, self._began_s = self.first(keys), until, now_s
        self.keys.difference_update(keys)

    def _remove(self, key: Hashable, offsets: set[int]) -> None:
        left = self._offsets[key]
        left -= offsets
        self._count -= len(offsets)
        if not left:
            del self._offsets[key]
