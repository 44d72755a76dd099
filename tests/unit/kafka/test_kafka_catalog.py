"""What the Kafka plug makes of errors, leaders and replicas: whose fault it is, and what can be written to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import errors

from duemq.bus.base import NO_LEADER, TOO_FEW_REPLICAS, WriteRefused
from duemq.bus.kafka.fetch.ends import LogEnds
from duemq.bus.kafka.fetch.reader import BrokerReader
from duemq.bus.kafka.fetch.runs import RunPart
from duemq.bus.kafka.produce.failures import worst
from duemq.bus.kafka.requests.wire import Wire
from duemq.bus.kafka.topics import catalog as catalog_module
from duemq.bus.kafka.topics.catalog import Catalog, Replicas, TopicMetadata
from duemq.bus.kafka.topics.topics import _refusal
from duemq.cluster.topics.topic_states import PASSING
from duemq.model.errors import Fenced, LogFailed, Rejected
from duemq.model.messages.record import Partition, StoredRecord
from tests.support.patience import WITHIN_S

OWN = ("duemq.ledger",)
UNKNOWN_CODE = errors.for_code(87)  # INVALID_RECORD, which aiokafka has no class for


def judge(*failures: tuple[str, BaseException]) -> BaseException:
    return worst("shard-0", failures, OWN, lambda topic: None)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UNKNOWN_CODE(), "refused"),
        (errors.CorruptRecordException(), "refused"),
        (errors.OutOfOrderSequenceNumber(), "refused"),
        (errors.TopicAuthorizationFailedError("t"), "not_authorized"),
        (errors.TopicAuthorizationFailedError({"t"}), "not_authorized"),
        (errors.UnknownTopicOrPartitionError(), "unknown_topic"),
        (errors.MessageSizeTooLargeError(), "too_large"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_what_fails_for_a_target_alone_is_its_own_refusal(error: BaseException, reason: str) -> None:
    meant = judge(("t", error))
    assert isinstance(meant, WriteRefused)
    assert (meant.topic, meant.reason) == ("t", reason)


def test_what_fails_for_the_ledger_too_is_nobodys_refusal() -> None:
    assert isinstance(judge(("t", UNKNOWN_CODE()), ("duemq.ledger", UNKNOWN_CODE())), LogFailed)
    assert isinstance(judge(("duemq.ledger", errors.UnknownTopicOrPartitionError())), LogFailed)
    assert isinstance(judge(("t", UNKNOWN_CODE()), ("duemq.ledger", errors.ProducerFenced())), Fenced)
    meant = judge(("duemq.ledger", UNKNOWN_CODE()), ("t", errors.MessageSizeTooLargeError()))
    assert isinstance(meant, WriteRefused) and meant.topic == "t"


def test_a_partition_needs_a_leader_and_replicas_that_answer() -> None:
    replicas = (Replicas(1, (1, 2, 3), 3), Replicas(3, (3,), 3), Replicas(-1, (3,), 1), Replicas(2, (2, 3), 3))
    known = TopicMetadata(4, 1_000, 0.0, min_in_sync=2, replicas=replicas)
    assert known.judge(()).trouble == {1: TOO_FEW_REPLICAS, 2: NO_LEADER}
    assert known.judge({3}).trouble == {1: NO_LEADER, 2: NO_LEADER, 3: TOO_FEW_REPLICAS}
    assert known.judge({1, 2}).trouble == {0: NO_LEADER, 1: TOO_FEW_REPLICAS, 2: NO_LEADER, 3: NO_LEADER}
    assert known.judge({3}).judge(()).trouble == known.judge(()).trouble
    assert known.judge({3}).topic_state.trouble_text == (
        "no broker leads partition: 1, 2; fewer replicas are in sync than min.insync.replicas asks for in partition: 3"
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.TopicAuthorizationFailedError, "not_authorized"),
        (errors.ClusterAuthorizationFailedError, "not_authorized"),
        (errors.PolicyViolationError, "policy"),
        (errors.InvalidReplicationFactorError, "too_few_brokers"),
        (errors.NotControllerError, "no_answer"),
        (errors.UnknownError, "not_made"),
    ],
)
def test_a_topic_that_is_not_made_says_why(error: type[errors.KafkaError], reason: str) -> None:
    refused = _refusal("t", error, "as the broker says")
    assert isinstance(refused, WriteRefused) and refused.reason == reason
    assert "as the broker says" in refused.detail


@pytest.mark.parametrize(
    ("said", "passing"),
    [
        ("All brokers are currently fenced.", True),
        ("All brokers are currently fenced, or have all their log directories cordoned.", True),
        ("All brokers are currently fenced or in controlled shutdown.", True),
        ("The topic replication factor of 3 cannot be reached because only 1 broker(s) are registered.", False),
    ],
)
def test_brokers_that_are_away_for_a_moment_are_no_wrong_setting(said: str, passing: bool) -> None:
    error = errors.InvalidReplicationFactorError
    refused = _refusal("t", error, f"Unable to replicate the partition 1 time(s): {said}")
    assert isinstance(refused, WriteRefused)
    assert (refused.reason in PASSING) == passing, "no attempt counts, and no process ends for it"
    assert ("kafka.replication_factor" in refused.detail) != passing


def test_a_name_that_collides_is_no_name_for_a_topic() -> None:
    refused = _refusal("a_b", errors.InvalidTopicError, "Topic 'a_b' collides with existing topic: a.b")
    assert isinstance(refused, Rejected) and refused.code == "bad_topic"


class Steady:
    """A clock in the test's hand, s."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


class Brokers:
    """What a catalog asks of the wire, with answers in the test's hand: leader and in-sync replicas by topic."""

    def __init__(self) -> None:
        self.down: set[int] = set()
        self.brokers_changed: Callable[[], None] = lambda: None
        self.led: dict[str, list[tuple[int, list[int]]]] = {}
        self.settings: dict[str, dict[str, str]] = {}
        self.asked = 0
        self.forgotten: list[str] = []

    def forget(self, topic: str) -> None:
        self.forgotten.append(topic)

    async def metadata(self, topics: list[str] | None) -> list[Any]:
        self.asked += 1
        return [
            (0, topic, False, [(0, number, leader, [1, 2, 3], isr) for number, (leader, isr) in enumerate(led)])
            for topic, led in self.led.items()
            if topics is None or topic in topics
        ]

    async def ask_any(self, request: Any) -> Any:
        resources = [
            (0, None, 2, topic, [(name, value) for name, value in self.settings.get(topic, {}).items()])
            for topic in self.led
        ]
        return SimpleNamespace(resources=resources)


def test_a_catalog_hears_of_trouble_at_once_and_looks_again_until_it_is_over() -> None:
    async def test() -> None:
        brokers = Brokers()
        brokers.led["t"] = [(1, [1, 2]), (3, [3, 1])]
        brokers.settings["t"] = {
            "max.message.bytes": "2000", "cleanup.policy": "compact,delete", "min.insync.replicas": "2"
        }  # fmt: skip
        catalog = Catalog(cast(Wire, brokers))
        assert catalog.last("t") is None
        assert await catalog.refresh(["t", "nowhere"]) == ["t"]
        known = catalog.lately("t")
        assert known is not None and (known.partitions, known.max_bytes, known.copies) == (2, 2_000, 3)
        assert known.topic_state.needs_key and not known.topic_state.trouble
        brokers.down.add(3)
        brokers.brokers_changed()
        known = catalog.last("t")
        assert known is not None and known.trouble == {1: NO_LEADER}, "before any broker was asked"
        brokers.led["t"] = [(1, [1, 2]), (1, [1, 2]), (2, [1, 2])]
        async with asyncio.timeout(WITHIN_S):
            while known.trouble or known.partitions != 3:
                await asyncio.sleep(0)
                known = catalog.last("t")
                assert known is not None
        del brokers.led["t"]
        await catalog.refresh(["t"])
        assert catalog.last("t") is None
        await catalog.close()

    asyncio.run(test())


def test_a_topic_that_is_used_all_the_time_is_looked_at_every_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    class BusyBrokers(Brokers):
        async def metadata(self, topics: list[str] | None) -> list[Any]:
            catalog.last("t")  # it is used while it is looked at, too
            return await super().metadata(topics)

    brokers, clock, pauses = BusyBrokers(), Steady(), list[float]()
    catalog = Catalog(cast(Wire, brokers))

    async def note_pause(seconds: float, end: asyncio.Event) -> None:
        if seconds:
            pauses.append(seconds)
        await asyncio.sleep(0)

    async def test() -> None:
        monkeypatch.setattr(catalog_module, "time", clock)
        monkeypatch.setattr("duemq.background.loop._pause", note_pause)
        brokers.led["t"] = [(1, [1, 2])]
        await catalog.refresh(["t"])
        for _ in range(100):
            clock.now += 0.25
            catalog.last("t")
            for _ in range(10):
                await asyncio.sleep(0)
        assert (brokers.asked, pauses) == (1 + 4, [])
        brokers.led["t"] = [(-1, [1])]
        clock.now += 5
        catalog.last("t")
        for _ in range(20):
            await asyncio.sleep(0)
        assert pauses[:4] == [0.25, 0.5, 1.0, 1.0], "something is wrong with it"
        await catalog.close()

    asyncio.run(test())


def test_a_catalog_forgets_topics_that_are_gone_and_those_that_nobody_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        brokers, gone, clock = Brokers(), list[str](), Steady()
        monkeypatch.setattr(catalog_module, "time", clock)
        brokers.led = {topic: [(1, [1, 2])] for topic in ("deleted", "unused", "used")}
        catalog = Catalog(cast(Wire, brokers), gone.append)
        await catalog.refresh(["deleted", "unused", "used", "nowhere"])
        assert gone == ["nowhere"]
        del brokers.led["deleted"]
        catalog.forget("deleted")  # a commit heard of it
        await catalog.refresh(["deleted"])
        assert gone == ["nowhere", "deleted"]
        for _ in range(62):
            clock.now += 60.0
            await catalog.refresh(["used"])
        assert gone == ["nowhere", "deleted", "unused"]
        assert catalog.last("unused") is None and catalog.last("used") is not None
        await catalog.close()

    asyncio.run(test())


def test_a_topic_that_was_missing_is_new_until_its_followers_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        brokers, clock = Brokers(), Steady()
        monkeypatch.setattr(catalog_module, "time", clock)
        brokers.led = {"old": [(1, [1, 2])], "deleted": [(1, [1, 2])]}
        catalog = Catalog(cast(Wire, brokers))

        def new() -> set[str]:
            return {topic for topic in brokers.led if (known := catalog.last(topic)) and known.topic_state.is_new}

        await catalog.refresh(None)
        assert new() == set(), "all were there when this process began"
        gone = brokers.led.pop("deleted")
        await catalog.refresh(["deleted", "made"])
        brokers.led |= {"deleted": gone, "made": [(2, [2, 3])]}
        await catalog.refresh(["deleted", "made", "old"])
        assert new() == {"deleted", "made"}
        clock.now += 1.9
        await catalog.refresh(["deleted", "made", "old"])
        assert new() == {"deleted", "made"}
        clock.now += 0.2
        assert new() == set()
        await catalog.refresh([f"nowhere-{number}" for number in range(2_000)])
        assert len(catalog.missing) == 1_000
        await catalog.close()

    asyncio.run(test())


def test_what_is_kept_of_a_topic_that_is_gone_is_not_read_from_the_next_one() -> None:
    async def test() -> None:
        ends = LogEnds()
        reader, asked = BrokerReader(cast(Wire, None), ends.set), list[int]()
        old, new = (
            [StoredRecord(0, 1, b"old"), StoredRecord(1, 1, b"older")],
            [StoredRecord(0, 2, b"new"), StoredRecord(1, 2, b"newer")],
        )
        chunks = [RunPart(0, 2, each, 8) for each in (old, new)]

        async def fetch(partition: Partition, offset: int, wait_ms: int) -> RunPart:
            asked.append(offset)
            ends.set(partition, 2)
            return chunks.pop(0)

        reader._fetch = fetch  # type: ignore[method-assign]
        assert await reader.read(("t", 0), 0, 1, 100, 0) == old[:1]
        reader.forget("t")
        ends.forget("t")
        assert (ends.find(("t", 0)), ends.end_of(("t", 0))) == (None, 0)
        assert await reader.read(("t", 0), 1, 1, 100, 0) == new[1:]
        assert asked == [0, 1], "the rest of the old one was kept"

    asyncio.run(test())
