"""Wakes readers.

Followed partitions wake their readers as frames arrive. The ends of other partitions are polled while a reader waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

from duemq.background.loop import Loop, OutageOptions
from duemq.bus.base import Subscription
from duemq.bus.kafka.requests.wire import Wire
from duemq.bus.kafka.topics.catalog import Catalog
from duemq.model.errors import DuemqError
from duemq.model.messages.record import Partition

_EVERY_S, _REFRESH_S = 0.02, 1.0

_Target = tuple[str, int | None]


class Watch:
    """`on_end` is called with each end that was polled."""

    def __init__(self, wire: Wire, catalog: Catalog, on_end: Callable[[Partition, int], None]) -> None:
        self._wire, self._catalog, self._on_end = wire, catalog, on_end
        self._targets: Counter[_Target] = Counter()
        self.refreshed_at: dict[str, float] = {}
        self.missing: set[str] = set()
        self._demand = asyncio.Event()

    def begin(self, target: _Target) -> None:
        self._targets[target] += 1
        self._demand.set()

    def end(self, target: _Target) -> None:
        self._targets[target] -= 1
        if not self._targets[target]:
            del self._targets[target]

    async def run(self) -> None:
        # `trouble` reports the problem.
        pace = OutageOptions(first_s=_REFRESH_S, longest_s=_REFRESH_S, level=logging.DEBUG)
        await Loop("kafka watch", self._turn, every_s=_EVERY_S, expected=(DuemqError,), **pace).run()

    async def _turn(self) -> None:
        await self._demand.wait()
        if self._targets:
            await self.ask()
        else:
            self._demand.clear()

    async def ask(self) -> None:
        partitions: set[Partition] = set()
        topics = {topic for topic, _ in self._targets}
        now = time.monotonic()
        self.refreshed_at = {
            topic: at for topic, at in self.refreshed_at.items() if topic in topics or now - at < _REFRESH_S
        }
        self.missing &= topics
        for topic, partition in list(self._targets):
            metadata = self._catalog.last(topic)
            if time.monotonic() - self.refreshed_at.get(topic, 0) > _REFRESH_S:
                self.refreshed_at[topic] = time.monotonic()
                metadata = (await self._catalog.find([topic])).get(topic)
                if metadata is None:
                    self.missing.add(topic)
            if metadata is not None:
                numbers = range(metadata.partitions) if partition is None else (partition,)
                partitions |= {(topic, each) for each in numbers if each < metadata.partitions}
        for where, end in (await self._wire.offsets(partitions)).items():
            # If a topic did not exist when its reader began to wait, all its frames are new to the reader.
            if where[0] in self.missing and end > 0:
                self._on_end(where, 0)
            self._on_end(where, end)
        self.missing -= {topic for topic, _ in partitions}


class _SubscriptionProxy:
    """A subscription that wraps `inner`."""

    def __init__(self, inner: Subscription) -> None:
        self._inner = inner

    def wake(self) -> None:
        self._inner.wake()

    def close(self) -> None:
        self._inner.close()


class FollowedSubscription(_SubscriptionProxy):
    """A subscription to followed partitions: waiting on it requests more of their frames."""

    def __init__(self, inner: Subscription, want: Callable[[], None]) -> None:
        super().__init__(inner)
        self._want = want

    async def wait(self, timeout_s: float | None = None) -> bool:
        self._want()
        return await self._inner.wait(timeout_s)


class WatchedSubscription(_SubscriptionProxy):
    """A subscription to other partitions: they are polled while a reader waits on it."""

    def __init__(self, inner: Subscription, watch: Watch, target: _Target) -> None:
        super().__init__(inner)
        self._watch, self._target = watch, target

    async def wait(self, timeout_s: float | None = None) -> bool:
        self._watch.begin(self._target)
        try:
            return await self._inner.wait(timeout_s)
        finally:
            self._watch.end(self._target)
