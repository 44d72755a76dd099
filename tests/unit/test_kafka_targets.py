"""What the Kafka plug makes of errors, leaders and replicas: whose fault it is, and what can be written to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import errors

from duemq.bus.base import NO_LEADER, TOO_FEW_REPLICAS, TargetRefused
from duemq.bus.kafka.catalog import Catalog, Known, Replicas
from duemq.bus.kafka.failures import worst
from duemq.bus.kafka.topics import _refusal
from duemq.bus.kafka.wire import Wire
from duemq.model.errors import Fenced, LogFailed, Rejected

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
    assert isinstance(meant, TargetRefused)
    assert (meant.topic, meant.reason) == ("t", reason)


def test_what_fails_for_the_ledger_too_is_nobodys_refusal() -> None:
    assert isinstance(judge(("t", UNKNOWN_CODE()), ("duemq.ledger", UNKNOWN_CODE())), LogFailed)
    assert isinstance(judge(("duemq.ledger", errors.UnknownTopicOrPartitionError())), LogFailed)
    assert isinstance(judge(("t", UNKNOWN_CODE()), ("duemq.ledger", errors.ProducerFenced())), Fenced)
    meant = judge(("duemq.ledger", UNKNOWN_CODE()), ("t", errors.MessageSizeTooLargeError()))
    assert isinstance(meant, TargetRefused) and meant.topic == "t"


def test_a_partition_needs_a_leader_and_replicas_that_answer() -> None:
    replicas = (Replicas(1, (1, 2, 3), 3), Replicas(3, (3,), 3), Replicas(-1, (3,), 1), Replicas(2, (2, 3), 3))
    known = Known(4, 1_000, 0.0, min_in_sync=2, replicas=replicas)
    assert known.judged(()).trouble == {1: TOO_FEW_REPLICAS, 2: NO_LEADER}
    assert known.judged({3}).trouble == {1: NO_LEADER, 2: NO_LEADER, 3: TOO_FEW_REPLICAS}
    assert known.judged({1, 2}).trouble == {0: NO_LEADER, 1: TOO_FEW_REPLICAS, 2: NO_LEADER, 3: NO_LEADER}
    assert known.judged({3}).judged(()).trouble == known.judged(()).trouble
    assert known.judged({3}).target.trouble_text == (
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
    assert isinstance(refused, TargetRefused) and refused.reason == reason
    assert "as the broker says" in refused.detail


def test_a_name_that_collides_is_no_name_for_a_topic() -> None:
    refused = _refusal("a_b", errors.InvalidTopicError, "Topic 'a_b' collides with existing topic: a.b")
    assert isinstance(refused, Rejected) and refused.code == "bad_topic"


class Brokers:
    """What a catalog asks of the wire, with answers in the test's hand: leader and in-sync replicas by topic."""

    def __init__(self) -> None:
        self.down: set[int] = set()
        self.brokers_changed: Callable[[], None] = lambda: None
        self.led: dict[str, list[tuple[int, list[int]]]] = {}
        self.settings: dict[str, dict[str, str]] = {}
        self.asked = 0

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
        assert await catalog.look(["t", "nowhere"]) == ["t"]
        known = catalog.lately("t")
        assert known is not None and (known.partitions, known.max_bytes, known.copies) == (2, 2_000, 3)
        assert known.target.needs_key and not known.target.trouble
        brokers.down.add(3)
        brokers.brokers_changed()
        known = catalog.last("t")
        assert known is not None and known.trouble == {1: NO_LEADER}, "before any broker was asked"
        brokers.led["t"] = [(1, [1, 2]), (1, [1, 2]), (2, [1, 2])]
        async with asyncio.timeout(300):
            while known.trouble or known.partitions != 3:
                await asyncio.sleep(0)
                known = catalog.last("t")
                assert known is not None
        del brokers.led["t"]
        await catalog.look(["t"])
        assert catalog.last("t") is None
        await catalog.close()

    asyncio.run(test())
