"""A store in memory, for tests and for handlers that only need to avoid repeats within a process."""

from __future__ import annotations

from heapq import heappop, heappush

from duemq.client.idempotency.base import Begun
from duemq.client.idempotency.states import KeyRow, begin, finish, release

_SPARE = 1_000


class MemoryStore:
    shared = False

    def __init__(self) -> None:
        self.rows: dict[bytes, KeyRow] = {}
        self.expiries: list[tuple[int, bytes]] = []  # a heap: one entry for each row, and some for removed rows

    async def begin(
        self,
        key: bytes,
        owner: str,
        now_ms: int,
        lease_ms: int,
        keep_ms: int,
        at_most_once: bool = False,
        over: str = "",
    ) -> Begun:
        await self.expire(now_ms)
        row, answer = begin(self.rows.get(key), key, owner, now_ms, lease_ms, keep_ms, at_most_once, over)
        self._set(key, row)
        return answer

    async def finish(self, key: bytes, owner: str, result: bytes, now_ms: int, keep_ms: int) -> bool:
        row, done = finish(self.rows.get(key), owner, result, now_ms, keep_ms)
        self._set(key, row)
        return done

    async def release(self, key: bytes, owner: str) -> bool:
        row, released = release(self.rows.get(key), owner)
        self._set(key, row)
        return released

    async def expire(self, now_ms: int) -> int:
        count = 0
        while self.expiries and self.expiries[0][0] <= now_ms:
            _, key = heappop(self.expiries)
            row = self.rows.get(key)
            if row is not None and row.expires_ms <= now_ms:
                del self.rows[key]
                count += 1
        return count

    async def close(self) -> None:
        """Does nothing."""

    def _set(self, key: bytes, row: KeyRow | None) -> None:
        if row is None:
            self.rows.pop(key, None)
        elif row is not self.rows.get(key):
            self.rows[key] = row
            heappush(self.expiries, (row.expires_ms, key))
            if len(self.expiries) > 2 * len(self.rows) + _SPARE:  # most entries belong to removed rows
                self.expiries = sorted((each.expires_ms, key) for key, each in self.rows.items())
