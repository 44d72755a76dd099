"""The appender over a producer of the test's own: who is answered how when a broker refuses a batch for its size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from duemq.bus.base import NO_LEADER, AppendResult, PartlyAppended
from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.produce import append
from duemq.bus.kafka.produce.append import Appender, join_outcomes
from duemq.bus.kafka.topics.catalog import Catalog, TopicMetadata
from duemq.model.errors import LogFailed, OutcomeUnknown, Rejected, Unavailable
from duemq.model.messages.record import Partition, pack_record
from tests.support.patience import WITHIN_S

WHERE, BESIDE = ("t", 0), ("u", 0)
SMALL, LARGE = pack_record(None, (), b"x" * 100), pack_record(None, (), b"x" * 200_000)


class Broker:
    """Takes batches of up to 100,000 bytes, while `gate` is set. The catalog says 64 MiB until it looks again."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.ends: dict[Partition, int] = {}
        self._answers: dict[Partition, asyncio.Future[Any]] = {}
        self.known: dict[str, TopicMetadata] = {}
        for topic in ("t", "u"):
            self.known[topic] = TopicMetadata(1, 64 << 20, 0)

    async def send_batch(self, builder: Any, topic: str, *, partition: int) -> asyncio.Future[Any]:
        answer = self._answers[topic, partition] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().create_task(self._answer(builder, (topic, partition), answer))
        return answer

    async def _answer(self, builder: Any, where: Partition, answer: asyncio.Future[Any]) -> None:
        await self.gate.wait()
        if answer.done():
            return
        if builder.size() > 100_000:
            answer.set_exception(MessageSizeTooLargeError())
            return
        first = self.ends.get(where, 0)
        self.ends[where] = first + builder.record_count()
        answer.set_result(SimpleNamespace(offset=first, timestamp=5))

    def fail(self, where: Partition, error: Exception) -> None:
        self._answers[where].set_exception(error)

    def forget(self, topic: str) -> None:
        self.known.pop(topic, None)

    async def recall(self, topic: str) -> TopicMetadata:
        return self.known.setdefault(topic, TopicMetadata(1, 100_000, 0))


Scenario = Callable[[Broker, Appender], Awaitable[None]]


def with_appender(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stop(producer: Any, *, failed: bool = False) -> None: ...

    async def run() -> None:
        broker = Broker()
        appender = Appender(KafkaOptions("x:1"), cast(Catalog, broker), lambda where, end: None, lambda: 0, 1 << 20)

        async def ready() -> Any:
            appender.producer = broker
            return broker

        monkeypatch.setattr(append, "stop", stop)
        monkeypatch.setattr(appender, "_ready", ready)
        async with asyncio.timeout(WITHIN_S):
            await scenario(broker, appender)
            assert appender.waiting_bytes == 0 and not appender.lanes and not appender.sends
            await appender.close()

    asyncio.run(run())


def test_the_size_of_one_call_fails_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker, appender: Appender) -> None:
        broker.gate.clear()
        calls = [appender.put(WHERE, [SMALL] * count) for count in (1, 2)]
        calls += [appender.put(WHERE, [LARGE]), appender.put(WHERE, [SMALL] * 3), appender.put(BESIDE, [SMALL])]
        await asyncio.sleep(0)
        broker.gate.set()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in outcomes] == [AppendResult, AppendResult, Rejected, AppendResult, AppendResult]
        assert [each.first_offset for each in outcomes if isinstance(each, AppendResult)] == [0, 1, 3, 0]

    with_appender(scenario, monkeypatch)


def test_batches_that_only_a_lowered_limit_made_too_large_are_cut_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker, appender: Appender) -> None:
        frame = pack_record(None, (), b"x" * 30_000)
        landed = join_outcomes(await appender.append({WHERE: [frame] * 10}))
        assert landed[WHERE].first_offset == 0 and broker.ends[WHERE] == 10

    with_appender(scenario, monkeypatch)


def test_what_is_in_the_log_in_part_is_never_called_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker, appender: Appender) -> None:
        with pytest.raises(LogFailed, match="a part of an append is in the log"):
            join_outcomes(await appender.append({WHERE: [LARGE], BESIDE: [SMALL]}))
        with pytest.raises(Rejected):
            join_outcomes(await appender.append({WHERE: [LARGE]}))

    with_appender(scenario, monkeypatch)


def test_an_append_that_a_close_cuts_off_may_be_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker, appender: Appender) -> None:
        broker.gate.clear()
        sent = appender.put(WHERE, [SMALL])
        while not appender.sends:  # noqa: ASYNC110
            await asyncio.sleep(0)
        waits = appender.put(WHERE, [SMALL])
        await appender.close()
        with pytest.raises(LogFailed):
            await sent
        with pytest.raises(Unavailable) as refused:
            await waits
        assert not isinstance(refused.value, LogFailed)

    with_appender(scenario, monkeypatch)


def test_what_is_over_the_bound_is_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker, appender: Appender) -> None:
        broker.gate.clear()
        frame = pack_record(None, (), b"x" * 90_000)
        taken = asyncio.create_task(appender.append({WHERE: [frame] * 11}))
        while not appender.waiting_bytes:  # noqa: ASYNC110
            await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="wait for Kafka"):
            join_outcomes(await appender.append({BESIDE: [SMALL], WHERE: [frame]}))
        broker.gate.set()
        await taken
        assert BESIDE not in broker.ends
        await appender.append({BESIDE: [frame] * 20})  # alone, it may be larger

    with_appender(scenario, monkeypatch)


def test_a_partition_that_does_not_answer_fails_no_append_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up: list[Partition] = []
    monkeypatch.setattr(append, "give_up", lambda producer, *where: given_up.append(where))

    async def scenario(broker: Broker, appender: Appender) -> None:
        broker.gate.clear()
        silent, beside = appender.put(WHERE, [SMALL]), appender.put(BESIDE, [SMALL])
        while len(appender.sends) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        broker.fail(WHERE, KafkaTimeoutError())
        with pytest.raises(LogFailed):
            await silent
        assert given_up == [WHERE] and not beside.done()
        broker.gate.set()
        assert (await beside).first_offset == 0

    with_appender(scenario, monkeypatch)


def test_what_has_no_leader_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker, appender: Appender) -> None:
        broker.known["t"] = broker.known["t"]._replace(trouble={0: NO_LEADER})
        appender.closed_since[WHERE] = time.monotonic() - 60
        with pytest.raises(PartlyAppended) as failed:
            join_outcomes(await appender.append({WHERE: [SMALL], BESIDE: [SMALL]}))
        assert failed.value.results[BESIDE].first_offset == 0
        assert type(failed.value.failures[WHERE]) is Unavailable and not appender.sends
        appender.closed_since.clear()
        waits = appender.put(WHERE, [SMALL])
        broker.known["t"] = broker.known["t"]._replace(trouble={})
        assert (await waits).first_offset == 0, "a leader that moves is waited for"

    with_appender(scenario, monkeypatch)


def test_an_append_to_a_topic_of_which_no_broker_tells_did_nothing() -> None:
    """It said that its outcome was unknown, which is 504 and not 503."""

    class Silent:
        async def recall(self, topic: str) -> TopicMetadata:
            raise LogFailed("no broker answers")

    async def run() -> None:
        bus = KafkaBus(KafkaOptions("nowhere:9092"), lambda: 0)
        bus.catalog = cast(Catalog, Silent())
        with pytest.raises(Unavailable, match="no broker answers") as refused:
            await bus.append({WHERE: [SMALL]})
        assert not isinstance(refused.value, OutcomeUnknown)

    asyncio.run(run())
