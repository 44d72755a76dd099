"""The master of a shard: one tick does all that is due and says how long to sleep."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from duemq.bus.base import Bus, Committer, Partition
from duemq.delay.clean import horizon_for
from duemq.delay.observe import Observer
from duemq.delay.outbox import Outbox
from duemq.delay.progress import Progress
from duemq.delay.replica import Replica
from duemq.delay.rules import Cycle, Due
from duemq.delay.targets import TOO_LARGE, UNKNOWN_TOPIC, Targets
from duemq.delay.topics import BUFFER, LEDGER
from duemq.model.key import due_of, make_key, offset_of
from duemq.model.ledger import Deferred
from duemq.model.plain import dead_letter
from duemq.model.record import pack_record
from duemq.model.row import (
    any_expires,
    attempt_of,
    dead_frame,
    expires_of,
    frame_in,
    message_key_in,
    topic_of,
    topics_of,
)

log = logging.getLogger(__name__)

_IDLE_S = 0.5  # the longest sleep: slots of the wheel are expanded seconds before their time
_MORE = 0.0
_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Pace:
    """Bounds of a cycle.

    `retry_ms`: how long after each failed attempt the next one is made; the last holds for all further ones.
    `history_ms`: how long what ended is known, counted from its due time; None = for ever.
    """

    max_commands: int = 4_096
    max_messages: int = 4_096
    max_bytes: int = 8 << 20
    max_attempts: int = 16
    retry_ms: tuple[int, ...] = (1_000, 5_000, 10_000, 30_000, 60_000)
    dead_letter_topic: str = "duemq.dlq"
    history_ms: int | None = None


class Context(Protocol):
    """What the shards of a node share. `clock` gives epoch ms."""

    @property
    def targets(self) -> Targets: ...
    @property
    def observer(self) -> Observer: ...
    @property
    def clock(self) -> Callable[[], int]: ...


class Master:
    """Runs the cycles of one shard, one at a time."""

    def __init__(
        self, replica: Replica, bus: Bus, committer: Committer, context: Context, pace: Pace, progress: Progress
    ) -> None:
        self._replica, self._bus, self._committer, self._pace, self._progress = replica, bus, committer, pace, progress
        self._targets, self._observer, self._clock = context.targets, context.observer, context.clock
        self._shard = replica.shard
        self._ledger: Partition = (LEDGER, self._shard)

    async def tick(self) -> float:
        """Do all that is due in one cycle. Returns the seconds until the next one is needed, 0 for at once.

        Raises Fenced when another master took over, Fatal where the books differ, StoreFailed when the outcome of the
        commit is unknown: in each case this object is of no more use.
        """
        replica, pace = self._replica, self._pace
        now = self._clock()
        expanding = replica.expand(now)
        commands = await self._bus.read(BUFFER, self._shard, replica.entry.applied, pace.max_commands, pace.max_bytes)
        cycle = replica.cycle()
        cycle.apply(commands)
        keys, rows, complete = replica.due(now, pace.max_messages, pace.max_bytes)
        cycle.take(now, keys, rows, complete)
        horizon = self._horizon(now)
        if cycle.idle and horizon == cycle.before.horizon:
            return _MORE if expanding else self._pause(now)
        outbox = await self._outbox(cycle, now)
        entry = cycle.entry(now, horizon)
        batches: dict[Partition, list[bytes]] = {where: frames for where, frames in outbox.batches.items() if frames}
        batches[self._ledger] = [pack_record(None, (), entry.encode())]
        landed = await self._committer.commit(batches)
        # Committed: from here to the end nothing awaits, so that no one sees the log without its effect.
        replica.advance(cycle, entry, landed[self._ledger].first_offset + 1)
        self._progress.publish(entry)
        self._observer.cycle(self._shard, entry, outbox, commands=len(commands), started=now, ended=self._clock())
        # A read may give fewer commands than there are: for their bytes, or as the bus likes.
        if expanding or not complete or cycle.applied < self._bus.reach(BUFFER, self._shard):
            return _MORE
        return self._pause(self._clock())

    def _horizon(self, now: int) -> int:
        """The ledger says what is forgotten, so that all replicas give the same answers whatever they still hold."""
        before = self._replica.entry
        if self._pace.history_ms is None:
            return before.horizon
        return max(before.horizon, horizon_for(before.cursor, now - self._pace.history_ms))

    def _pause(self, now: int) -> float:
        due = self._replica.wheel.next_due()
        return _IDLE_S if due is None else min(max(due - now, 0) / 1000, _IDLE_S)

    async def _outbox(self, cycle: Cycle, now: int) -> Outbox:
        """What the cycle sends. Messages that cannot go out are deferred; each is a note in the ledger."""
        targets = self._targets
        known, refused = targets.known, targets.refused(now)
        wanted = topics_of(cycle.due)
        missing = [topic for topic in map(bytes.decode, wanted) if topic not in known and topic not in refused]
        if missing or cycle.malformed:
            await targets.resolve([*missing, self._pace.dead_letter_topic])
        refused |= {topic: UNKNOWN_TOPIC for topic in missing if topic not in known}
        refused = {topic: reason for topic, reason in refused.items() if topic.encode() in wanted}
        outbox = Outbox(self._shard + cycle.before.number + 1, known)
        if refused or any_expires(cycle.due) or self._any_too_large(cycle.due, wanted):
            await self._sift(cycle, outbox, refused, now)
        outbox.add(cycle.due, wanted)
        for (offset, _, frame), reason in cycle.malformed:
            outbox.add_frame(self._pace.dead_letter_topic, None, dead_letter(frame, offset, reason))
        return outbox

    def _any_too_large(self, due: list[Due], wanted: set[bytes]) -> bool:
        limits = self._targets.max_bytes
        if not limits or not due:
            return False
        least = min(limits.get(topic.decode(), _NO_LIMIT) for topic in wanted)
        return max(len(row) for _, row in due) > least

    async def _sift(self, cycle: Cycle, outbox: Outbox, refused: dict[str, str], now: int) -> None:
        """Take out of the due messages those that expired and those whose target refuses them."""
        limits = self._targets.max_bytes
        going: list[Due] = []
        for due in cycle.due:
            row = due[1]
            topic, expires = topic_of(row).decode(), expires_of(row)
            if expires and expires < now:
                await self._bury(cycle, outbox, due, attempt_of(row), "expired")
            elif topic in refused:
                await self._retry(cycle, outbox, due, now, refused[topic])
            elif len(row) > limits.get(topic, _NO_LIMIT) and len(frame_in(row)) > limits[topic]:
                await self._retry(cycle, outbox, due, now, TOO_LARGE)
            else:
                going.append(due)
        cycle.due = going

    async def _retry(self, cycle: Cycle, outbox: Outbox, due: Due, now: int, reason: str) -> None:
        key, row = due
        attempt = attempt_of(row) + 1
        if attempt >= self._pace.max_attempts:
            await self._bury(cycle, outbox, due, attempt, reason)
            return
        wait = self._pace.retry_ms[min(attempt, len(self._pace.retry_ms)) - 1]
        # Above the cursor even where the clock went back: below it nothing is ever delivered.
        at = max(now + wait, due_of(cycle.cursor) + 1)
        # The offset and row stay, so that two deferred messages never meet under one key.
        to = make_key(at, offset_of(key), int.from_bytes(key[16:], "big"))
        cycle.defer(due, Deferred(key, to, attempt, reason))

    async def _bury(self, cycle: Cycle, outbox: Outbox, due: Due, attempt: int, reason: str) -> None:
        await self._targets.resolve([self._pace.dead_letter_topic])
        row = due[1]
        outbox.add_frame(self._pace.dead_letter_topic, message_key_in(row), dead_frame(row, reason))
        cycle.defer(due, Deferred(due[0], None, attempt, reason))
