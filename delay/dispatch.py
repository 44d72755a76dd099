"""What a cycle does with the messages that are due: sent, deferred where the target refuses, or buried."""

from __future__ import annotations

import logging
from typing import NamedTuple

from duemq.delay.outbox import Outbox
from duemq.delay.pace import Pace
from duemq.delay.rules import Cycle, Due
from duemq.delay.targets import TOO_LARGE, UNKNOWN_TOPIC, Targets
from duemq.model.key import due_of, make_key, offset_of
from duemq.model.ledger import Deferred
from duemq.model.plain import dead_letter
from duemq.model.record import shortened
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

_NO_LIMIT = 1 << 62


class _Held(NamedTuple):
    """A due message that does not go out: its failed attempts, why, and whether it is for the dead letters."""

    due: Due
    attempt: int
    reason: str
    dead: bool


class Dispatch:
    """Makes the outbox of one shard's cycles."""

    def __init__(self, targets: Targets, pace: Pace, shard: int) -> None:
        self._targets, self._pace, self._shard = targets, pace, shard

    async def outbox(self, cycle: Cycle, now: int) -> Outbox:
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
            held = self._sift(cycle, refused, now)
            if any(one.dead for one in held):
                await targets.resolve([self._pace.dead_letter_topic])
            for due, attempt, reason, dead in held:
                if dead:
                    self._bury(cycle, outbox, due, attempt, reason, now)
                else:
                    self._defer(cycle, due, now, attempt, reason)
        outbox.add(cycle.due, wanted)
        for (offset, _, frame), reason in cycle.malformed:
            if self._takes_dead_letters(now):
                self._add_dead(outbox, None, dead_letter(frame, offset, reason))
            else:  # it is a command, which cannot wait for the topic as a message can; its record stays in the log
                log.error(
                    "shard %d: command %d is malformed (%s) and %s takes no dead letters", self._shard, offset, reason,
                    self._pace.dead_letter_topic, extra={"action": "malformed", "shard": self._shard},
                )  # fmt: skip
        return outbox

    def _any_too_large(self, due: list[Due], wanted: set[bytes]) -> bool:
        limits = self._targets.max_bytes
        if not limits or not due:
            return False
        least = min(limits.get(topic.decode(), _NO_LIMIT) for topic in wanted)
        return max(len(row) for _, row in due) > least

    def _sift(self, cycle: Cycle, refused: dict[str, str], now: int) -> list[_Held]:
        """Take out of the due messages those that expired and those whose target refuses them."""
        limits, most = self._targets.max_bytes, self._pace.max_attempts
        going: list[Due] = []
        held: list[_Held] = []
        for due in cycle.due:
            row = due[1]
            topic, expires = topic_of(row).decode(), expires_of(row)
            if expires and expires < now:
                held.append(_Held(due, attempt_of(row), "expired", True))
                continue
            if topic in refused:
                reason = refused[topic]
            elif len(row) > limits.get(topic, _NO_LIMIT) and len(frame_in(row)) > limits[topic]:
                reason = TOO_LARGE
            else:
                going.append(due)
                continue
            attempt = attempt_of(row) + 1
            held.append(_Held(due, attempt, reason, attempt >= most))
        cycle.due = going
        return held

    def _defer(self, cycle: Cycle, due: Due, now: int, attempt: int, reason: str) -> None:
        waits = self._pace.retry_ms
        # Above the cursor even where the clock went back: below it nothing is ever delivered.
        at = max(now + waits[max(min(attempt, len(waits)), 1) - 1], due_of(cycle.cursor) + 1)
        # The offset and row stay, so that two deferred messages never meet under one key.
        key = due[0]
        to = make_key(at, offset_of(key), int.from_bytes(key[16:], "big"))
        cycle.defer(due, Deferred(key, to, attempt, reason))

    def _bury(self, cycle: Cycle, outbox: Outbox, due: Due, attempt: int, reason: str, now: int) -> None:
        row = due[1]
        if not self._takes_dead_letters(now):
            self._defer(cycle, due, now, attempt_of(row), reason)
            return
        self._add_dead(outbox, message_key_in(row), dead_frame(row, reason))
        cycle.defer(due, Deferred(due[0], None, attempt, reason))

    # --- dead letters ---------------------------------------------------------------------------------------------

    def _takes_dead_letters(self, now: int) -> bool:
        topic = self._pace.dead_letter_topic
        return topic in self._targets.known and topic not in self._targets.refused(now)

    def _add_dead(self, outbox: Outbox, key: bytes | None, frame: bytes) -> None:
        topic = self._pace.dead_letter_topic
        outbox.add_frame(topic, key, shortened(frame, self._targets.max_bytes.get(topic, _NO_LIMIT)))
