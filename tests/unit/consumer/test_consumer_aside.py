"""Keys that fail in their order: they hold offsets, and all other keys flow. In virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest
from aiokafka.structs import TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq.client.consumer import Consumer, ConsumerOptions, Delays, Message, RetryLater
from duemq.client.consumer.retry.policy import Wait
from tests.support.virtual_loop import VirtualLoop
from tests.unit.consumer.test_consumer_values import Plain
from tests.unit.consumer.test_consumer_whole import TOPIC, Log, working

LONG_S = 100_000.0  # in virtual time


class KeyedLog(Log):
    """A log that can be read again. `keys`: of its records, in their order; None for one that is removed."""

    def __init__(self, keys: Mapping[TopicPartition, Sequence[str | None]]) -> None:
        super().__init__(dict.fromkeys(keys, 0))
        self.keys = {each: list(some) for each, some in keys.items()}
        self.next, self.read = dict.fromkeys(keys, 0), 0

    async def pull(self, timeout_ms: int, most: int) -> dict[TopicPartition, list[Plain]]:
        await asyncio.sleep(0.001)
        for each in sorted(self.keys.keys() - self.held, key=lambda each: self.next[each]):
            records = list[Plain]()
            while self.next[each] < len(self.keys[each]) and len(records) < most:
                offset = self.next[each]
                if (key := self.keys[each][offset]) is not None:
                    records.append(Plain((), key.encode(), b"x" * 100, each.topic, each.partition, offset))
                self.next[each] += 1
            if records:
                self.read += len(records)
                return {each: records}
        await asyncio.sleep(timeout_ms / 1_000)
        return {}

    def rewind(self, partition: TopicPartition, offset: int) -> bool:
        self.next[partition] = offset
        return True

    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self.keys)


class Handled:
    """What a handler was given. `failures`: how often each message fails, by partition and offset."""

    def __init__(self, failures: Mapping[tuple[int, int], int] = {}) -> None:
        self.tries: Counter[tuple[int, int]] = Counter()
        self.failures = failures
        self.done: defaultdict[tuple[int, bytes | None], list[int]] = defaultdict(list)
        self.count, self.failure_s = 0, 0.0

    async def __call__(self, message: Message) -> None:
        record = message.record
        place = record.partition, record.offset
        self.tries[place] += 1
        await asyncio.sleep(0.001)
        if self.tries[place] <= self.failures.get(place, 0):
            await asyncio.sleep(self.failure_s)
            raise RetryLater("not yet")
        self.done[record.partition, record.key].append(record.offset)
        self.count += 1


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())  # type: ignore[arg-type]


def consumer_of(handle: Handled, **options: object) -> Consumer:
    consumer = Consumer("g", options=ConsumerOptions(ordered=True, retry=Delays(["20s"] * 5), **options))  # type: ignore[arg-type]

    async def handler(message: Message) -> None:
        await handle(message)

    consumer.add("orders", handler)
    return consumer


def test_a_failing_key_holds_offsets_and_all_others_flow() -> None:
    async def scenario() -> None:
        log, handle = KeyedLog({TOPIC: ["a"] * 2_500 + ["b"] + ["a", "c"] * 1_000}), Handled({(0, 0): 3, (0, 1_200): 1})
        consumer = consumer_of(handle, max_in_hand=400)
        async with working(consumer, log, LONG_S):
            await until(lambda: handle.count == 1_001)
            assert asyncio.get_running_loop().time() < 1_010
            handle.failure_s = 2.0
            await asyncio.sleep(25)
            assert handle.tries[0, 0] == 2 and log.read == 4_501, "nothing is read again because it is tried again"
            assert consumer.in_hand <= 5 and consumer.places[TOPIC].commit == 0
            place = log.saved[TOPIC]
            assert place.commit == 0 and place.done[0] == (2_500, 2_501) and len(place.done) == 1_001
            await until(lambda: handle.count == 4_501)
            await asyncio.sleep(10)
            assert log.saved[TOPIC].commit == 4_501
        assert handle.done[0, b"a"] == [*range(2_500), *range(2_501, 4_501, 2)]
        assert handle.tries[0, 0] == 4 and handle.tries.total() == 4_501 + 4
        assert log.read < 4 * 4_501

    run(scenario)


def test_what_is_set_aside_has_a_bound() -> None:
    async def scenario() -> None:
        other = TopicPartition("orders", 1)
        log = KeyedLog({TOPIC: ["a"] * 5_000, other: ["b"] * 300})
        handle = Handled({(0, 0): 1})
        consumer = consumer_of(handle, max_in_hand=20)
        async with working(consumer, log, LONG_S):
            await until(lambda: handle.count == 300)
            await asyncio.sleep(10)
            assert log.next[TOPIC] < 10 * 20 + 50, "and no more of this partition is read"
            await until(lambda: handle.count == 5_300)
        assert handle.done[0, b"a"] == list(range(5_000))

    run(scenario)


@pytest.mark.parametrize("removed", [range(10, 12), range(10, 50), range(48, 50)])
def test_what_the_log_has_removed_holds_nothing_up(removed: range) -> None:
    """By retention or compaction, while it was set aside."""

    async def scenario() -> None:
        log, handle = KeyedLog({TOPIC: ["a"] * 50}), Handled({(0, 0): 1})
        async with working(consumer_of(handle), log, LONG_S):
            await until(lambda: log.next[TOPIC] == 50)
            for offset in removed:
                log.keys[TOPIC][offset] = None
            log.keys[TOPIC].append("b")
            await until(lambda: handle.count == 51 - len(removed))
            log.keys[TOPIC].append("b")
            await until(lambda: handle.count == 52 - len(removed))
            await asyncio.sleep(10)
            assert log.saved[TOPIC].commit == 52

    run(scenario)


def test_a_partition_that_goes_takes_along_what_was_set_aside() -> None:
    async def scenario() -> None:
        log, handle = KeyedLog({TOPIC: ["a"] * 50 + ["b"]}), Handled({(0, 0): 1})
        consumer = consumer_of(handle)
        async with working(consumer, log, LONG_S):
            await until(lambda: handle.done[0, b"b"])
            await log.lose(TOPIC)
            assert consumer.in_hand == 0
            assert log.saved[TOPIC].done == ((50, 51),)
            await asyncio.sleep(10)
            assert handle.tries.total() == 2 and log.next[TOPIC] == 51

    run(scenario)


class Soon:
    def wait(self, retried: int) -> Wait | None:
        return Wait("after", 50 << retried)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("aabcd"), max_size=120), min_size=1, max_size=3),
    st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 119)), st.integers(1, 5), max_size=40),
    st.integers(1, 6),
    st.sampled_from([8, 20, 500]),
)
@pytest.mark.heavy
def test_whatever_fails_each_key_is_handled_once_in_its_order(
    keys: list[list[str]], failures: dict[tuple[int, int], int], concurrency: int, in_hand: int
) -> None:
    async def scenario() -> None:
        partitions = {TopicPartition("orders", number): list[str | None](some) for number, some in enumerate(keys)}
        log, handle = KeyedLog(partitions), Handled(failures)
        total = sum(map(len, keys))
        options = ConsumerOptions(ordered=True, retry=Soon(), concurrency=concurrency, max_in_hand=in_hand)
        consumer = Consumer("g", options=options)

        async def handler(message: Message) -> None:
            await handle(message)

        consumer.add("orders", handler)
        async with working(consumer, log, LONG_S):
            await until(lambda: handle.count == total)
            await asyncio.sleep(10)
            assert consumer.in_hand == consumer.in_hand_bytes == 0
        assert handle.count == total
        for (partition, key), offsets in handle.done.items():
            assert offsets == [offset for offset, each in enumerate(keys[partition]) if each.encode() == key], (
                "each once, in its order"
            )
        for each, some in partitions.items():
            assert log.saved[each].commit == len(some) if some else each not in log.saved

    run(scenario)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from("aabcd"), min_size=1, max_size=120),
    st.dictionaries(st.tuples(st.just(0), st.integers(0, 119)), st.integers(1, 5), max_size=40),
    st.floats(0.01, 3.0),
)
@pytest.mark.heavy
def test_a_member_that_dies_skips_nothing_that_it_had_set_aside(
    keys: list[str], failures: dict[tuple[int, int], int], after_s: float
) -> None:
    """Only messages that were done since the place was stored come back."""

    async def scenario() -> None:
        log, handle = KeyedLog({TOPIC: list[str | None](keys)}), Handled(failures)
        for life_s in (after_s, 100.0):
            options = ConsumerOptions(
                ordered=True, retry=Soon(), concurrency=3, max_in_hand=20, commit_pause_s=0.001, stop_s=0.01
            )
            consumer = Consumer("g", options=options)

            async def handler(message: Message) -> None:
                await handle(message)

            consumer.add("orders", handler)
            async with working(consumer, log, LONG_S):
                await asyncio.sleep(life_s)
                log.away = True  # what the end of the first one would store does not count
            place = log.saved.get(TOPIC)
            log.away, log.next[TOPIC] = False, 0 if place is None else place.commit
            log.done_before = {} if place is None else {TOPIC: place.done}
        done = [offset for offsets in handle.done.values() for offset in offsets]
        assert set(done) == set(range(len(keys))) and len(done) <= len(keys) + 20

    run(scenario)
