"""The topics that a process uses: what each accepts, and why some currently accept nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from duemq.bus.base import NO_LEADER, TOO_FEW_REPLICAS, Bus, TopicState, WriteRefused
from duemq.cluster.topics.internal_topics import INTERNAL
from duemq.model.errors import Fatal, LogFailed, Rejected, Unavailable

log = logging.getLogger(__name__)

UNKNOWN_TOPIC, TOO_LARGE, NEEDS_KEY = "unknown_topic", "too_large", "needs_key"
LOOKED_UP = "being_looked_up"

# The brokers are partly down, or have not answered yet. Neither the message nor its topic's settings are at fault, so
# no attempt is counted, and a message outlives an outage of any length.
PASSING = frozenset((LOOKED_UP, "no_answer", NO_LEADER, TOO_FEW_REPLICAS))

_OBSERVABLE = frozenset((NO_LEADER, TOO_FEW_REPLICAS))  # the bus notices when these end
NOT_ASKED = PASSING | {"not_made", "failed"}
"""Reasons why it is uncertain whether an unknown topic exists or can be created."""

_SENTENCES = {
    UNKNOWN_TOPIC: "it does not exist",
    TOO_LARGE: "messages are larger than it accepts (max.message.bytes)",
    NEEDS_KEY: "it is compacted and accepts only messages with a key",
    LOOKED_UP: "it is being looked up",
    "no_answer": "the brokers did not answer for it in time",
    "not_authorized": "duemq's user may not write to it",
}
_LOOK_WAITS_MS = (50, 100, 200, 500)
_NEW_WAITS_MS = (500,)
_PASSING_WAITS = 3  # use only the first pauses, to notice the end of an outage soon
_UNKNOWN_WAITS = 1  # the same, to use a new topic soon
_SIDE_BY_SIDE = 16
_MAX_SHOWN = 16
_TRIED_MS = 2_000  # how long a refusal is still reported while the topic is being tried again
_DETAIL_CHARACTERS = 200
_MAX_REFUSALS = 1_000  # a limit, because senders may send any name
_ANSWER_S = 30.0  # how long the result of a failed lookup is kept


class Refusal(NamedTuple):
    """Why a topic accepts nothing, when (epoch ms) it is tried again, and how many times in a row it has refused.

    `whole` is False if the topic accepts some messages: those for other partitions, or with a key. `detail`: the reason
    in a sentence. `absent`: the topic was unknown; the refusal ends as soon as the topic is known.
    """

    reason: str
    until: int
    times: int
    whole: bool
    detail: str
    absent: bool

    @property
    def counts(self) -> bool:
        """Whether the refusal uses up an attempt of the refused message."""
        return self.reason not in PASSING

    def is_visible(self, now: int) -> bool:
        """Whether to report the refusal. It is also reported while the topic is being tried again."""
        return self.reason != LOOKED_UP and self.until + _TRIED_MS > now


class TopicStates:
    """Looks up topics, creates missing ones if allowed (`partitions` > 0), and remembers refusals.

    What a topic accepts is always as last reported by the bus. No method raises because of a single topic.
    """

    def __init__(self, bus: Bus, partitions: int) -> None:
        self.bus, self._partitions = bus, partitions
        self.refusals: dict[str, Refusal] = {}
        self.lookup_refusals: dict[str, Refusal] = {}  # for topics that are being looked up
        self.lookups: dict[str, asyncio.Task[None]] = {}
        # By topic, until `why_not` is called: reason and sentence of a failed lookup, and its time (s).
        self._answers: dict[str, tuple[str, str, float]] = {}
        self._turn = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def learn(self, needed: Collection[str] = ()) -> None:
        """Look up all topics, so that the first message to each topic need not wait for a lookup.

        The topics in `needed` are created with one partition, even if no other topics may be created. After a failure
        the process continues.
        """
        for topic in needed:
            try:
                await self.bus.create_topic(topic, 1)
            except (WriteRefused, Rejected, LogFailed) as error:
                log.error("topic %s is not there: %s", topic, error, extra={"action": "topics"})
        try:
            topics = await self.bus.topics()
            await self.bus.look_up_topics([topic.name for topic in topics if topic.name not in INTERNAL])
        except LogFailed as error:  # trouble with one topic in a shared log must not prevent the start
            log.warning("topics are looked up as they are needed: %s", error, extra={"action": "topics"})

    async def close(self) -> None:
        for lookup in (lookups := list(self.lookups.values())):
            lookup.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)

    # --- asking -----------------------------------------------------------------------------------------------------

    async def resolve(self, topics: Iterable[str], patience_s: float | None = None) -> dict[str, TopicState]:
        """What these topics accept. Unknown topics are looked up, and created if allowed, concurrently.

        The result leaves out topics that are not known within `patience_s` (None: until all lookups have ended).
        """
        topic_state = self.bus.topic_state
        topic_states = {topic: answer for topic in topics if (answer := topic_state(topic)) is not None}
        if lookups := [self._look_up(topic) for topic in topics if topic not in topic_states]:
            await asyncio.wait(lookups, timeout=patience_s)
            topic_states |= {
                topic: answer
                for topic in topics
                if topic not in topic_states and (answer := topic_state(topic)) is not None
            }
        return topic_states

    async def ready(
        self, topics: Collection[str], now: int, waits_ms: Sequence[int], patience_s: float
    ) -> tuple[dict[str, TopicState], dict[str, Refusal]]:
        """The topics to which messages can be sent at `now` (epoch ms), and why the other topics refuse them.

        `waits_ms`: the pauses after the first and each further refusal in a row. Lookups that take longer than
        `patience_s` continue in the background.
        """
        refusals: dict[str, Refusal] = {}
        for topic in topics:
            refusal = self.lookup_refusals.get(topic)
            if refusal is None or refusal.until <= now:
                refusal = self.refusals.get(topic)
            if refusal is None or not refusal.whole or refusal.until <= now:
                continue
            about = self.bus.topic_state(topic) if refusal.absent or refusal.reason in _OBSERVABLE else None
            if about is None or len(about.trouble) == about.partitions:
                refusals[topic] = refusal
        # These lookups failed in the background, after `patience_s`. Use their results: a new lookup would take just as
        # long, and its result would be missed again.
        failed_lookups = self._unheard(topics)
        topic_states = await self.resolve(
            [topic for topic in topics if topic not in refusals.keys() | failed_lookups], patience_s
        )
        topic_states |= {topic: about for topic in failed_lookups if (about := self.bus.topic_state(topic)) is not None}
        for topic in topics:
            about = topic_states.get(topic)
            if about is None and topic not in refusals:
                refusals[topic] = self._unknown(topic, now, waits_ms)
            elif about is not None and len(about.trouble) == about.partitions:
                reason = next(iter(about.trouble.values()))
                refusals[topic] = self.refuse(topic, reason, now, waits_ms, about.trouble_text)
                del topic_states[topic]
            elif about is not None and about.is_new:
                refusals[topic] = self.refuse(topic, LOOKED_UP, now, _NEW_WAITS_MS)
                del topic_states[topic]
        return topic_states, refusals

    def why_not(self, topic: str) -> tuple[str, str]:
        """Why a topic is unknown after its lookup, as a reason and a sentence. Call it once per lookup."""
        reason, detail, _ = self._answers.pop(topic, (UNKNOWN_TOPIC, _SENTENCES[UNKNOWN_TOPIC], 0.0))
        return reason, detail

    def _unheard(self, topics: Collection[str]) -> set[str]:
        """Topics whose lookup failed recently and for which `why_not` was not called since."""
        since = asyncio.get_running_loop().time() - _ANSWER_S
        return {topic for topic in self._answers.keys() & topics if self._answers[topic][2] > since}

    def _unknown(self, topic: str, now: int, waits_ms: Sequence[int]) -> Refusal:
        if topic in self.lookups:
            return self.refuse(topic, LOOKED_UP, now, _LOOK_WAITS_MS, absent=True)
        reason, detail = self.why_not(topic)
        return self.refuse(topic, reason, now, waits_ms, detail, absent=True)

    def _look_up(self, topic: str) -> asyncio.Task[None]:
        lookup = self.lookups.get(topic)
        if lookup is None:
            lookup = self.lookups[topic] = asyncio.create_task(self._find_or_make(topic), name=f"topic {topic}")
            lookup.add_done_callback(lambda _: self.lookups.pop(topic, None))
        return lookup

    async def _find_or_make(self, topic: str) -> None:
        self._answers.pop(topic, None)
        try:
            async with self._turn:
                await self.bus.look_up_topics([topic])
                if self.bus.topic_state(topic) is None and self._partitions:
                    await self.bus.create_topic(topic, self._partitions)
            return
        except WriteRefused as error:
            reason, detail = error.reason, error.detail
        except Rejected as error:
            reason, detail = error.code, error.detail
        except LogFailed as error:
            reason, detail = "no_answer", error.detail
        except (Unavailable, Fatal) as error:
            reason, detail = "not_made", str(error)
        except Exception as error:  # an error with one topic affects only this topic
            log.exception("topic %s: the look-up failed", topic, extra={"action": "topic_lookup", "topic": topic})
            reason, detail = "failed", repr(error)
        if len(self._answers) >= _MAX_REFUSALS:
            self._answers.clear()
        self._answers[topic] = reason, detail, asyncio.get_running_loop().time()

    # --- refusals ---------------------------------------------------------------------------------------------------

    def refuse(
        self, topic: str, reason: str, now: int, waits_ms: Sequence[int], detail: str = "",
        *, whole: bool = True, absent: bool = False,
    ) -> Refusal:  # fmt: skip
        """Record a refusal. A topic that accepts nothing is tried again after a pause that grows with each refusal in a
        row."""
        if reason == UNKNOWN_TOPIC:
            waits_ms = waits_ms[:_UNKNOWN_WAITS]
        elif reason in PASSING:
            waits_ms = waits_ms[:_PASSING_WAITS]
        notes = self.lookup_refusals if reason == LOOKED_UP else self.refusals
        before = notes.get(topic)
        if before is not None and before.until > now and before.whole >= whole:
            return before  # another shard has recorded the refusal
        again = before is not None and before.reason == reason and now <= before.until + waits_ms[-1]
        times = before.times + 1 if before is not None and again else 1
        detail = (detail or _SENTENCES.get(reason, reason))[:_DETAIL_CHARACTERS]
        refusal = Refusal(reason, now + waits_ms[min(times, len(waits_ms)) - 1], times, whole, detail, absent)
        notes.pop(topic, None)
        notes[topic] = refusal  # keep the latest one last
        if len(notes) > _MAX_REFUSALS:
            del notes[next(iter(notes))]
        if not again and reason != LOOKED_UP:
            log.warning(
                "topic %s takes %s: %s", topic, "nothing" if whole else "not every message", detail,
                extra={"action": "topic_refused", "topic": topic, "reason": reason},
            )  # fmt: skip
        return refusal

    def trouble(self, topic: str, now: int) -> str | None:
        """A topic's problem, in a sentence; None if none is known."""
        refusal = self.refusals.get(topic)
        if refusal is not None and refusal.is_visible(now):
            return refusal.detail
        about = self.bus.topic_state(topic)
        return about.trouble_text or None if about is not None else None

    def troubles(self, now: int) -> dict[str, str]:
        """Some of the topics that refuse messages at `now` (epoch ms), each with a sentence.

        Includes duemq's own topics that are blocked or misconfigured.
        """
        refused = {topic: refusal.detail for topic, refusal in self._visible_refusals(now)}
        blocked = {topic: one.sentence(number) for (topic, number), one in self.bus.blocked().items()}
        return refused | blocked | dict(self.bus.misfits())

    def reasons(self, now: int) -> dict[str, str]:
        """The same topics of messages, each with the reason as a code."""
        return {topic: refusal.reason for topic, refusal in self._visible_refusals(now)}

    def _visible_refusals(self, now: int) -> list[tuple[str, Refusal]]:
        return sorted((topic, one) for topic, one in self.refusals.items() if one.is_visible(now))[:_MAX_SHOWN]
