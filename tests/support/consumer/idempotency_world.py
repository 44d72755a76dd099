"""Handlers of several processes on one store of idempotency keys that fails as a test says."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from duemq.client.idempotency.base import Begun, Store
from duemq.client.idempotency.memory import MemoryStore
from duemq.client.idempotency.once import once
from duemq.model.errors import Unavailable

T0 = 1_800_000_000_000
MINUTE = 60_000
LEASE, KEEP = timedelta(minutes=5), timedelta(hours=1)
BRIEF = timedelta(milliseconds=20)  # for a store that fails: it is not asked again meanwhile

T = TypeVar("T")


@dataclass
class Mail:
    id: str
    key: bytes | None = None
    text: str = ""


class Clock:
    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> int:
        return self.now

    def pass_(self, time: timedelta) -> None:
        self.now += time // timedelta(milliseconds=1)


class FaultyStore:
    """Calls named in `away` fail before they take effect, those in `lost` after; those in `silent` never answer, and
    take effect or not as they are in `lost` or not; those in `given_up` are cancelled by the store itself. `counts`:
    how often each was called. `next_fail`: how many of the next ones are away."""

    shared = False

    def __init__(self, store: Store | None = None) -> None:
        self._store = store or MemoryStore()
        self.counts: Counter[str] = Counter()
        self.away: set[str] = set()
        self.lost: set[str] = set()
        self.silent: set[str] = set()
        self.given_up: set[str] = set()
        self.next_fail: Counter[str] = Counter()
        self.reached: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._held: dict[str, asyncio.Event] = {}

    def hold(self, name: str) -> asyncio.Event:
        """Answers of such calls come once it is set."""
        return self._held.setdefault(name, asyncio.Event())

    async def _call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        self.counts[name] += 1
        self.reached[name].set()
        if name in self.given_up:
            raise asyncio.CancelledError
        if name in self.away or self.next_fail[name] > 0:
            self.next_fail[name] -= 1
            raise Unavailable(f"{name} is away")
        answer = None if name in self.silent and name not in self.lost else await call()
        if name in self._held:
            await self._held[name].wait()
        if name in self.silent:
            await asyncio.Event().wait()
        if name in self.lost or answer is None:
            raise Unavailable(f"the answer of {name} is lost")
        return answer

    async def begin(self, *args: Any, **options: Any) -> Begun:
        return await self._call("begin", lambda: self._store.begin(*args, **options))

    async def finish(self, *args: Any, **options: Any) -> bool:
        return await self._call("finish", lambda: self._store.finish(*args, **options))

    async def release(self, *args: Any, **options: Any) -> bool:
        return await self._call("release", lambda: self._store.release(*args, **options))

    async def expire(self, now_ms: int) -> int:
        return await self._store.expire(now_ms)

    async def close(self) -> None:
        await self._store.close()


class World:
    """`effects`: how often each key took effect. `errors`: what the next attempts end with, before their effect."""

    def __init__(self) -> None:
        self.store, self.clock = FaultyStore(), Clock()
        self.effects: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self.started, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    def once(self, handler: Callable[[Mail], Awaitable[Any]], **options: Any) -> Any:
        usual = {"scope": "tests", "lease": LEASE, "keep": KEEP, "clock": self.clock}
        return once(self.store, **{**usual, **options})(handler)

    def process(self, **options: Any) -> Any:
        async def handler(mail: Mail) -> dict[str, Any]:
            self.started.set()
            await self.gate.wait()
            if self.errors:
                raise self.errors.pop(0)
            self.effects[mail.id] += 1
            return {"sent": mail.id, "time": self.effects[mail.id]}

        return self.once(handler, **options)
