"""What a shard does to one window while a process works on it."""

from __future__ import annotations

from collections.abc import Sequence

from duemq.model.key import due_of
from duemq.storage.rows import ROW, window_of

_MOST_PLACED = 5_000  # messages of a journal: they are written again in one batch, while the event loop waits


class Journal:
    """What is done to one window from the moment of `ShardStore.watch` on.

    `overflown`: more messages came than are worth keeping here, and `placed` is not complete.
    """

    def __init__(self, window: int, most: int = _MOST_PLACED) -> None:
        self.window, self._most, self.overflown = window, most, False
        self.placed: dict[bytes, bytes] = {}
        self.removed: set[bytes] = set()

    def note(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        for key, row in puts:
            if key[:1] == ROW and window_of(due_of(key[1:])) == self.window:
                self.placed[key[1:]] = row
        for key in deletes:
            if key[:1] == ROW and window_of(due_of(key[1:])) == self.window:
                self.placed.pop(key[1:], None)
                self.removed.add(key[1:])
        if len(self.placed) > self._most:
            self.overflown = True
            self.placed.clear()
