"""Runs one handler's work by key in this process: begin, work, record, and recovery if one of these steps fails.

If the store does not answer, the outcome of a request is unknown. Even then, work must not be done twice, and a key
must not be in doubt if this process knows its state. So this process remembers, by key:

    an unanswered begin        the same request is sent again, with the same owner, so the store treats it as a repeat
    an unanswered release      it is repeated until the store answers, because another process may get the message
                               next; the next attempt in this process reports that the previous one has ended
    an unanswered finish       the work is done, and is not begun again in this process: only recording it is retried

After an unanswered begin or finish, it raises `Pause`: the consumer keeps the message in hand, starts no other message,
and retries it later.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import orjson

from duemq.background.loop import Loop, OutageOptions
from duemq.client.consumer.retry.policy import Pause, Reject, RetryLater
from duemq.client.idempotency.base import Begun, Busy, Done, Fresh, InDoubt, NothingHappened, Running, Store
from duemq.client.idempotency.cache import Cache
from duemq.model.errors import Unavailable
from duemq.model.failpoint import Failpoint

log = logging.getLogger(__name__)

_AGAIN_S = (0.1, 0.3, 1.0, 3.0)  # between attempts to record or release
_LATER_S = 0.5  # before `_release_later` first tries again
_LEAVE_S = 1.0  # how long a cancelled caller waits for each request, which may take effect in any case once it is sent
_REMEMBERED = 10_000  # keys; if one is dropped, its lease has to expire, as after a crash
_WITHOUT_EFFECT = (Reject, RetryLater, Pause, NothingHappened)

T = TypeVar("T")
Work = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class AttemptTerms:
    """The terms of attempts. `harmless`: errors after which at-most-once work may begin again. `store_s`: time limit
    for the store's answer."""

    at_most_once: bool
    harmless: tuple[type[Exception], ...]
    keep_ms: int
    lease_ms: int
    store_s: float


@dataclass(frozen=True, slots=True)
class _Claim:
    """The content of a begin request. `over`: the owner of an earlier attempt in this process that has ended, possibly
    unknown to the store."""

    owner: str
    over: str = ""


@dataclass(frozen=True, slots=True)
class _Unrecorded:
    """Work that is done, but possibly not recorded in the store."""

    owner: str
    result: bytes


class Attempts:
    """The attempts of one handler."""

    def __init__(
        self, store: Store, terms: AttemptTerms, cache: Cache, clock: Callable[[], int], failpoint: Failpoint
    ) -> None:
        self._store, self._terms, self._cache, self._clock, self._failpoint = store, terms, cache, clock, failpoint
        self._running: dict[bytes, asyncio.Event] = {}
        self._claims: dict[bytes, _Claim] = {}
        self._unrecorded: dict[bytes, _Unrecorded] = {}
        self._unreleased: dict[bytes, tuple[str, float]] = {}  # owner, and end of its lease (loop time, s)
        self._releasing: asyncio.Task[None] | None = None
        self._process, self._numbers = f"{os.getpid()}-{secrets.token_hex(6)}", count(1)

    async def result(self, key: bytes, work: Work) -> bytes:
        """The result of the work for a key, as JSON. If this process is already working on the key, waits until that
        attempt ends."""
        while (running := self._running.get(key)) is not None:
            await running.wait()
        if (result := self._cache.get(key, self._clock())) is not None:
            return result
        self._running[key] = ended = asyncio.Event()
        try:
            if (done := self._unrecorded.get(key)) is not None:
                return await self._record(key, done)
            return await self._attempt(key, work)
        finally:
            del self._running[key]
            ended.set()

    async def _attempt(self, key: bytes, work: Work) -> bytes:
        claim, now = self._claims.pop(key, None) or _Claim(self._owner()), self._clock()
        begun = await self._begin(key, claim, now)
        if isinstance(begun, Running):
            raise Busy(key, begun, now)
        if isinstance(begun, Done):
            self._cache.put(key, begun.result, now + self._terms.keep_ms)
            return begun.result
        self._failpoint("begun")
        try:
            value = await work()
        except BaseException as error:
            if not self._terms.at_most_once or self._without_effect(error):
                await self._release(key, claim.owner, isinstance(error, asyncio.CancelledError))
                raise
            if isinstance(error, InDoubt) or not (isinstance(error, Exception) or _is_stray(error)):
                raise
            raise InDoubt(f"{key!r} ended with {error!r}, and whether it took effect is not known") from error
        self._failpoint("worked")
        return await self._record(key, _Unrecorded(claim.owner, _as_json(key, value)))

    def _without_effect(self, error: BaseException) -> bool:
        """Whether an error shows that the work had no effect. An exception group never shows it: the TaskGroup
        cancelled its other tasks at arbitrary points."""
        if isinstance(error, InDoubt):
            return False
        return isinstance(error, (*_WITHOUT_EFFECT, *self._terms.harmless))

    # --- begin ----------------------------------------------------------------------------------------------------

    async def _begin(self, key: bytes, claim: _Claim, now: int) -> Begun:
        """Begin the work for a key. If the caller is cancelled, it does not do the work, so the key is released in the
        store."""
        begin = asyncio.create_task(self._ask_to_begin(key, claim, now), name="idempotency begin")
        try:
            return await _shield(begin)
        except asyncio.CancelledError:
            answered = begin.done() and not begin.cancelled() and begin.exception() is None
            if answered and isinstance(begin.result(), Fresh):
                await self._release(key, claim.owner, cancelled=True)
            raise
        except Unavailable as error:
            raise Pause(f"the work of {key!r} is not begun without its store: {error}") from error

    async def _ask_to_begin(self, key: bytes, claim: _Claim, now: int) -> Begun:
        terms, store = self._terms, self._store
        try:
            return await self._answer(
                store.begin(key, claim.owner, now, terms.lease_ms, terms.keep_ms, terms.at_most_once, claim.over),
                terms.store_s,
            )
        except InDoubt:
            raise
        except BaseException:
            _remember(self._claims, key, claim)
            raise

    def _owner(self) -> str:
        return f"{self._process}-{next(self._numbers)}"

    # --- end ------------------------------------------------------------------------------------------------------

    async def _record(self, key: bytes, done: _Unrecorded) -> bytes:
        """Record the result of finished work. This process remembers the result until the store has it."""
        _remember(self._unrecorded, key, done)
        try:
            return await _shield(self._finish(key, done))
        except Unavailable as error:
            raise Pause(f"the work of {key!r} is done, and its store does not know: {error}") from error

    async def _finish(self, key: bytes, done: _Unrecorded) -> bytes:
        terms = self._terms
        try:
            recorded = await self._insist(
                lambda: self._store.finish(key, done.owner, done.result, self._clock(), terms.keep_ms), terms.store_s
            )
        except BaseException as error:
            log.error(
                "the work of %r is done, and its store cannot record it: if this process ends before it can, the work "
                "%s when its lease ends: %r", key, "is in doubt" if terms.at_most_once else "is begun again", error,
                extra={"action": "finish"},
            )  # fmt: skip
            raise
        self._unrecorded.pop(key, None)
        self._failpoint("finished")
        if recorded:
            self._cache.put(key, done.result, self._clock() + terms.keep_ms)
        else:
            log.warning(
                "handler of %r took longer than its lease of %d ms, and another attempt has begun the work since",
                key, terms.lease_ms, extra={"action": "finish"},
            )  # fmt: skip
        return done.result

    async def _release(self, key: bytes, owner: str, cancelled: bool) -> None:
        within_s = min(self._terms.store_s, _LEAVE_S) if cancelled else self._terms.store_s
        await _shield(self._give_back(key, owner, within_s))

    async def _give_back(self, key: bytes, owner: str, within_s: float) -> None:
        """Release a key. A failure is only logged: the caller must see the handler's error instead."""
        try:
            await self._insist(lambda: self._store.release(key, owner), within_s)
        except BaseException as error:
            _remember(self._claims, key, _Claim(self._owner(), owner))
            log.warning("store cannot release %r: %r", key, error, extra={"action": "release"})
            if not isinstance(error, Exception):
                raise
            if isinstance(error, Unavailable):
                until = asyncio.get_running_loop().time() + self._terms.lease_ms / 1_000
                _remember(self._unreleased, key, (owner, until))
                if self._releasing is None or self._releasing.done():
                    self._releasing = asyncio.create_task(self._release_later(), name="release keys")

    async def _release_later(self) -> None:
        """Release the remaining keys once the store is back. A key is dropped when its lease ends."""
        clock = asyncio.get_running_loop().time

        async def turn() -> float | None:
            for key, (owner, until) in list(self._unreleased.items()):
                try:
                    if clock() < until:
                        await self._answer(self._store.release(key, owner), self._terms.store_s)
                except Unavailable:
                    raise
                except Exception as error:
                    log.warning("store cannot release %r: %r", key, error, extra={"action": "release"})
                if self._unreleased.get(key) == (owner, until):
                    del self._unreleased[key]
            return _LATER_S if self._unreleased else None

        # The failure was already logged for each key.
        pace = OutageOptions(first_s=_LATER_S, level=logging.DEBUG)
        await Loop("release of keys", turn, delay_s=_LATER_S, **pace).run()

    # --- the store ------------------------------------------------------------------------------------------------

    async def _insist(self, ask: Callable[[], Awaitable[T]], within_s: float) -> T:
        """Ask the store repeatedly until it answers. Raises Unavailable."""
        loop = asyncio.get_running_loop()
        end, tries = loop.time() + within_s, 0
        while True:
            try:
                return await self._answer(ask(), end - loop.time())
            except Unavailable:
                pause = _AGAIN_S[min(tries, len(_AGAIN_S) - 1)]
                if loop.time() + pause >= end:
                    raise
            tries += 1
            await asyncio.sleep(pause)

    async def _answer(self, call: Awaitable[T], within_s: float) -> T:
        try:
            async with asyncio.timeout(within_s):
                return await call
        except TimeoutError as error:
            raise Unavailable(f"the store has not answered within {within_s:.3g} s") from error
        except asyncio.CancelledError as error:
            if not _is_stray(error):
                raise
            raise Unavailable("the store has abandoned the request") from error


async def _shield(call: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
    """The result of a call. If the caller is cancelled, it waits briefly for the call to finish; a second cancel ends
    the wait."""
    task = call if isinstance(call, asyncio.Task) else asyncio.create_task(call, name="idempotency store")
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task], timeout=_LEAVE_S)
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task], timeout=_LEAVE_S)
        task.add_done_callback(_hear)
        raise
    return task.result()


def _hear(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's error, so that asyncio does not report it: the caller gets the cancellation instead."""
    if not task.cancelled():
        task.exception()


def _is_stray(error: BaseException) -> bool:
    """Whether the error is a cancellation that was not meant for this task, but for something that it awaited."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and not task.cancelling()


def _remember(entries: dict[bytes, T], key: bytes, entry: T) -> None:
    entries[key] = entry
    if len(entries) > _REMEMBERED:
        del entries[next(iter(entries))]


def _as_json(key: bytes, value: Any) -> bytes:
    """A result as JSON. If it cannot be encoded, the work still counts as done."""
    try:
        return orjson.dumps(value)
    except TypeError:
        log.warning("result for %r is kept as null: it is not JSON", key, exc_info=True, extra={"action": "finish"})
        return b"null"
