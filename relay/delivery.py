"""Hands the messages of one destination to its outlet: the handler of its consumer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta

from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.policy import Pause, Reject, RetryLater
from duemq.model.destinations.destination import Destination
from duemq.relay.base import MAX_DETAIL, Outlet, Reply, Result
from duemq.relay.figures import Attempt, DestinationFigures
from duemq.relay.throttle import Throttle

Disable = Callable[[str, str], Awaitable[None]]
"""Disables a destination, by name and for a reason."""

_MAX_CLOSED_S = 3600.0  # a Retry-After that holds up all messages


class Refused(Reject):
    """The other side will never take the message."""

    reason = "rejected"


class Delivery:
    """`clock` gives epoch ms."""

    def __init__(
        self, destination: Destination, outlet: Outlet, figures: DestinationFigures, clock: Callable[[], int],
        disable: Disable,
    ) -> None:  # fmt: skip
        self._destination, self._outlet, self._figures = destination, outlet, figures
        self._clock, self._disable = clock, disable
        self.throttle = Throttle(destination.concurrency or outlet.concurrency, destination.rate)
        self._timeout_s = destination.timeout / 1000
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._queued: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def queued(self, message: Message) -> bool:
        """Whether a message waits for its turn: that is no time of the other side's."""
        return id(message) in self._queued

    async def handle(self, message: Message) -> None:
        """Returns once the other side has it. Raises what tells the consumer what becomes of it."""
        loop = asyncio.get_running_loop()
        throttle = self.throttle
        if self._waiting or throttle.wait_s(loop.time()):
            await self._wait_for_turn(message, loop)
        else:
            throttle.begin()
        began = loop.time()
        reply = Reply(Result.FAILED, "timeout", f"no answer within {self._timeout_s:g} s", overloaded=True)
        try:
            reply = await self._outlet.send(message)
        finally:
            now = loop.time()
            took_ms = (now - began) * 1000
            cancelled_early = reply.status == "timeout" and now - began < self._timeout_s  # the consumer stops
            closed_s = min((reply.retry_after_ms or 0) / 1000, _MAX_CLOSED_S)
            throttle.end(
                now, accepted=reply.result is Result.ACCEPTED, overloaded=reply.overloaded and not cancelled_early,
                closed_s=closed_s,
            )  # fmt: skip
            if self._waiting:
                self._wake()
            if reply.result is Result.ACCEPTED:
                self._figures.accepted(self._clock(), took_ms, message.origin.due_ms, reply.status)
            elif not cancelled_early:
                self._note(message, reply, took_ms)
        if reply.result is not Result.ACCEPTED:
            await self._refuse(reply, took_ms)

    async def _refuse(self, reply: Reply, took_ms: float) -> None:
        text = f"{reply.status} after {took_ms:.0f} ms" + (f": {reply.detail[:MAX_DETAIL]}" if reply.detail else "")
        match reply.result:
            case Result.REJECTED:
                raise Refused(text)
            case Result.AWAY:
                self._figures.trouble = text
                raise Pause(text)
            case Result.GONE:
                self._figures.trouble = text
                await self._disable(self._destination.name, text)
                raise Pause(text, after_s=5.0)
            case _:
                wait_ms = reply.retry_after_ms
                raise RetryLater(text, delay=None if wait_ms is None else timedelta(milliseconds=wait_ms))

    def _note(self, message: Message, reply: Reply, took_ms: float) -> None:
        detail = reply.detail[:MAX_DETAIL]
        attempt = Attempt(self._clock(), message.id, message.attempt, round(took_ms), reply.status, detail)
        self._figures.refused(attempt, reply)

    # --- turns ----------------------------------------------------------------------------------------------------

    async def _wait_for_turn(self, message: Message, loop: asyncio.AbstractEventLoop) -> None:
        """Returns once it has begun, as the throttle counts."""
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        self._queued.add(id(message))
        if self._timer is None:
            self._wake()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came at the same moment
                self.throttle.end(loop.time(), accepted=False)
                self._wake()
            raise
        finally:
            self._queued.discard(id(message))

    def _wake(self) -> None:
        """Give turns to those that wait, in their order, as far as the throttle allows."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            wait_s = self.throttle.wait_s(loop.time())
            if wait_s:
                if wait_s != float("inf"):
                    self._timer = loop.call_later(wait_s, self._wake)
                return
            turn = self._waiting.popleft()
            if not turn.done():
                self.throttle.begin()
                turn.set_result(None)
