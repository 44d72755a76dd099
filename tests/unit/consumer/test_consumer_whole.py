"""A whole consumer without Kafka: what it pulls, what one message can do to it, and that it always ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

import pytest
from aiokafka.structs import TopicPartition

from duemq.client.consumer import Consumer, ConsumerOptions, Delays, Message, Pause, RetryLater
from duemq.client.consumer.base import FetchPosition, PartitionsMoved
from duemq.client.consumer.done_ranges import Ranges
from duemq.client.consumer.kafka.retry_publisher import RetryPublisher
from duemq.client.consumer.retry.headers import RetryOrigin, returned
from duemq.client.consumer.retry.policy import DeadLetter, Policy, Wait
from tests.support.patience import WITHIN_S
from tests.unit.consumer.test_consumer_values import Odd, Plain

pytestmark = pytest.mark.anyio

TOPIC = TopicPartition("orders", 0)


class Log:
    """A source whose partitions have so many records each. What is in `silent` never comes back."""

    def __init__(self, sizes: Mapping[TopicPartition, int], headers: Mapping[int, object] | None = None) -> None:
        self.left = {each: [record_of(each, offset, headers or {}) for offset in range(n)] for each, n in sizes.items()}
        self.held: frozenset[TopicPartition] = frozenset()
        self.saved: dict[TopicPartition, FetchPosition] = {}
        self.done_before: dict[TopicPartition, Ranges] = {}
        self.silent: set[str] = set()
        self.unsure: set[TopicPartition] = set()  # their places are not stored
        self.away = False
        self.calls: list[str] = []
        self.lost: PartitionsMoved | None = None

    async def start(self) -> None: ...

    async def _answer(self, what: str) -> None:
        self.calls.append(what)
        if what in self.silent:
            await asyncio.sleep(3_600)

    async def pull(self, timeout_ms: int, most: int) -> dict[TopicPartition, list[Plain]]:
        self.calls.append("pull")
        await asyncio.sleep(0)
        for partition in self.left.keys() - self.held:
            taken, self.left[partition] = self.left[partition][:most], self.left[partition][most:]
            if taken:
                return {partition: taken}
        await asyncio.sleep(timeout_ms / 1_000)
        return {}

    def done(self, partition: TopicPartition) -> Ranges:
        return self.done_before.get(partition, ())

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        self.held = frozenset(partitions)

    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self.left)

    async def position(self, partition: TopicPartition) -> int | None:
        return None

    async def save(self, places: Mapping[TopicPartition, FetchPosition]) -> Collection[TopicPartition]:
        await self._answer("save")
        sure = {} if self.away else {each: place for each, place in places.items() if each not in self.unsure}
        self.saved.update(sure)
        return sure.keys()

    async def let_go(self) -> None:
        await self._answer("let go")
        await self.lose(*self.left)

    async def lose(self, *partitions: TopicPartition) -> None:
        """They move to another member."""
        assert self.lost is not None
        await self.lost(partitions)

    async def idle(self) -> None:
        await self._answer("idle")

    async def stop(self) -> None:
        await self._answer("leave")


def record_of(partition: TopicPartition, offset: int, headers: Mapping[int, object]) -> Plain:
    return Plain(headers.get(offset, ()), None, b"x", partition.topic, partition.partition, offset)  # type: ignore[arg-type]


class Back:
    """Collects the messages that the consumer sends back. Opens `log`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.sent: list[tuple[int, Wait | DeadLetter, str]] = []
        self.silent = False

    async def open(
        self, topics: object, retry: object, gained: PartitionsMoved, lost: PartitionsMoved, report: object
    ) -> Log:
        self._log.lost = lost
        return self._log

    async def send_back(self, message: Message, to: Wait | DeadLetter, error: str) -> Wait | DeadLetter:
        if self.silent:
            await asyncio.sleep(3_600)
        self.sent.append((message.record.offset, to, error))
        return to

    async def close(self) -> None:
        if self.silent:
            await asyncio.sleep(3_600)


@asynccontextmanager
async def working(consumer: Consumer, log: Log, within_s: float = WITHIN_S) -> AsyncIterator[Back]:
    back = Back(log)
    consumer._log = back  # type: ignore[assignment]
    await consumer.start()
    try:
        async with asyncio.timeout(within_s):
            yield back
    finally:
        async with asyncio.timeout(within_s):
            await consumer.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.client.consumer.consumer._LATE_S", 0.1)


async def test_a_partition_that_cannot_be_stored_holds_up_no_other() -> None:
    other = TopicPartition("orders", 1)
    log, count = Log({TOPIC: 5, other: 300}), 0
    log.unsure = {TOPIC}
    consumer = Consumer("g", options=ConsumerOptions(max_in_hand=20, commit_interval_s=0.01))

    @consumer.on("orders")
    async def handle(message: Message) -> None:
        nonlocal count
        count += 1

    async with working(consumer, log):
        await until(lambda: count == 305 and other in log.saved and log.saved[other].commit == 300)
        assert TOPIC not in log.saved
        log.unsure = set()
        await until(lambda: TOPIC in log.saved)


# --- a stop ends ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("silent", ["save", "let go", "leave"])
async def test_a_stop_ends_whatever_is_away(silent: str) -> None:
    consumer, log = Consumer("g", options=ConsumerOptions(stop_s=0.05, commit_interval_s=3_600)), Log({TOPIC: 3})
    consumer.add("orders", seen_by_nobody)
    async with working(consumer, log) as back:
        await until(lambda: consumer.counts["orders", "done"] == 3)
        log.silent.add(silent)
        back.silent = True
    assert log.calls[-1] == "leave"
    if silent == "leave":
        assert log.saved == {TOPIC: FetchPosition(3, 3)}


async def seen_by_nobody(message: Message) -> None: ...


@pytest.mark.usefixtures("hurried")
async def test_what_cannot_be_sent_back_is_let_go_by_a_stop() -> None:
    consumer, log = Consumer("g", options=ConsumerOptions(stop_s=0.05)), Log({TOPIC: 3})

    @consumer.on("orders")
    async def fail(message: Message) -> None:
        raise ValueError("boom")

    async with working(consumer, log) as back:
        back.silent = True
        await until(lambda: consumer.in_hand == 3)
        await asyncio.sleep(0)
    assert consumer.in_hand == 0 and consumer.counts["orders", "retried"] == 0
    assert log.saved.get(TOPIC, FetchPosition(0, 3)).commit == 0


async def test_what_is_done_behind_a_slow_message_is_stored_and_does_not_come_again() -> None:
    options, gate, handled = ConsumerOptions(concurrency=2, commit_pause_s=0.001), asyncio.Event(), list[int]()

    def member() -> Consumer:
        consumer = Consumer("g", options=options)

        @consumer.on("orders")
        async def handle(message: Message) -> None:
            if message.record.offset == 0:
                await gate.wait()
            handled.append(message.record.offset)

        return consumer

    log, expected = Log({TOPIC: 1_500}), FetchPosition(0, 1_500, ((1, 1_500),))
    async with working(member(), log):
        await until(lambda: log.saved.get(TOPIC) == expected)
        again = Log({TOPIC: 1_502})
        again.done_before = {TOPIC: log.saved[TOPIC].done}
        handled.clear()
        async with working(consumer := member(), again):
            await until(lambda: handled == [1_500, 1_501])
            await until(lambda: again.saved.get(TOPIC) == FetchPosition(0, 1_502, ((1, 1_502),)))
            gate.set()
            await until(lambda: again.saved[TOPIC].commit == 1_502)
    assert consumer.counts == {("orders", "done"): 3}


@pytest.mark.usefixtures("hurried")
async def test_a_stop_does_not_wait_for_a_handler_that_does_not_heed_it() -> None:
    consumer, log = Consumer("g", options=ConsumerOptions(stop_s=0.01)), Log({TOPIC: 1})
    heard, released = 0, asyncio.Event()

    @consumer.on("orders")
    async def handle(message: Message) -> None:
        nonlocal heard
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                heard += 1

    async with working(consumer, log):
        await until(lambda: consumer.in_hand == 1)
        running = consumer.working
    assert heard and not running.done()
    released.set()
    await asyncio.wait([running])


@pytest.mark.parametrize("fails", [False, True])
async def test_a_stop_waits_for_partitions_that_just_go(fails: bool) -> None:
    """A rolling restart: a member is told to stop while its partitions move. Handlers have their time all the same."""
    consumer, log = Consumer("g", options=ConsumerOptions(commit_interval_s=3_600)), Log({TOPIC: 2})
    busy, gate = asyncio.Event(), asyncio.Event()

    @consumer.on("orders")
    async def handle(message: Message) -> None:
        busy.set()
        await gate.wait()
        if fails:
            raise ValueError("boom")

    async with working(consumer, log) as back:
        await busy.wait()
        await until(lambda: consumer.in_hand == 2)
        rebalance = asyncio.create_task(log.lose(TOPIC))
        await asyncio.sleep(0)
        stopping = asyncio.create_task(consumer.stop())
        await until(lambda: "let go" in log.calls)
        assert not stopping.done()
        gate.set()
        await stopping
        await rebalance
    assert consumer.in_hand == 0 and log.saved == {TOPIC: FetchPosition(2, 2)}
    assert len(back.sent) == (2 if fails else 0)


async def test_a_lane_that_ends_is_told_and_ends_the_consumer(caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer("g")
    consumer.add("orders", seen_by_nobody)
    with pytest.raises(ExceptionGroup):
        async with working(consumer, Log({TOPIC: 1})):
            await until(lambda: consumer.counts.total() == 1)
            (worker,) = [task for task in asyncio.all_tasks() if task.get_name() == "worker-0"]
            worker.cancel()
            await asyncio.wait([consumer.working])
    assert "consumer of group g ends" in caplog.text


@pytest.mark.parametrize("step", ["pull", "save"])
async def test_a_cancellation_that_nobody_asked_for_ends_the_consumer_loudly(
    step: str, caplog: pytest.LogCaptureFixture
) -> None:
    consumer, log = Consumer("g"), Log({TOPIC: 1})
    consumer.add("orders", seen_by_nobody)

    async def cut_off(*_: object) -> None:
        raise asyncio.CancelledError

    setattr(log, step, cut_off)
    with pytest.raises(ExceptionGroup):
        async with working(consumer, log):
            await asyncio.wait([consumer.working])
    assert "consumer of group g ends" in caplog.text and "StrayCancellation" in caplog.text


async def test_a_start_that_fails_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, ends = Consumer("g"), list[str]()
    consumer.add("orders", seen_by_nobody)

    async def prepare(*_: object) -> int:
        return 1

    async def nothing(*_: object) -> None: ...

    async def stop(_: object) -> None:
        ends.append("returns")

    def no_source(*_: object) -> None:
        raise TypeError("no such option")

    monkeypatch.setattr("duemq.client.consumer.kafka.log.prepare", prepare)
    monkeypatch.setattr("duemq.client.consumer.kafka.log.KafkaMessageSource", no_source)
    monkeypatch.setattr(RetryPublisher, "start", nothing)
    monkeypatch.setattr(RetryPublisher, "stop", stop)
    with pytest.raises(TypeError, match="no such option"):
        await consumer.start()
    assert ends == ["returns"]


# --- one message ------------------------------------------------------------------------------------------------------


class Broken:
    """A policy of the user's with a bug."""

    def __init__(self, wait: object) -> None:
        self._wait = wait

    def wait(self, retried: int) -> Wait | None:
        if isinstance(self._wait, Exception):
            raise self._wait
        return self._wait  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("headers", "error", "policy"),
    [
        ([("duemq-id", b"\xff\xfe")], ValueError(), Delays(["5ms"])),
        ([("duemq-id", None)], ValueError(), Delays(["5ms"])),
        ([], Odd(), Delays(["5ms"])),
        ([], ValueError(), Broken(KeyError("a bug"))),
        ([], ValueError(), Broken(5)),
        ([], RetryLater.__new__(RetryLater), Delays(["5ms"])),
    ],
)
async def test_nothing_about_one_message_ends_the_consumer(headers: object, error: Exception, policy: Policy) -> None:
    consumer, log = Consumer("g", options=ConsumerOptions(retry=policy)), Log({TOPIC: 2}, {0: headers})

    @consumer.on("orders")
    async def handle(message: Message) -> None:
        if message.record.offset == 0:
            raise error

    async with working(consumer, log) as back:
        await until(lambda: consumer.counts.total() == 2)
    assert [(offset, type(to)) for offset, to, *_ in back.sent] == [(0, Wait)]


async def test_only_the_class_of_an_error_is_told_where_texts_hold_secrets(caplog: pytest.LogCaptureFixture) -> None:
    consumer, log = Consumer("g", options=ConsumerOptions(tell_errors="class")), Log({TOPIC: 1})

    @consumer.on("orders")
    async def fail(message: Message) -> None:
        raise ConnectionError("redis://:secret@host")

    async with working(consumer, log) as back:
        await until(lambda: consumer.counts.total() == 1)
    assert back.sent[0][2] == "ConnectionError" and "ConnectionError" in caplog.text and "secret" not in caplog.text


RETRY = TopicPartition("retry.g", 0)
BACK = returned([("tags", b"refunded")], RetryOrigin("orders", 0, 0, "ID", 1), "failed", "boom")


async def test_a_retry_whose_tags_nobody_wants_any_more_has_a_handler() -> None:
    consumer, log, seen = Consumer("g"), Log({RETRY: 1, TOPIC: 1}, {0: BACK}), list[str]()

    @consumer.on("orders", tags="paid")
    async def first(message: Message) -> None:
        seen.append(f"first {message.attempt}")

    @consumer.on("orders", tags="sent")
    async def second(message: Message) -> None:
        seen.append("second")

    async with working(consumer, log):
        await until(lambda: consumer.counts.total() == 2)
    assert seen == ["first 2"] and consumer.counts["orders", "skipped"] == 1


async def test_keys_and_headers_count_as_well() -> None:
    consumer, log = Consumer("g"), Log({TOPIC: 1}, {0: [("name", b"12345"), ("null", None)]})
    log.left[TOPIC][0].key = b"key"

    @consumer.on("orders")
    async def handle(message: Message) -> None:
        assert consumer.in_hand_bytes == 1 + 3 + 2 * (len("name" + "12345" + "null") // 2)

    async with working(consumer, log):
        await until(lambda: consumer.counts.total() == 1)
    assert consumer.counts["orders", "done"] == 1 and consumer.in_hand_bytes == 0


class NotYet(RetryLater):
    counts = False


@pytest.mark.parametrize("ordered", [False, True])
async def test_what_does_not_count_uses_up_no_retries(ordered: bool) -> None:
    options = ConsumerOptions(ordered=ordered, retry=Delays(["1ms"]), concurrency=1)
    consumer, log, attempts = Consumer("g", options=options), Log({TOPIC: 1}), list[int]()

    @consumer.on("orders")
    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if ordered and len(attempts) > 3:
            return
        raise NotYet(delay="1ms")

    async with working(consumer, log) as back:
        await until(lambda: consumer.counts["orders", "done"] or back.sent)
    if ordered:
        assert attempts == [1, 1, 1, 1] and not back.sent
    else:
        ((_, to, _),) = back.sent
        assert to == Wait("after", 1) and isinstance(to, Wait) and not to.counts


# --- what is pulled ---------------------------------------------------------------------------------------------------


async def test_an_ordered_partition_that_is_stuck_leaves_room_for_the_others() -> None:
    other = TopicPartition("orders", 1)
    options = ConsumerOptions(ordered=True, max_in_hand=20, concurrency=4)
    consumer, log, seen = Consumer("g", options=options), Log({TOPIC: 1_000, other: 1_000}), list[int]()

    @consumer.on("orders")
    async def handle(message: Message) -> None:
        if message.record.partition == 0:
            raise ValueError("one bad message without a key")
        seen.append(message.record.offset)
        assert consumer.in_hand <= 20

    async with working(consumer, log):
        await until(lambda: len(seen) == 1_000)
        assert seen == list(range(1_000)) and len(log.left[TOPIC]) >= 780, "ten times the room"


async def test_a_consumer_that_pauses_pulls_nothing_and_stays_in_its_group() -> None:
    options = ConsumerOptions(kafka={"max_poll_interval_ms": 3})  # it says that it is there every ms
    consumer, log, away, asked = Consumer("g", options=options), Log({TOPIC: 1_500}), True, 0

    @consumer.on("orders")
    async def handle(message: Message) -> None:
        nonlocal asked
        asked += 1
        if away:
            raise Pause("the store is away", after_s=0.001)

    async with working(consumer, log) as back:
        await until(lambda: asked >= 3 and "idle" in log.calls)
        assert consumer.paused
        del log.calls[:]
        await until(lambda: log.calls.count("idle") >= 3)
        assert "pull" not in log.calls and consumer.in_hand == 1_000
        away = False
        await until(lambda: consumer.counts["orders", "done"] == 1_500)
    assert not consumer.paused and not back.sent and log.saved == {TOPIC: FetchPosition(1_500, 1_500)}


async def test_no_more_than_what_may_be_in_hand_is_done_while_offsets_cannot_be_stored() -> None:
    """What a broker sent before it was away is there to be pulled: 3,722 of 10,000 messages were done twice."""
    consumer, log = Consumer("g", options=ConsumerOptions(max_in_hand=100)), Log({TOPIC: 5_000})
    log.away = True

    @consumer.on("orders")
    async def handle(message: Message) -> None: ...

    async with working(consumer, log):
        await until(lambda: log.calls.count("save") >= 3 and not consumer.in_hand)
        del log.calls[:]
        await asyncio.sleep(0.05)
        assert "pull" not in log.calls and 100 <= consumer.counts["orders", "done"] < 200
        assert log.calls.count("save") <= 1, "it asks once a second, and not as fast as it can"
        log.away = False
        await until(lambda: consumer.counts["orders", "done"] == 5_000)
    assert log.saved == {TOPIC: FetchPosition(5_000, 5_000)}


async def test_a_message_that_takes_long_keeps_those_behind_it_from_being_stored_and_not_from_being_done() -> None:
    consumer, log, over = Consumer("g", options=ConsumerOptions(max_in_hand=100)), Log({TOPIC: 2_000}), asyncio.Event()

    @consumer.on("orders")
    async def handle(message: Message) -> None:
        if message.record.offset == 0:
            await over.wait()

    async with working(consumer, log):
        await until(lambda: consumer.counts["orders", "done"] == 1_999)
        over.set()
    assert log.saved == {TOPIC: FetchPosition(2_000, 2_000)}
