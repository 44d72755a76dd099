"""Sends the due messages of a cycle. Defers or dead-letters those that cannot be sent."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from duemq.bus.base import TopicState
from duemq.bus.partitioner import partition_of
from duemq.cluster.topics.topic_states import LOOKED_UP, NEEDS_KEY, TOO_LARGE, Refusal, TopicStates
from duemq.delay.core.cycle import Cycle, Due
from duemq.delay.core.limits import CycleLimits
from duemq.delay.core.outbox import Outbox
from duemq.model.log.ledger import DeferredMessage
from duemq.model.messages.key import due_of, make_key, offset_of
from duemq.model.messages.plain import dead_letter
from duemq.model.messages.record import shorten
from duemq.model.messages.row import (
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

_NO_LIMIT = 1 << 62
_PATIENCE_S, _PATIENT_AGAIN_MS = 0.03, 1_000


class _Back(NamedTuple):
    """A due message that is not sent: the number of its failed attempts, the reason, the earliest time for the next
    attempt (ms), and whether it becomes a dead letter."""

    due: Due
    attempt: int
    reason: str
    until: int
    dead: bool


class Dispatch:
    """Makes the outboxes for one shard's cycles."""

    def __init__(self, topic_states: TopicStates, cycle_limits: CycleLimits, shard: int) -> None:
        self._topic_states, self._cycle_limits, self._shard = topic_states, cycle_limits, shard
        self._patient_from = 0  # when (ms) a cycle may next wait for lookups
        self._cycle_topics: dict[str, TopicState] = {}  # the current cycle's topics and their states

    async def outbox(self, cycle: Cycle, now: int) -> Outbox:
        """The outbox of the cycle. Messages that cannot be sent are deferred; the ledger records each of them."""
        encoded_topics = topics_of(cycle.due)
        topics = set(map(bytes.decode, encoded_topics))
        if cycle.malformed:
            topics.add(self._cycle_limits.dead_letter_topic)
        self._cycle_topics, refusals = await self._ready(topics, now)
        back: list[_Back] = []
        if refusals or any_expires(cycle.due) or self._is_choosy(cycle.due):
            back = self._sift(cycle, refusals, now)
            if any(one.dead for one in back) and self._cycle_limits.dead_letter_topic not in topics:
                self._cycle_topics |= (await self._ready({self._cycle_limits.dead_letter_topic}, now))[0]
        topic_states = self._cycle_topics
        closed_partitions = {topic: about.trouble for topic, about in topic_states.items() if about.trouble}
        outbox = Outbox(
            self._shard + cycle.before.number + 1,
            {topic: about.partitions for topic, about in topic_states.items()},
            closed_partitions,
        )
        for due, attempt, reason, until, dead in back:
            if dead:
                self._dead_letter(cycle, outbox, due, attempt, reason, now)
            else:
                self._defer(cycle, due, now, attempt, reason, until)
        outbox.add(cycle.due, encoded_topics)
        if cycle.overdue:
            outbox.count_from_acceptance(cycle.overdue, now)
        for (offset, _, frame), reason in cycle.malformed:
            if self._takes_dead_letters:
                self._add_dead(outbox, None, dead_letter(frame, self._shard, offset, reason))
            else:  # unlike a message, a command cannot wait for the topic; its record stays in the log
                log.error(
                    "shard %d: command %d is malformed (%s) and %s takes no dead letters", self._shard, offset, reason,
                    self._cycle_limits.dead_letter_topic, extra={"action": "malformed", "shard": self._shard},
                )  # fmt: skip
        return outbox

    async def _ready(self, topics: set[str], now: int) -> tuple[dict[str, TopicState], dict[str, Refusal]]:
        """See `TopicStates.ready`. A cycle waits up to 30 ms for lookups. If that was too short, cycles do not
        wait at all for the next second, so that lookups delay a shard only a little, however many topics it has."""
        patience_s = _PATIENCE_S if now >= self._patient_from else 0.0
        topic_states, refusals = await self._topic_states.ready(topics, now, self._cycle_limits.retry_ms, patience_s)
        if any(refusal.reason == LOOKED_UP for refusal in refusals.values()):
            self._patient_from = now + _PATIENT_AGAIN_MS
        return topic_states, refusals

    def _is_choosy(self, due: list[Due]) -> bool:
        """Whether some topic in this cycle may refuse some of its messages and accept others."""
        topic_states = self._cycle_topics.values()
        if any(about.needs_key or about.trouble for about in topic_states):
            return True
        least = min((about.max_frame_bytes or _NO_LIMIT for about in topic_states), default=_NO_LIMIT)
        return least < _NO_LIMIT and bool(due) and max(len(row) for _, row in due) > least

    def _sift(self, cycle: Cycle, refusals: Mapping[str, Refusal], now: int) -> list[_Back]:
        """Remove from the due messages those that have expired, and those that their topic refuses. Return them."""
        cycle_limits = self._cycle_limits
        going: list[Due] = []
        back: list[_Back] = []
        for due in cycle.due:
            row = due[1]
            topic, expires, attempt = topic_of(row).decode(), expires_of(row), attempt_of(row)
            if expires and expires < now:
                back.append(_Back(due, attempt, "expired", 0, True))
                continue
            refusal = refusals.get(topic) or self._refusal_of(topic, row, now)
            if refusal is None:
                going.append(due)
            elif refusal.counts:
                back.append(_Back(due, attempt + 1, refusal.reason, 0, attempt + 1 >= cycle_limits.max_attempts))
            else:
                back.append(_Back(due, attempt, refusal.reason, refusal.until, False))
        cycle.due = going
        return back

    def _refusal_of(self, topic: str, row: bytes, now: int) -> Refusal | None:
        """Why a topic that accepts other messages refuses this one; None if it does not."""
        about, waits = self._cycle_topics[topic], self._cycle_limits.retry_ms
        limit = about.max_frame_bytes
        if limit is not None and len(row) > limit and len(frame_in(row)) > limit:
            return self._topic_states.refuse(topic, TOO_LARGE, now, waits, whole=False)
        if not about.needs_key and not about.trouble:
            return None
        key = message_key_in(row)
        if about.needs_key and key is None:
            return self._topic_states.refuse(topic, NEEDS_KEY, now, waits, whole=False)
        if about.trouble and key is not None:
            reason = about.trouble.get(partition_of(key, about.partitions))
            if reason is not None:
                return self._topic_states.refuse(topic, reason, now, waits, about.trouble_text, whole=False)
        return None

    def _defer(self, cycle: Cycle, due: Due, now: int, attempt: int, reason: str, until: int = 0) -> None:
        waits = self._cycle_limits.retry_ms
        # Above the cursor even if the clock went back: a message below the cursor would never be delivered.
        at = max(until or now + waits[max(min(attempt, len(waits)), 1) - 1], due_of(cycle.cursor) + 1)
        # The key's offset and row number stay the same, so that two deferred messages never get the same key.
        key = due[0]
        to = make_key(at, offset_of(key), int.from_bytes(key[16:], "big"))
        cycle.defer(due, DeferredMessage(key, to, attempt, reason))

    def _dead_letter(self, cycle: Cycle, outbox: Outbox, due: Due, attempt: int, reason: str, now: int) -> None:
        row = due[1]
        if not self._takes_dead_letters:
            self._defer(cycle, due, now, attempt_of(row), reason)
            return
        self._add_dead(outbox, message_key_in(row), dead_frame(row, reason, attempt))
        cycle.defer(due, DeferredMessage(due[0], None, attempt, reason))

    # --- dead letters ---------------------------------------------------------------------------------------------

    @property
    def _takes_dead_letters(self) -> bool:
        return self._cycle_limits.dead_letter_topic in self._cycle_topics

    def _add_dead(self, outbox: Outbox, key: bytes | None, frame: bytes) -> None:
        topic = self._cycle_limits.dead_letter_topic
        outbox.add_frame(topic, key, shorten(frame, self._cycle_topics[topic].max_frame_bytes or _NO_LIMIT))
