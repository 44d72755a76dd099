"""Messages that wait for a suspended key, known only by their offsets. Pure.

If a message fails, its key is suspended, and all later messages with that key wait. Only a few per key wait in memory.
The others are set aside, that is, dropped from memory, since the log still contains them. When no message in memory
waits for the key any more, the partition is read again from the first message that was set aside. Only set-aside
messages are then handled.

    the key is suspended, and enough messages wait in memory -> later ones are set aside
    the key is free -> the partition is read again -> set-aside messages are handled, in their order
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

_SHARE = 9  # rereading takes at most a tenth of the time: until it is finished, no new message is pulled


class Aside:
    """The messages of one partition that are set aside."""

    def __init__(self) -> None:
        self.keys: set[Hashable] = set()
        """Keys whose messages are set aside until the partition is read again for them."""
        self.until = 0
        """Records below this offset are reread: those that are not set aside are done or in hand."""
        self._next = 0  # the next offset to read
        self._offsets: dict[Hashable, set[int]] = {}
        self._count = 0
        self._began_s, self._rest_until_s = 0.0, 0.0

    def __len__(self) -> int:
        return self._count

    def add(self, offset: int, key: Hashable) -> None:
        """Set a message aside. While its key is in `keys`, each later message with that key must be set aside, too."""
        offsets = self._offsets.setdefault(key, set())
        self._count += offset not in offsets
        offsets.add(offset)
        self.keys.add(key)

    def take_back(self, offset: int, key: Hashable) -> bool:
        """Whether a reread message must be handled. If so, it is no longer set aside."""
        offsets = self._offsets.get(key, ())
        if key in self.keys or offset not in offsets:
            return False
        self._remove(key, {offset})
        return True

    def came(self, last: int, now_s: float) -> list[int]:
        """Records up to `last` were read. Returns set-aside offsets whose records the log no longer contains."""
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
        """Whether records are being reread."""
        return self._next < self.until

    def may_read(self, now_s: float) -> bool:
        return now_s >= self._rest_until_s

    def first(self, keys: Collection[Hashable]) -> int:
        """The offset at which rereading for these keys must start. If records are already being reread, no offset is
        skipped."""
        return min(self._next, *(min(self._offsets[key]) for key in keys))

    def read_again(self, keys: Collection[Hashable], until: int, now_s: float) -> None:
        """Handle messages with these keys when they are read again. `until`: the offset after the last one pulled."""
        self._next, self.until, self._began_s = self.first(keys), until, now_s
        self.keys.difference_update(keys)

    def _remove(self, key: Hashable, offsets: set[int]) -> None:
        left = self._offsets[key]
        left -= offsets
        self._count -= len(offsets)
        if not left:
            del self._offsets[key]
