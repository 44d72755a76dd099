"""Handlers that do the work of each key once.

    @once(store, key=lambda message: message.json["payment"])
    async def pay(message): ...

A repeat gets the result of the first time: from a cache of this process, else from the store. What failed may be begun
again. Work that was begun by a process that died is begun again when its lease is over (the effect takes place at
least once), or, with `at_most_once`, never: `InDoubt` sends the message to the dead letters.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import wraps
from inspect import iscoroutinefunction
from itertools import count
from typing import Any, Protocol, TypeVar

import orjson

from duemq.client.consumer.policy import Reject
from duemq.client.idempotency.base import Begun, Busy, Done, Fresh, InDoubt, Running, Store
from duemq.client.instants import delay_ms
from duemq.model.errors import DuemqError, Rejected
from duemq.model.fault import Fault, no_fault

log = logging.getLogger(__name__)

KEY_BYTES = 1_024


class Identified(Protocol):
    """What a handler gets, as far as the usual key goes: `duemq.client.consumer.message.Message` or any other."""

    @property
    def id(self) -> str: ...


Message = TypeVar("Message")
Handler = Callable[[Message], Awaitable[Any]]


def _by_id(message: Any) -> str:
    identified: Identified = message
    return identified.id


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def once(
    store: Store,
    *,
    key: Callable[[Any], str | bytes] = _by_id,
    at_most_once: bool = False,
    keep: timedelta = timedelta(days=1),
    lease: timedelta = timedelta(minutes=5),
    scope: str | None = None,
    cached: int = 10_000,
    clock: Callable[[], int] = _now_ms,
    fault: Fault = no_fault,
) -> Callable[[Handler[Message]], Handler[Message]]:
    """A decorator for `async def handler(message)`. Its result has to be JSON (orjson's), for it is kept.

    `key`: of the message's work, 1 to 1,024 bytes; the default is its id. `scope`: whose keys they are, by default the
    handler's module and name; handlers of one scope do each other's work.
    `lease`: longer than the handler may take. `keep`: how long a result is kept, and how long it is remembered that
    work was begun and not finished. `cached`: results in memory.

    The handler raises: Busy (another process is at it: comes back later), InDoubt, Reject (no key), Unavailable or
    StoreFailed (the store), and what the wrapped handler raises. With `at_most_once` an error of the handler says that
    there was no effect, and the work may be begun again; a time-out or a cancellation says nothing, and leaves it in
    doubt.
    """
    for name, value in (("keep", keep), ("lease", lease)):
        if value <= timedelta(0):
            raise Rejected("bad_option", f"{name} is {value}; it must be above 0", name)
    if cached < 0:
        raise Rejected("bad_option", f"cached is {cached}; it must be at least 0", "cached")

    def wrap(handler: Handler[Message]) -> Handler[Message]:
        if not iscoroutinefunction(handler):
            raise Rejected("bad_handler", f"{handler!r} is not `async def`; it may call asyncio.to_thread", "handler")
        within = f"{handler.__module__}.{handler.__qualname__}" if scope is None else scope
        attempts = _Attempts(store, at_most_once, delay_ms(keep), delay_ms(lease), cached, clock, fault)

        @wraps(handler)
        async def only_once(message: Message) -> Any:
            return orjson.loads(await attempts.result(_checked(within, key(message)), handler, message))

        return only_once

    return wrap


class _Attempts:
    """Of one handler in this process. `result` gives JSON."""

    def __init__(
        self,
        store: Store,
        at_most_once: bool,
        keep_ms: int,
        lease_ms: int,
        cached: int,
        clock: Callable[[], int],
        fault: Fault,
    ) -> None:
        self._store, self._at_most_once, self._keep_ms, self._lease_ms = store, at_most_once, keep_ms, lease_ms
        self._clock, self._fault = clock, fault
        self._cache = _Cache(cached)
        self._running: dict[bytes, asyncio.Event] = {}
        self._process, self._numbers = f"{os.getpid()}-{secrets.token_hex(6)}", count(1)

    async def result(self, key: bytes, handler: Handler[Message], message: Message) -> bytes:
        """Where this process is at the work already, its end is waited for, and then the store is asked."""
        while (running := self._running.get(key)) is not None:
            await running.wait()
        if (found := self._cache.get(key, self._clock())) is not None:
            return found
        self._running[key] = ended = asyncio.Event()
        try:
            return await self._attempt(key, handler, message)
        finally:
            del self._running[key]
            ended.set()

    async def _attempt(self, key: bytes, handler: Handler[Message], message: Message) -> bytes:
        owner, now = f"{self._process}-{next(self._numbers)}", self._clock()
        begun = await self._begin(key, owner, now)
        if isinstance(begun, Running):
            raise Busy(key, begun)
        if isinstance(begun, Done):
            self._cache.put(key, begun.result, now + self._keep_ms)
            return begun.result
        self._fault("begun")
        try:
            value = await handler(message)
        except BaseException as error:
            unsure = not isinstance(error, Exception) or isinstance(error, TimeoutError | InDoubt)
            if not (self._at_most_once and unsure):
                await self._release(key, owner)
            elif isinstance(error, TimeoutError):
                raise InDoubt(f"{key!r} ran into a time-out, and whether it took effect is not known") from error
            raise
        self._fault("worked")
        return await self._finish(key, owner, value)

    async def _begin(self, key: bytes, owner: str, now: int) -> Begun:
        """Whoever is cancelled meanwhile has not begun, so it must not look as if it had."""
        begin = asyncio.ensure_future(
            self._store.begin(key, owner, now, self._lease_ms, self._keep_ms, self._at_most_once)
        )
        try:
            return await asyncio.shield(begin)
        except asyncio.CancelledError:
            await asyncio.wait([begin])
            if not begin.cancelled() and begin.exception() is None and isinstance(begin.result(), Fresh):
                await self._release(key, owner)
            raise

    async def _finish(self, key: bytes, owner: str, value: Any) -> bytes:
        """Done is done: a cancellation waits for it to be recorded, and so does a result that is no JSON."""
        try:
            result = orjson.dumps(value)
        except TypeError:
            log.exception("result for %r is kept as null, for it is no JSON", key, extra={"action": "finish"})
            result = b"null"
        now = self._clock()
        finish = asyncio.ensure_future(self._store.finish(key, owner, result, now, self._keep_ms))
        try:
            recorded = await asyncio.shield(finish)
        except asyncio.CancelledError:
            await asyncio.wait([finish])
            raise
        self._fault("finished")
        if recorded:
            self._cache.put(key, result, now + self._keep_ms)
        else:
            log.warning(
                "handler of %r took longer than its lease of %d ms, and the work was begun again meanwhile",
                key, self._lease_ms, extra={"action": "finish"},
            )  # fmt: skip
        return result

    async def _release(self, key: bytes, owner: str) -> None:
        """What happened in the handler matters more than that this fails: then the lease has to run out."""
        try:
            await asyncio.shield(self._store.release(key, owner))
        except DuemqError as error:
            log.warning("store cannot release %r: %s", key, error, extra={"action": "release"})


class _Cache:
    """The latest results, up to `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[bytes, tuple[bytes, int]] = OrderedDict()

    def get(self, key: bytes, now_ms: int) -> bytes | None:
        if (found := self._kept.get(key)) is None:
            return None
        result, until_ms = found
        if now_ms >= until_ms:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return result

    def put(self, key: bytes, result: bytes, until_ms: int) -> None:
        self._kept[key] = result, until_ms
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)


def _checked(scope: str, key: str | bytes | None) -> bytes:
    encoded = key.encode() if isinstance(key, str) else key
    if not encoded or len(encoded) > KEY_BYTES:
        size = len(encoded or b"")
        raise Reject(f"a message whose key for {scope} has {size} bytes; it has 1 to {KEY_BYTES}")
    return scope.encode() + b"\0" + encoded
