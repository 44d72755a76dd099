"""Handlers that do the work for each key only once.

    @once(store, key=lambda message: message.json["payment"])
    async def pay(message): ...

A repeat gets the first result, from this process's cache or from the store. Failed work may be begun again. If a
process dies during the work, the work is begun again when the lease ends (at least once). With `at_most_once` it is not
begun again: `InDoubt` sends the message to the dead letters. While the store is unreachable, no work is begun, and
`Pause` keeps the message in hand.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import orjson

from duemq.client.consumer.retry.policy import Reject
from duemq.client.http.times import delay_ms
from duemq.client.idempotency.attempts import Attempts, AttemptTerms
from duemq.client.idempotency.base import Store
from duemq.client.idempotency.cache import Cache
from duemq.model.errors import Rejected
from duemq.model.failpoint import Failpoint, no_failpoint

KEY_BYTES = 1_024


class IdentifiedMessage(Protocol):
    """A message for which the default key works. The key is the message's `identity`, as in
    `duemq.client.consumer.message.Message`; a message without this attribute needs an `id`."""

    @property
    def id(self) -> str: ...


Message = TypeVar("Message")
Handler = Callable[[Message], Awaitable[Any]]


def _by_identity(message: Any) -> str:
    identified: IdentifiedMessage = message
    return getattr(message, "identity", None) or identified.id


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def once(
    store: Store,
    *,
    key: Callable[[Any], str | bytes] = _by_identity,
    at_most_once: bool = False,
    harmless: type[Exception] | tuple[type[Exception], ...] = (),
    keep: timedelta = timedelta(days=1),
    lease: timedelta = timedelta(minutes=5),
    scope: str | None = None,
    cached: int = 10_000,
    cached_bytes: int = 16 << 20,
    store_timeout: timedelta = timedelta(seconds=10),
    clock: Callable[[], int] = _now_ms,
    failpoint: Failpoint = no_failpoint,
) -> Callable[[Handler[Message]], Handler[Message]]:
    """Decorate `async def handler(message)`. Its result is stored, so orjson must be able to encode it as JSON.

    `key`: returns the key of a message's work, 1 to 1,024 bytes; the default is its `identity`, or else its `id`.
    `scope`: the namespace of the keys. Handlers with the same scope share their work. It is required for a store that
    other programs may use; otherwise the default is the handler's module and name.
    `harmless`: with `at_most_once`, the handler's errors that show that it had no effect.
    `lease`: must be longer than the handler may take. `keep`: how long a result is kept, and how long the store
    remembers that unfinished work was begun. `cached`, `cached_bytes`: limits for the results in memory.
    `store_timeout`: must be shorter than the consumer's timeout, so that a store that does not answer pauses the
    consumer and uses up no retries.

    The decorated handler raises Busy (another process is doing the work; the message comes back later), Pause (the
    store is unreachable: the work was not begun, or is done and not recorded yet), InDoubt, Reject (the message has no
    key), and the errors of the wrapped handler.

    With `at_most_once`, work that ended with an error is begun again only after `NothingHappened`, `Reject`,
    `RetryLater`, `Pause` and `harmless` errors. Any other error leaves the work in doubt. That includes exception
    groups, because a task group cancels its other tasks at arbitrary points.
    """
    for name, value in (("keep", keep), ("lease", lease), ("store_timeout", store_timeout)):
        if value <= timedelta(0):
            raise Rejected("bad_option", f"{name} is {value}; it must be above 0", name)
    for name, most in (("cached", cached), ("cached_bytes", cached_bytes)):
        if most < 0:
            raise Rejected("bad_option", f"{name} is {most}; it must be at least 0", name)
    errors = harmless if isinstance(harmless, tuple) else (harmless,)
    for each in errors:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise Rejected("bad_option", f"harmless has {each!r}; it must contain subclasses of Exception", "harmless")
    if scope is not None and (not scope or "\0" in scope):
        raise Rejected("bad_option", f"scope is {scope!r}; it has 1 or more characters, and no NUL", "scope")
    if scope is None and getattr(store, "shared", True):
        raise Rejected(
            "bad_option",
            "a store shared with other programs needs a scope, the same in all processes of a group and in no other: "
            "by module and name handlers of two programs would do each other's work",
            "scope",
        )
    terms = AttemptTerms(at_most_once, errors, delay_ms(keep), delay_ms(lease), store_timeout.total_seconds())

    def wrap(handler: Handler[Message]) -> Handler[Message]:
        if not iscoroutinefunction(handler):
            raise Rejected("bad_handler", f"{handler!r} is not `async def`; it may call asyncio.to_thread", "handler")
        within = _own_scope(store, handler) if scope is None else scope
        attempts = Attempts(store, terms, Cache(cached, cached_bytes), clock, failpoint)

        @wraps(handler)
        async def only_once(message: Message) -> Any:
            return orjson.loads(await attempts.result(_full_key(within, key(message)), lambda: handler(message)))

        return only_once

    return wrap


_own_scopes: WeakKeyDictionary[Store, set[str]] = WeakKeyDictionary()
"""The default scopes of this process's handlers, by store."""


def _own_scope(store: Store, handler: Callable[..., Any]) -> str:
    """The default scope of a handler: its module and name. Functions defined inside the same function share them."""
    name = f"{handler.__module__}.{handler.__qualname__}"
    with suppress(TypeError):  # a custom store may be unhashable
        scopes = _own_scopes.setdefault(store, set())
        if name in scopes:
            raise Rejected(
                "bad_option", f"two handlers called {name} use one store and would do each other's work: give each a "
                "scope, or both the same one", "scope",
            )  # fmt: skip
        scopes.add(name)
    return name


def _full_key(scope: str, key: str | bytes | None) -> bytes:
    encoded = key.encode() if isinstance(key, str) else key
    if not encoded or len(encoded) > KEY_BYTES:
        size = len(encoded or b"")
        raise Reject(f"a message whose key for {scope} has {size} bytes; it has 1 to {KEY_BYTES}")
    return scope.encode() + b"\0" + encoded
