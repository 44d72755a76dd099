"""Wakes readers when their partitions grow: each reader costs one flag and at most one future, but no queue and no
task."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable

from duemq.model.messages.record import Partition

_Target = tuple[str, int | None]


class LogSubscription:
    """Wakes one reader. Only one task may wait on it at a time."""

    def __init__(self, owner: Subscriptions, target: _Target) -> None:
        self._owner, self._target = owner, target
        self._grown = False
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self, timeout_s: float | None = None) -> bool:
        self._owner.check()
        if not self._grown:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = None if timeout_s is None else loop.call_later(timeout_s, self._release)
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
            self._owner.check()
        grown, self._grown = self._grown, False
        return grown

    def close(self) -> None:
        self._owner.forget(self, self._target)
        self._release()

    def wake(self) -> None:
        self._grown = True
        self._release()

    def _release(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Subscriptions:
    """All subscriptions of one bus. `check` raises once the bus has failed or was closed."""

    def __init__(self, check: Callable[[], None]) -> None:
        self.check = check
        self._by_target: defaultdict[_Target, set[LogSubscription]] = defaultdict(set)

    def add(self, topic: str, partition: int | None) -> LogSubscription:
        """A subscription to one partition, or to all partitions if None. The topic need not exist yet."""
        target = (topic, partition)
        subscription = LogSubscription(self, target)
        self._by_target[target].add(subscription)
        return subscription

    def forget(self, subscription: LogSubscription, target: _Target) -> None:
        subscriptions = self._by_target.get(target)
        if subscriptions is not None:
            subscriptions.discard(subscription)
            if not subscriptions:
                del self._by_target[target]

    def wake(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            for target in (partition, (partition[0], None)):
                for subscription in self._by_target.get(target, ()):
                    subscription.wake()

    def wake_all(self) -> None:
        """Wake all readers when the bus ends; `check` then raises in each of them."""
        for subscriptions in self._by_target.values():
            for subscription in subscriptions:
                subscription.wake()
