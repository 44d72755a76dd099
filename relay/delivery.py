"""Passes the messages for one destination to its outlet: the handler for the destination's consumer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.policy import Delays, Exponential, Levels, Pause, Policy, Reject, RetryLater
from duemq.model.destinations.destination import Destination, RetryRule
from duemq.relay.base import MAX_DETAIL, Outlet, Reply, Result
from duemq.relay.figures import DestinationFigures, FailedDelivery
from duemq.relay.throttle import Throttle

Disable = Callable[[str, str], Awaitable[None]]
"""Disables a destination. The arguments are its name and the reason."""

# The longest delay that the other side may ask for, and the time after a message's first attempt in which it may be
# postponed without using up a retry.
_DAY_MS = 86_400_000


class OutletRefused(Reject):
    """The other side will never accept the message."""

    reason = "rejected"


class Postponed(RetryLater):
    """The other side asked for more time. This does not count as a retry."""

    counts = False


class Delivery:
    """Delivers messages within the limits of the destination. `clock`: returns epoch ms."""

    def __init__(
        self, destination: Destination, outlet: Outlet, figures: DestinationFigures, clock: Callable[[], int],
        disable: Disable,
    ) -> None:  # fmt: skip
        self._destination, self._outlet, self._figures = destination, outlet, figures
        self._clock, self._disable = clock, disable
        self.throttle = Throttle(destination.concurrency or outlet.concurrency, destination.rate)
        self._policy = policy_of(destination.retry)
        self._timeout_s = destination.timeout / 1000
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._queued: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def queued(self, message: Message) -> bool:
        """Whether the message still waits for its turn. The destination's timeout does not include this time."""
        return id(message) in self._queued

    async def handle(self, message: Message) -> None:
        """Send a message. Returns once the other side has accepted it. Otherwise raises an error by which the consumer
        decides whether to retry it, make it a dead letter, or pause."""
        loop = asyncio.get_running_loop()
        throttle = self.throttle
        if self._waiting or throttle.wait_s(loop.time()):
            tried = await self._wait_for_turn(message, loop)
        else:
            tried = throttle.begin()
        began = loop.time()
        try:
            reply = await self._outlet.send(message)
        except asyncio.CancelledError:
            if loop.time() - began < self._timeout_s:  # the consumer cancelled it for another reason than the timeout
                throttle.give_up(tried=tried)
                self._wake()
                raise
            reply = Reply(Result.FAILED, "timeout", f"no answer within {self._timeout_s:g} s", overloaded=True)
        except Exception as error:
            reply = Reply(Result.FAILED, "error", f"{type(error).__qualname__}: {error}")
        now = loop.time()
        took_ms = (now - began) * 1000
        accepted = reply.result is Result.ACCEPTED
        throttle.end(now, accepted=accepted, overloaded=reply.overloaded, postponed=_postpones(reply), tried=tried)
        if self._waiting:
            self._wake()
        if accepted:
            self._figures.accepted(self._clock(), took_ms, message.origin.due_ms, reply.status)
        else:
            self._record(message, reply, took_ms)
            if tried:
                self._figures.trouble = ""
            await self._refuse(message, reply, took_ms, now)

    async def _refuse(self, message: Message, reply: Reply, took_ms: float, now_s: float) -> None:
        text = f"{reply.status} after {took_ms:.0f} ms" + (f": {reply.detail[:MAX_DETAIL]}" if reply.detail else "")
        if (closed_until := self.throttle.closed_until) is not None and reply.overloaded:
            at_ms = self._clock() + (closed_until - now_s) * 1000
            when = datetime.fromtimestamp(at_ms // 1000, UTC)
            self._figures.trouble = f"closed until {when:%Y-%m-%dT%H:%M:%SZ}, when one message is tried, by {text}"
        match reply.result:
            case Result.REJECTED:
                raise OutletRefused(text)
            case Result.AWAY:
                self._figures.trouble = text
                raise Pause(text)
            case Result.GONE:
                self._figures.trouble = text
                await self._disable(self._destination.name, text)
                raise Pause(text, after_s=5.0)
            case _:
                raise self._later(message, reply, text)

    def _later(self, message: Message, reply: Reply, text: str) -> RetryLater:
        """The error for a retry after the longer of two delays: the retry rule's, and the delay that the other side
        asked for. If the other side is overloaded, the retry does not count, up to a day after the first attempt."""
        hint_ms = min(reply.retry_after_ms or 0, _DAY_MS)
        if hint_ms <= 0:
            return RetryLater(text)
        now, policy, retried = self._clock(), self._policy, message.retried
        rule = policy.wait(retried) or policy.wait(max(retried - 1, 0)) or Levels().wait(0)
        wait = timedelta(milliseconds=hint_ms if rule is None else max(hint_ms, rule.ms(now)))
        attempts = message.origin.attempts
        if _postpones(reply) and (not attempts or 0 <= now - attempts[0].at < _DAY_MS):
            return Postponed(text, delay=wait)
        return RetryLater(text, delay=wait)

    def _record(self, message: Message, reply: Reply, took_ms: float) -> None:
        detail = reply.detail[:MAX_DETAIL]
        attempt = FailedDelivery(self._clock(), message.id, message.attempt, round(took_ms), reply.status, detail)
        self._figures.refused(attempt, reply)

    # --- turns ----------------------------------------------------------------------------------------------------

    async def _wait_for_turn(self, message: Message, loop: asyncio.AbstractEventLoop) -> bool:
        """Wait until the throttle lets this message begin. Returns what `Throttle.begin` returned."""
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(turn)
        self._queued.add(id(message))
        if self._timer is None:
            self._wake()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the message had its turn just before the cancel
                self.throttle.give_up(tried=turn.result())
                self._wake()
            raise
        finally:
            self._queued.discard(id(message))

    def _wake(self) -> None:
        """Let waiting messages begin, in the order of their arrival, until the throttle allows no more."""
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
                turn.set_result(self.throttle.begin())


def _postpones(reply: Reply) -> bool:
    """Whether the other side reports an overload and asks for a delay. A delay of zero and a time in the past do not
    count."""
    return reply.overloaded and (reply.retry_after_ms or 0) > 0


def policy_of(rule: RetryRule) -> Policy:
    match rule.kind:
        case "delays":
            return Delays([timedelta(milliseconds=ms) for ms in rule.delays])
        case "exponential":
            first, most = (timedelta(milliseconds=ms) for ms in (rule.first, rule.most))
            return Exponential(first, rule.factor, most, rule.retries)
        case _:
            return Levels(rule.first_level, rule.retries)
