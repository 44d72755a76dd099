"""What one topic brings about stays with it: look-ups that fail or take long, refusals and their pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

import pytest

from duemq.bus.base import NO_LEADER, TopicInfo, TopicState, WriteRefused
from duemq.bus.memory import MemoryBus, MemoryLog
from duemq.cluster.topics.topic_states import LOOKED_UP, NOT_ASKED, UNKNOWN_TOPIC, TopicStates
from duemq.model.errors import BadConfig, LogFailed, Rejected, Unavailable
from tests.support.patience import WITHIN_S

WAITS = (1_000, 5_000, 10_000, 30_000)
NOW = 1_700_000_000_000


class Broker(MemoryBus):
    """Its topic `bad` is looked up and made as the test says; `slow` is found once the test lets it."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(MemoryLog(lambda: NOW))
        self.error, self.let, self.asked = error, asyncio.Event(), 0
        self.said: dict[str, TopicState] = {}
        self.most = self.busy = 0
        self.takes_s = 0.0

    def topic_state(self, topic: str) -> TopicState | None:
        if topic == "slow" and not self.let.is_set():
            return None
        return self.said.get(topic) or super().topic_state(topic)

    async def look_up_topics(self, topics: Collection[str]) -> None:
        if "slow" in topics:
            await self.let.wait()

    async def create_topic(self, topic: str, partitions: int) -> TopicInfo:
        self.asked += 1
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            await asyncio.sleep(self.takes_s)
            if topic == "bad" and self.error is not None:
                raise self.error
            return await super().create_topic(topic, partitions)
        finally:
            self.busy -= 1


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), WITHIN_S))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Rejected("bad_topic", "collides with a.b"), "bad_topic"),
        (WriteRefused("bad", "not_authorized", "no right"), "not_authorized"),
        (WriteRefused("bad", "policy", "no"), "policy"),
        (WriteRefused("bad", "too_few_brokers", "no"), "too_few_brokers"),
        (LogFailed("no answer"), "no_answer"),
        (Unavailable("controller moved"), "not_made"),
        (BadConfig("replication factor"), "not_made"),
        (ValueError("nobody thought of this" * 100), "failed"),
        (KeyError("bad"), "failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_a_topic_that_cannot_be_made_refuses_and_no_other_does(error: Exception, reason: str) -> None:
    async def test() -> None:
        topic_states = TopicStates(Broker(error), 1)
        known, refused = await topic_states.ready({"good", "bad"}, NOW, WAITS, 1.0)
        assert known == {"good": TopicState(1)}
        assert {topic: one.reason for topic, one in refused.items()} == {"bad": reason}
        assert topic_states.reasons(NOW) == {"bad": reason}
        assert 0 < len(topic_states.troubles(NOW)["bad"]) <= 200
        assert refused["bad"].counts is (reason != "no_answer")

    run(test)


def test_it_is_asked_again_after_pauses_that_grow_and_is_used_once_it_is_there() -> None:
    async def test() -> None:
        bus = Broker(WriteRefused("bad", "policy", "no"))
        topic_states = TopicStates(bus, 1)
        now, waits = NOW, []
        for _ in range(5):
            _, refused = await topic_states.ready({"bad"}, now, WAITS, 1.0)
            again = await topic_states.ready({"bad"}, refused["bad"].until - 1, WAITS, 1.0)
            assert again[1] == refused, "nobody is asked before the pause is over"
            waits.append(refused["bad"].until - now)
            now = refused["bad"].until
        assert waits == [1_000, 5_000, 10_000, 30_000, 30_000]
        assert bus.asked == 5
        _, refused = await topic_states.ready({"bad"}, now, WAITS, 1.0)
        bus.error = None
        await bus.create_topic("bad", 3)  # by somebody else: that is used at once
        assert await topic_states.ready({"bad"}, now + 1, WAITS, 1.0) == ({"bad": TopicState(3)}, {})
        assert topic_states.trouble("bad", refused["bad"].until + 60_000) is None

    run(test)


def test_a_slow_look_up_goes_on_in_the_background_and_costs_no_attempt() -> None:
    async def test() -> None:
        bus = Broker()
        await bus.create_topic("slow", 2)
        topic_states = TopicStates(bus, 1)
        known, refused = await topic_states.ready({"slow", "good"}, NOW, WAITS, 0.0)
        assert "slow" not in known
        assert refused["slow"].reason == LOOKED_UP and not refused["slow"].counts
        assert refused["slow"].until - NOW <= 100
        assert topic_states.troubles(NOW) == {}, "that is nothing an operator has to know"
        bus.let.set()
        assert (await topic_states.resolve(["slow"]))["slow"] == TopicState(2)
        known, refused = await topic_states.ready({"slow"}, NOW + 1, WAITS, 0.0)
        assert known == {"slow": TopicState(2)} and not refused

    run(test)


def test_a_look_up_that_always_fails_after_its_time_is_up_is_heard() -> None:
    """Messages to such a topic were put off for ever, several times a second, and nobody was told why."""

    async def test() -> None:
        broker = Broker(WriteRefused("bad", "not_authorized", "no right"))
        broker.takes_s = 0.05
        topic_states, now = TopicStates(broker, 1), NOW
        for _ in range(3):
            for patience_s in (0.0, 0.01):
                _, refused = await topic_states.ready({"bad"}, now, WAITS, patience_s)
                assert refused["bad"].reason == LOOKED_UP
                await asyncio.wait(topic_states.lookups.values())
                now = refused["bad"].until
                _, refused = await topic_states.ready({"bad"}, now, WAITS, patience_s)
                assert refused["bad"].reason == "not_authorized" and refused["bad"].counts
                assert topic_states.reasons(now) == {"bad": "not_authorized"}
                now = refused["bad"].until
        assert broker.asked == 6
        assert refused["bad"].times == 6, "its pauses grow, and it is told once"
        broker.error = None
        await topic_states.ready({"bad"}, now, WAITS, 0.0)
        await asyncio.wait(topic_states.lookups.values())
        known, _ = await topic_states.ready({"bad"}, now, WAITS, 0.0)
        assert known == {"bad": TopicState(1)}

    run(test)


def test_a_topic_that_was_just_made_is_waited_for_and_costs_no_attempt() -> None:
    """Its first record may take a second, and all that is committed with it."""

    async def test() -> None:
        bus = Broker()
        topic_states = TopicStates(bus, 1)
        bus.said = {"fresh": TopicState(1, is_new=True), "good": TopicState(1)}
        known, refused = await topic_states.ready(["fresh", "good"], NOW, WAITS, 0.0)
        assert known.keys() == {"good"} and refused["fresh"].reason == LOOKED_UP
        assert refused["fresh"].until - NOW <= 1_000 and not refused["fresh"].counts
        assert topic_states.trouble("fresh", NOW) is None, "nothing is wrong with it"
        assert (await topic_states.resolve(["fresh"])).keys() == {"fresh"}, "messages to it are accepted"
        bus.said["fresh"] = TopicState(1)
        known, refused = await topic_states.ready(["fresh", "good"], refused["fresh"].until, WAITS, 0.0)
        assert known.keys() == {"fresh", "good"} and not refused
        await topic_states.close()

    run(test)


def test_many_topics_are_made_side_by_side_within_a_bound() -> None:
    async def test() -> None:
        bus = Broker()
        topic_states = TopicStates(bus, 1)
        names = {f"t{number}" for number in range(200)}
        assert (await topic_states.resolve(names)).keys() == names
        assert 1 < bus.most <= 16

    run(test)


def test_what_the_bus_hears_of_a_topic_is_used_at_once() -> None:
    async def test() -> None:
        bus = Broker()
        topic_states = TopicStates(bus, 1)
        await bus.create_topic("t", 2)
        assert (await topic_states.resolve(["t"]))["t"].partitions == 2
        bus.said["t"] = TopicState(8, max_frame_bytes=100)
        assert (await topic_states.resolve(["t"]))["t"] == TopicState(8, 100)
        bus.said["t"] = replace(bus.said["t"], trouble=dict.fromkeys(range(8), NO_LEADER))
        known, refused = await topic_states.ready({"t"}, NOW, WAITS, 1.0)
        assert not known and refused["t"].reason == NO_LEADER and not refused["t"].counts
        assert "no broker leads partition: 0, 1" in topic_states.troubles(NOW)["t"]
        bus.said["t"] = TopicState(8)
        assert (await topic_states.ready({"t"}, NOW + 1, WAITS, 1.0))[0] == {"t": TopicState(8)}, "the pause is over"

    run(test)


def test_a_topic_that_is_never_made_is_asked_for_once_a_second() -> None:
    async def test() -> None:
        topic_states = TopicStates(Broker(), 0)
        for turn in range(4):
            _, refused = await topic_states.ready({"nowhere"}, NOW + turn * 1_000, WAITS, 1.0)
            assert (refused["nowhere"].reason, refused["nowhere"].until) == (UNKNOWN_TOPIC, NOW + (turn + 1) * 1_000)
            assert UNKNOWN_TOPIC not in NOT_ASKED

    run(test)


def test_what_is_shown_and_remembered_is_bounded() -> None:
    async def test() -> None:
        topic_states = TopicStates(Broker(), 0)
        for number in range(3_000):
            topic_states.refuse(f"t{number:04}", "refused", NOW + number * 10, WAITS, "x" * 10_000)
        assert len(topic_states.troubles(NOW + 30_000)) == 16
        assert len(topic_states.refusals) <= 1_000
        assert max(map(len, topic_states.troubles(NOW + 30_000).values())) == 200

    run(test)


def test_two_shards_that_meet_the_same_refusal_note_it_once() -> None:
    async def test() -> None:
        topic_states = TopicStates(Broker(), 0)
        first = topic_states.refuse("t", "not_authorized", NOW, WAITS)
        assert topic_states.refuse("t", "not_authorized", NOW + 5, WAITS) == first

    run(test)


def test_refusals_have_a_bound_and_those_that_were_noted_last_are_known() -> None:
    topic_states = TopicStates(Broker(), 0)
    for number in range(3_000):
        topic_states.refuse(f"topic-{number}", LOOKED_UP, NOW, WAITS, absent=True)
        topic_states.refuse(f"topic-{number}", "not_authorized", NOW, WAITS)
        topic_states.refuse("always", "not_authorized", NOW + number * WAITS[-1], WAITS)
    assert len(topic_states.refusals) == len(topic_states.lookup_refusals) == 1_000
    assert topic_states.refusals["always"].times == 3_000
    assert topic_states.trouble("topic-2999", NOW) and not topic_states.trouble("topic-0", NOW)
