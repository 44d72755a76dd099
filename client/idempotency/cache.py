"""A cache of the latest results, in memory."""

from __future__ import annotations

from collections import OrderedDict

_ENTRY_BYTES = 400  # Python's overhead per entry, without the key and the result


class Cache:
    """Stores up to `most` results, and up to `most_bytes` of results and keys. A larger result is not cached."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._entries: OrderedDict[bytes, tuple[bytes, int]] = OrderedDict()
        self.bytes = 0

    def get(self, key: bytes, now_ms: int) -> bytes | None:
        if (entry := self._entries.get(key)) is None:
            return None
        result, until_ms = entry
        if now_ms >= until_ms:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return result

    def put(self, key: bytes, result: bytes, until_ms: int) -> None:
        if key in self._entries:
            self._drop(key)
        if (size := _size(key, result)) > self._most_bytes:
            return
        self._entries[key] = result, until_ms
        self.bytes += size
        while len(self._entries) > self._most or self.bytes > self._most_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        result, _ = self._entries.pop(key)
        self.bytes -= _size(key, result)


def _size(key: bytes, result: bytes) -> int:
    return len(key) + len(result) + _ENTRY_BYTES
