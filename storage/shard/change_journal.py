"""Records a shard's changes to windows while a child process works on these windows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet

from duemq.model.messages.key import due_of
from duemq.model.timing import window_of
from duemq.storage.keyspace import ROW

_MAX_PLACED = 5_000  # the most messages in a window: the batch that rewrites them blocks the event loop
_MAX_BYTES = 32 << 20  # the most bytes of rows in all windows


class WindowChanges:
    """The changes to one window.

    `placed`: new rows that still exist. `removed`: keys whose rows left RocksDB. `dropped`: keys of messages that are
    in files and no longer pending. `overflown`: too many messages were placed, so `placed` and `removed` are
    incomplete.
    """

    def __init__(self) -> None:
        self.placed: dict[bytes, bytes] = {}
        self.removed: set[bytes] = set()
        self.dropped: set[bytes] = set()
        self.rowless: set[bytes] = set()
        """Those of `dropped` that were cancelled without their rows. Completing their endings removes them from this
        set."""
        self.overflown = False
        self.early: AbstractSet[bytes] = frozenset()
        """Keys that were placed, removed or dropped before the mark. The child's file may or may not contain them."""
        self._late: set[bytes] = set()  # keys placed since the mark

    def place(self, key: bytes, row: bytes, most: int) -> None:
        if self.overflown:
            return
        self.placed[key] = row
        self._late.add(key)
        if len(self._late) > most:
            self.overflown = True
            self.placed.clear()
            self.removed.clear()
            self._late.clear()

    def mark(self) -> None:
        self.early, self._late = self._late | self.removed | self.dropped, set()

    def inside(self, keys: Iterable[bytes], present_keys: Collection[bytes]) -> list[bytes]:
        """Those of the keys in `removed` or `dropped` that a file contains. `present_keys`: the `early` keys in the
        file."""
        return [key for key in keys if (key in present_keys if key in self.early else key not in self._late)]


class Journal:
    """The changes to windows since the call of `ShardStore.watch`.

    Call `mark` once the input of the child process is fixed: later changes cannot be in its file.
    """

    def __init__(self, windows: Iterable[int], most: int = _MAX_PLACED) -> None:
        self.windows = {window: WindowChanges() for window in windows}
        self._most, self._bytes_left = most, _MAX_BYTES

    def record(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes],
        dropped: AbstractSet[bytes],
        rowless: Iterable[bytes] = (),
    ) -> None:
        """Record a batch. `puts` and `deletes` include their prefixes. `dropped`: deleted keys whose messages were in a
        file; `rowless`: those of them that were cancelled without their rows."""
        windows = self.windows
        for key, row in puts:
            if key[:1] == ROW and (changes := windows.get(window_of(due_of(key[1:])))) is not None:
                self._bytes_left -= len(row)
                changes.place(key[1:], row, self._most if self._bytes_left >= 0 else 0)
        for key in deletes:
            if key[:1] == ROW and (changes := windows.get(window_of(due_of(key[1:])))) is not None:
                if key[1:] in dropped:
                    changes.dropped.add(key[1:])
                else:
                    changes.placed.pop(key[1:], None)
                    changes.removed.add(key[1:])
        for key in rowless:
            if (changes := windows.get(window_of(due_of(key)))) is not None:
                changes.rowless.add(key)

    def mark(self) -> None:
        for changes in self.windows.values():
            changes.mark()

    def end(self, window: int) -> WindowChanges:
        """Stop recording a window, and return its changes."""
        return self.windows.pop(window)
