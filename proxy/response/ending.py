"""Ends streams and long polls when they need not, or must not, continue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.types import Receive, Scope

from duemq.bus.base import Subscription
from duemq.model.errors import Rejected

LOOK_S: Final = 1.0
"""A grant that expires, rather than ends by a change of the administrative state, is noticed within this time."""


class Ending:
    """Why a response must end: the client has disconnected, the server is closing, or the caller's grant has ended."""

    def __init__(
        self, disconnected: asyncio.Task[object], closing: asyncio.Task[object], ended: asyncio.Future[None]
    ) -> None:
        self._disconnected, self._ended = disconnected, ended
        self._futures: set[asyncio.Future[Any]] = {disconnected, closing, ended}

    @property
    def reached(self) -> bool:
        return any(future.done() for future in self._futures)

    @property
    def client_left(self) -> bool:
        return self._disconnected.done()

    def check_grant(self) -> None:
        """Raises Rejected `unauthorised` if the caller's grant has ended."""
        if self._ended.done():
            raise Rejected("unauthorised", "the key, token or session of this request has ended")

    async def or_done(self, work: asyncio.Task[Any]) -> None:
        """Wait until `work` is done or the response must end. Does not cancel `work` or retrieve its result."""
        await asyncio.wait({work, *self._futures}, return_when=asyncio.FIRST_COMPLETED)

    async def or_growth(self, subscription: Subscription, timeout_s: float) -> bool:
        """Wait until the topic has grown (True), or until the response must end or the time-out passes (False)."""
        growth = asyncio.create_task(subscription.wait(timeout_s), name="topic growth")
        try:
            await asyncio.wait({growth, *self._futures}, return_when=asyncio.FIRST_COMPLETED)
            return growth.done() and growth.result()
        finally:
            await _cancelled(growth)


class Endings:
    """The endings of all requests in flight. `closing` is set when the server begins to stop. `is_granted` takes the
    scope of a request and returns whether its caller still has its grant.

    Call `check` after each change of grants; it also checks every second while any request is watched.
    """

    def __init__(self, closing: asyncio.Event, is_granted: Callable[[Scope], bool] = lambda scope: True) -> None:
        self._closing, self._is_granted = closing, is_granted
        self._scopes: dict[asyncio.Future[None], Scope] = {}
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def watch(self, scope: Scope, receive: Receive) -> AsyncIterator[Ending]:
        """The ending of one request, for the duration of the block."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        self._scopes[ended] = scope
        if self._timer is None:
            self._timer = loop.call_later(LOOK_S, self._check_again)
        disconnected: asyncio.Task[object] = asyncio.create_task(_disconnected(receive), name="client gone")
        closed: asyncio.Task[object] = asyncio.create_task(self._closing.wait(), name="server closing")
        try:
            yield Ending(disconnected, closed, ended)
        finally:
            del self._scopes[ended]
            for task in (disconnected, closed):
                await _cancelled(task)

    def check(self) -> None:
        for ended, scope in self._scopes.items():
            if not ended.done() and not self._is_granted(scope):
                ended.set_result(None)

    def _check_again(self) -> None:
        self._timer = None
        self.check()
        if self._scopes:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._check_again)


async def _cancelled(task: asyncio.Task[object] | asyncio.Task[bool]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
