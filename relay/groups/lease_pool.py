"""The pool of a group: its consumer's messages wait here for callers, who lease them (ADR 91).

A lease that ends and a nack are failures: the log gets the message as a retry or a dead letter, as of a handler that
raised an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from secrets import token_hex
from typing import Final, NamedTuple

from duemq.client.consumer.message import Message
from duemq.client.consumer.retry.policy import Reject, RetryLater
from duemq.client.consumer.work.offset_tracker import OffsetTracker
from duemq.client.consumer.work.pool import Owner
from duemq.client.consumer.work.routes import FORMER, UNHANDLED
from duemq.client.consumer.work.work import Work
from duemq.model.errors import OutcomeUnknown, Rejected
from duemq.relay.base import Reply, Result
from duemq.relay.figures import DestinationFigures, FailedDelivery
from duemq.relay.groups.leases import Lease, Leases

_ANSWER_BYTES: Final = 1 << 20  # of the messages of one receive, or a single larger one
_DURABLE_S: Final = 10.0  # an answer waits this long for the log
_EXPIRED_AT_ONCE: Final = 500  # sent back before other tasks run
_PREFETCH: Final = 1_000  # messages that wait for receivers: a position is made from all messages in hand


class LeasedMessage(NamedTuple):
    """A leased message. `until`: the end of the lease, epoch ms."""

    receipt: str
    message: Message
    until: int


class _Failure(NamedTuple):
    """`error` None: the one that the message's route raises. `durable`: done once the log has the decision."""

    work: Work
    error: Exception | None
    durable: asyncio.Future[None]


class LeasePool:
    """See `Pool`. `clock` returns epoch ms. `most`, `most_bytes`: messages in hand; if all are leased, a receive is
    refused."""

    def __init__(
        self, owner: Owner, figures: DestinationFigures, clock: Callable[[], int], most: int, most_bytes: int
    ) -> None:
        self._owner, self._figures, self._clock = owner, figures, clock
        self.most, self._most_bytes = most, most_bytes
        self._id = token_hex(6)  # receipts of an earlier process have another
        self._leases = Leases()
        self._receivers: dict[asyncio.Future[None], None] = {}  # those that wait, in order
        self._failures: deque[_Failure] = deque()
        self._failing: dict[asyncio.Task[None], Work] = {}
        self._unstored: dict[OffsetTracker, int] = {}  # see `OffsetTracker.finished`
        self._turn, self._changed = asyncio.Event(), asyncio.Event()
        self._turn_at: int | None = None

    @property
    def paused(self) -> bool:
        """See `Pool`."""
        return self._leases.ready >= _PREFETCH

    @property
    def leased(self) -> int:
        """Messages leased now."""
        return self._leases.leased

    @property
    def _now(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    # --- callers --------------------------------------------------------------------------------------------------

    async def receive(self, most: int, visibility: int, wait_s: float) -> list[LeasedMessage]:
        """Lease up to `most` messages for `visibility` ms; wait for the first one. Raises Rejected
        `too_many_leases`."""
        now = asyncio.get_running_loop().time
        deadline = now() + wait_s
        while not (received := self._take(most, visibility)):
            if (left_s := deadline - now()) <= 0:
                self._check_window()
                break
            await self._turn_within(left_s)
        return received

    async def _turn_within(self, wait_s: float) -> None:
        """Wait for a turn among the receivers."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._receivers[turn] = None
        try:
            async with asyncio.timeout(wait_s):
                await turn
        except TimeoutError:
            pass
        except BaseException:
            self._wake()  # it may have had its turn
            raise
        finally:
            self._receivers.pop(turn, None)

    def _take(self, most: int, visibility: int) -> list[LeasedMessage]:
        now, clock, was_paused = self._now, self._clock(), self.paused
        leases = self._leases.take(most, _ANSWER_BYTES, visibility, now)
        if was_paused and not self.paused:
            self._owner.pull_again()
        self._look_again()
        return [
            LeasedMessage(f"{self._id}-{each.number:x}", each.work.message, clock + each.until - now) for each in leases
        ]

    def _check_window(self) -> None:
        if self._leases.leased >= self.most or self._leases.leased_bytes >= self._most_bytes:
            detail = f"{self._leases.leased} messages of the group are leased, the limit: acknowledge some"
            raise Rejected("too_many_leases", detail)

    def give_back(self, receipts: Iterable[str]) -> None:
        """Let these messages wait again: their receiver has gone. It does not count as a delivery."""
        self._leases.give_back(map(self._number_of, receipts))
        self._wake()

    async def ack(self, receipts: Sequence[str]) -> list[bool]:
        """Finish these messages. False: the lease has ended. Returns once none of the others can come again. A repeat
        returns the same. Raises OutcomeUnknown."""
        results, tickets, now = list[bool](), dict[OffsetTracker, int](), self._now
        for receipt in receipts:
            number = self._number_of(receipt)
            lease = self._leases.end(number, acked=True)
            if lease is None:
                repeated = self._leases.was_acked(number)
                results.append(repeated)
                if repeated:
                    tickets |= self._unstored
                continue
            work = lease.work
            self._owner.done(work)
            tickets[work.tracker] = self._unstored[work.tracker] = work.tracker.finished
            self._figures.accepted(self._clock(), now - lease.began, work.message.origin.due_ms, "acked")
            results.append(True)
        await self._until_stored(tickets)
        return results

    async def _until_stored(self, tickets: dict[OffsetTracker, int]) -> None:
        """Return once these positions are durable. Raises OutcomeUnknown."""
        try:
            async with asyncio.timeout(_DURABLE_S):
                while any(tracker.stored < ticket for tracker, ticket in tickets.items()):
                    await self._changed.wait()
        except TimeoutError as error:
            raise OutcomeUnknown("the position of the group is not stored yet: the messages may come again") from error

    async def nack(
        self, receipts: Sequence[str], delay_ms: int | None = None, reason: str = "", *, dead: bool = False
    ) -> list[bool]:
        """Send these messages back: they come again after `delay_ms`, by default as the retry rule says, or are dead
        letters. `reason`: for their headers. False: the lease has ended. Raises OutcomeUnknown."""
        delay = None if delay_ms is None else timedelta(milliseconds=delay_ms)
        error = Reject(reason or "refused by its receiver") if dead else RetryLater(reason or "nack", delay=delay)
        ended = [self._leases.end(self._number_of(receipt)) for receipt in receipts]
        failures = [self._fail(lease, error, "refused" if dead else "nacked") for lease in ended if lease is not None]
        if failures:
            _, late = await asyncio.wait(failures, timeout=_DURABLE_S)
            if late or any(future.cancelled() for future in failures):
                raise OutcomeUnknown("the log does not have all of the messages yet; they come again in any case")
            trackers = {lease.work.tracker for lease in ended if lease is not None}
            await self._until_stored({tracker: tracker.finished for tracker in trackers})
        return [lease is not None for lease in ended]

    def extend(self, receipts: Sequence[str], visibility: int) -> list[bool]:
        """Let these leases end `visibility` ms from now. False: the lease has ended."""
        until = self._now + visibility
        extended = [self._leases.extend(self._number_of(receipt), until) for receipt in receipts]
        self._look_again()
        return extended

    def _number_of(self, receipt: str) -> int:
        """The number of a lease; 0, which no lease has, for a receipt of another pool."""
        pool, _, number = receipt.partition("-")
        try:
            return int(number, 16) if pool == self._id else 0
        except ValueError:
            return 0

    # --- failures -------------------------------------------------------------------------------------------------

    def _fail(self, lease: Lease, error: Exception, status: str) -> asyncio.Future[None]:
        message, took_ms = lease.work.message, self._now - lease.began
        result = Result.REJECTED if isinstance(error, Reject) else Result.FAILED
        failed = FailedDelivery(self._clock(), message.id, message.attempt, took_ms, status, str(error))
        self._figures.refused(failed, Reply(result, status))
        return self._send_back(lease.work, error)

    def _send_back(self, work: Work, error: Exception | None) -> asyncio.Future[None]:
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failures.append(_Failure(work, error, durable))
        self._turn.set()
        return durable

    async def _end(self, failure: _Failure) -> None:
        work, error = failure.work, failure.error
        try:
            if error is None:
                try:
                    await work.route.handler(work.message)
                except Exception as raised:
                    error = raised
            assert error is not None
            await self._owner.failed(work, error)
        except BaseException:
            self._owner.released(work)
            failure.durable.cancel()
            raise
        if not failure.durable.done():
            failure.durable.set_result(None)

    # --- the consumer ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """End leases at their time, and send failed messages back, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    for lease in islice(self._leases.expired(self._now), _EXPIRED_AT_ONCE):
                        held_s = (lease.until - lease.began) / 1000
                        self._fail(lease, RetryLater(f"no answer within {held_s:g} s"), "lease_ended")
                    while self._failures:
                        failure = self._failures.popleft()
                        task = tasks.create_task(self._end(failure), name="message sent back")
                        self._failing[task] = failure.work
                        task.add_done_callback(self._ended)
                    await self._sleep()
        finally:
            for failure in self._failures:
                failure.durable.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._failing[task]
        self._pulse()

    async def _sleep(self) -> None:
        self._turn_at = self._leases.next_look()
        wait_s = None if self._turn_at is None else max(self._turn_at - self._now, 0) / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._turn.wait()
        self._turn.clear()
        await asyncio.sleep(0)  # else, while leases end, no other task would get a turn

    def _look_again(self) -> None:
        """Wake `run` if a lease ends before it would look."""
        at = self._leases.next_look()
        if at is not None and (self._turn_at is None or at < self._turn_at):
            self._turn.set()

    def put(self, works: Iterable[Work]) -> None:
        """Let these messages wait for receivers."""
        ready = list[Work]()
        for work in works:
            if work.route is FORMER or work.route is UNHANDLED:
                self._send_back(work, None)
            else:
                ready.append(work)
        self._leases.put(ready)
        self._wake()

    def _wake(self) -> None:
        """Give waiting receivers a turn, first come first served, one for each message at most."""
        turns = self._leases.ready
        while turns > 0 and self._receivers:
            turn = next(iter(self._receivers))
            del self._receivers[turn]
            if not turn.done():
                turn.set_result(None)
                turns -= 1

    def saved(self) -> None:
        """See `Pool`."""
        self._unstored = {tracker: ticket for tracker, ticket in self._unstored.items() if tracker.stored < ticket}
        self._pulse()

    def _pulse(self) -> None:
        """Wake all tasks that wait for a position or for the end of a failure."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def is_free(self, key: Hashable) -> bool:
        """See `Pool`: a group keeps no order."""
        return True

    def withdraw(self, keys: Collection[Hashable]) -> None:
        """See `is_free`."""

    def release(self, trackers: Iterable[OffsetTracker]) -> None:
        """Drop the messages of these partitions: their leases end."""
        for tracker in trackers:
            tracker.closed = True
        for work in self._leases.drop(lambda work: work.tracker.closed):
            self._owner.released(work)

    async def finish(self, trackers: Iterable[OffsetTracker], within_s: float) -> bool:
        """Wait until no message of these partitions is being sent back; False after `within_s`."""
        these = set(trackers)
        try:
            async with asyncio.timeout(within_s):
                while self._failures or any(work.tracker in these for work in self._failing.values()):
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
