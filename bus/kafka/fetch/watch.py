"""Waking readers.

Partitions that are followed wake theirs as frames come in. Of all others, the ends are asked while somebody waits.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from duemq.bus.base import Subscription
from duemq.bus.kafka.requests.wire import Wire
from duemq.bus.kafka.topics.catalog import Catalog
from duemq.model.errors import DuemqError
from duemq.model.record import Partition

_EVERY_S, _LOOK_S = 0.02, 1.0

_Watched = tuple[str, int | None]


class Watch:
    """`seen` is called with each end that was asked."""

    def __init__(self, wire: Wire, catalog: Catalog, seen: Callable[[Partition, int], None]) -> None:
        self._wire, self._catalog, self._seen = wire, catalog, seen
        self._watched: Counter[_Watched] = Counter()
        self._looked: dict[str, float] = {}
        self._missing: set[str] = set()
        self._wanted = asyncio.Event()

    def begin(self, watched: _Watched) -> None:
        self._watched[watched] += 1
        self._wanted.set()

    def end(self, watched: _Watched) -> None:
        self._watched[watched] -= 1
        if not self._watched[watched]:
            del self._watched[watched]

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            if self._watched:
                try:
                    await self._ask()
                except DuemqError:
                    await asyncio.sleep(_LOOK_S)  # `trouble` says what is wrong
            else:
                self._wanted.clear()
            await asyncio.sleep(_EVERY_S)

    async def _ask(self) -> None:
        partitions: set[Partition] = set()
        topics = {topic for topic, _ in self._watched}
        now = time.monotonic()
        self._looked = {topic: at for topic, at in self._looked.items() if topic in topics or now - at < _LOOK_S}
        self._missing &= topics
        for topic, partition in list(self._watched):
            known = self._catalog.last(topic)
            if time.monotonic() - self._looked.get(topic, 0) > _LOOK_S:
                self._looked[topic] = time.monotonic()
                known = (await self._catalog.find([topic])).get(topic)
                if known is None:
                    self._missing.add(topic)
            if known is not None:
                wanted = range(known.partitions) if partition is None else (partition,)
                partitions |= {(topic, each) for each in wanted if each < known.partitions}
        for where, end in (await self._wire.offsets(partitions)).items():
            # What a topic holds that did not exist when its reader began to wait is news to that reader.
            if where[0] in self._missing and end > 0:
                self._seen(where, 0)
            self._seen(where, end)
        self._missing -= {topic for topic, _ in partitions}


class _Woken:
    """One reader's wake-up call, which `inner` gives."""

    def __init__(self, inner: Subscription) -> None:
        self._inner = inner

    def wake(self) -> None:
        self._inner.wake()

    def close(self) -> None:
        self._inner.close()


class FollowedSubscription(_Woken):
    """For partitions that are followed: waiting says that more of them is wanted."""

    def __init__(self, inner: Subscription, want: Callable[[], None]) -> None:
        super().__init__(inner)
        self._want = want

    async def wait(self, timeout_s: float | None = None) -> bool:
        self._want()
        return await self._inner.wait(timeout_s)


class WatchedSubscription(_Woken):
    """For all others: they are watched for as long as somebody waits."""

    def __init__(self, inner: Subscription, watch: Watch, watched: _Watched) -> None:
        super().__init__(inner)
        self._watch, self._watched = watch, watched

    async def wait(self, timeout_s: float | None = None) -> bool:
        self._watch.begin(self._watched)
        try:
            return await self._inner.wait(timeout_s)
        finally:
            self._watch.end(self._watched)
