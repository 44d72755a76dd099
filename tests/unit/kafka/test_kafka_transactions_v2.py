"""Transactions of version 2: what is sent for a cycle, and what each answer of a broker leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import errors

from duemq.bus.base import WriteRefused
from duemq.bus.kafka.options import KafkaOptions
from duemq.bus.kafka.produce.failures import translate
from duemq.bus.kafka.produce.producer import ProducerSetup
from duemq.bus.kafka.produce.transaction_sends import Positions
from duemq.bus.kafka.produce.v2 import producer as module
from duemq.bus.kafka.produce.v2.producer import ProducerV2
from duemq.bus.kafka.record_batches import batches_of
from duemq.bus.kafka.requests.transaction_requests import TransactionAbortable
from duemq.model.errors import Fenced, LogFailed
from duemq.model.messages.record import Partition, pack_record
from tests.support.servers.aiokafka_parts import topics_of
from tests.support.servers.scripted_brokers import ScriptedBrokers, batch_state

pytestmark = pytest.mark.anyio

LEDGER, TOPIC, OTHER = ("ledger", 0), ("topic", 0), ("other", 0)
NOT_LEADER, NO_TOPIC, TOO_LARGE, NOT_COORDINATOR, TOO_FEW, NOT_AUTHORIZED = 6, 3, 10, 16, 19, 29
OUT_OF_ORDER, DUPLICATE, OLD_EPOCH, BAD_STATE, BAD_MAPPING, CONCURRENT, FENCED, ABORTABLE = (
    45, 46, 47, 48, 49, 51, 90, 120,
)  # fmt: skip


class Catalog:
    """Topics that are all well."""

    def __init__(self) -> None:
        self.asked: list[Collection[str]] = []
        self.gone: set[str] = set()

    async def refresh(self, topics: Collection[str]) -> dict[str, Any]:
        self.asked.append(topics)
        return {topic: None for topic in topics if topic not in self.gone}

    def last(self, topic: str) -> Any:
        return SimpleNamespace(trouble={})

    def forget(self, topic: str) -> None: ...


class Site:
    def __init__(self, leaders: dict[Partition, int]) -> None:
        self.brokers, self.catalog, self.lost = ScriptedBrokers(leaders), Catalog(), 0
        wire: Any = SimpleNamespace(watch=lambda client: None)
        catalog: Any = self.catalog
        setup = ProducerSetup("s", KafkaOptions("127.0.0.1:1"), wire, catalog, ("ledger",), self._on_lost)
        self.producer = ProducerV2(setup)
        self.producer.client = self.brokers

    def _on_lost(self) -> None:
        self.lost += 1

    async def started(self) -> Site:
        await self.producer.start()
        return self

    async def send(self, *partitions: Partition, count: int = 1, size: int = 1, patience_s: float = 5) -> Positions:
        await self.producer.begin()
        frame = pack_record(None, (), b"x" * size)
        batches = {where: batches_of([frame] * count, 1 << 20, 1, transactional=True) for where in partitions}
        return await self.producer.send(batches, patience_s)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("producer", "sends"):
        monkeypatch.setattr(f"duemq.bus.kafka.produce.v2.{name}._PAUSE_S", 0.001)


async def one_broker() -> Site:
    return await Site({LEDGER: 1, TOPIC: 1, OTHER: 1}).started()


async def two_brokers() -> Site:
    return await Site({LEDGER: 1, TOPIC: 2, OTHER: 2}).started()


def long_ago(site: Site) -> None:
    site.producer._ended -= 1.0


async def test_a_cycle_is_one_request_to_the_leader_and_one_to_the_coordinator() -> None:
    site = await one_broker()
    for cycle in range(3):
        long_ago(site)
        del site.brokers.sent[:]
        assert set(await site.send(LEDGER, TOPIC, OTHER)) == {LEDGER, TOPIC, OTHER}
        await site.producer.commit()
        assert site.brokers.names() == ["Produce", "EndTxn"]
        assert [batch_state(site.brokers.batches[where][cycle]) for where in (LEDGER, TOPIC)] == [(7, cycle, 0)] * 2


@pytest.mark.parametrize("leaders", [1, 2])
async def test_partitions_are_added_in_one_request_where_brokers_would_be_in_one_anothers_way(leaders: int) -> None:
    """Several leaders, or a transaction that ended a moment ago: a broker would wait for 20 ms."""
    site = await (one_broker() if leaders == 1 else two_brokers())
    long_ago(site)
    if leaders == 1:
        await site.send(LEDGER)
        await site.producer.commit()
    del site.brokers.sent[:]
    site.brokers.script["AddPartitionsToTxn"] = [CONCURRENT, CONCURRENT]
    await site.send(LEDGER, TOPIC, OTHER)
    await site.producer.commit()
    expected = ["AddPartitionsToTxn"] * 3 + ["Produce"] * leaders + ["EndTxn"]
    assert site.brokers.names() == expected
    assert site.catalog.asked == []


async def test_the_parts_of_a_partition_go_in_order_with_their_sequence_numbers() -> None:
    site = await two_brokers()
    positions = await site.send(LEDGER, TOPIC, count=5, size=600_000)
    assert [start for start, *_ in positions[LEDGER]] == [0, 1, 2, 3, 4]
    assert [batch_state(batch) for batch in site.brokers.batches[TOPIC]] == [(7, 0, number) for number in range(5)]
    await site.producer.commit()
    await site.send(LEDGER)
    assert batch_state(site.brokers.batches[LEDGER][-1]) == (7, 1, 0)


@pytest.mark.parametrize("code", [NOT_LEADER, TOO_FEW, CONCURRENT, 7, 13, 20, 56, 74])
async def test_what_a_broker_cannot_take_now_is_sent_again_as_it_was(code: int) -> None:
    site = await two_brokers()
    site.brokers.script["Produce"] = [{LEDGER: code, TOPIC: code, OTHER: code}]
    await site.send(TOPIC, OTHER)
    produced = [request for _, name, request in site.brokers.sent if name == "Produce"]
    assert len(produced) == 2 and topics_of(produced[0]) == topics_of(produced[1])


async def test_a_partition_whose_leader_moves_goes_to_the_new_one() -> None:
    site = await two_brokers()

    def moves() -> None:
        site.brokers.leaders[TOPIC] = 1

    site.brokers.on_metadata = moves
    site.brokers.script["Produce"] = [0, {TOPIC: NOT_LEADER}]
    await site.send(LEDGER, TOPIC, OTHER)
    produced = [(node, topics_of(request)) for node, name, request in site.brokers.sent if name == "Produce"]
    assert [node for node, _ in produced] == [1, 2, 1]
    assert [topic for topic, *_ in produced[2][1]] == ["topic"]
    assert batch_state(site.brokers.batches[TOPIC][0]) == (7, 0, 0)


async def test_a_partition_without_a_leader_waits_for_one() -> None:
    site = await two_brokers()
    del site.brokers.leaders[TOPIC]
    site.brokers.on_metadata = lambda: site.brokers.leaders.update({TOPIC: 2})
    assert set(await site.send(LEDGER, TOPIC)) == {LEDGER, TOPIC}
    (added,) = (request for _, name, request in site.brokers.sent if name == "AddPartitionsToTxn")
    assert topics_of(added) == [("ledger", [0])]  # what is in a transaction holds up the next one


async def test_a_request_without_an_answer_is_sent_again_to_another_broker_only() -> None:
    site = await two_brokers()
    site.brokers.script["Produce"] = [0, errors.RequestTimedOutError()]
    await site.send(LEDGER, TOPIC)
    assert site.brokers.names().count("Produce") == 3
    await site.producer.commit()

    site.brokers.script["Produce"] = [errors.KafkaConnectionError()]
    await site.producer.begin()
    site.brokers.lose(1)
    with pytest.raises(LogFailed, match="was lost"):
        await site.producer.send(batches(LEDGER), 5)


def batches(*partitions: Partition) -> dict[Partition, Any]:
    return {where: batches_of([pack_record(None, (), b"x")], 1 << 20, 1, transactional=True) for where in partitions}


async def test_a_coordinator_that_was_lost_ends_no_transaction() -> None:
    """What it lost meanwhile of the one before may be in this one by now."""
    site = await two_brokers()
    await site.send(LEDGER)
    site.brokers.lose(1)
    for end in (site.producer.commit, site.producer.abort):
        with pytest.raises(LogFailed, match="was lost"):
            await end()
    assert "EndTxn" not in site.brokers.names()


@pytest.mark.parametrize(
    ("where", "code", "raised"),
    [
        *((where, code, Fenced) for where in (LEDGER, TOPIC) for code in (OLD_EPOCH, FENCED, BAD_MAPPING)),
        *((LEDGER, code, LogFailed) for code in (BAD_STATE, OUT_OF_ORDER, DUPLICATE, 53, 59, ABORTABLE)),
        *((TOPIC, code, WriteRefused) for code in (TOO_LARGE, NOT_AUTHORIZED, 87, OUT_OF_ORDER, ABORTABLE)),
    ],
)
async def test_what_a_refused_batch_means(where: Partition, code: int, raised: type[Exception]) -> None:
    """What only one topic answers is its own: it must stop no other."""
    site = await two_brokers()
    site.brokers.script["Produce"] = [{where: code}, {where: code}]
    with pytest.raises(raised):
        await site.send(LEDGER, TOPIC, OTHER)
    await site.producer.abort()
    assert site.brokers.names()[-1] == "EndTxn"


@pytest.mark.parametrize(
    ("code", "raised"), [(OLD_EPOCH, Fenced), (FENCED, Fenced), (BAD_MAPPING, Fenced), (NOT_COORDINATOR, LogFailed)]
)
async def test_what_a_refusal_to_add_partitions_means(code: int, raised: type[Exception]) -> None:
    site = await two_brokers()
    site.brokers.script["AddPartitionsToTxn"] = [code]
    with pytest.raises(raised):
        await site.send(LEDGER, TOPIC)
    assert "Produce" not in site.brokers.names()


@pytest.mark.parametrize(("code", "reason"), [(NOT_AUTHORIZED, "not_authorized"), (87, "refused")])
async def test_a_topic_that_may_not_be_added_is_named_and_no_other(code: int, reason: str) -> None:
    site = await two_brokers()
    site.brokers.script["AddPartitionsToTxn"] = [{TOPIC: code}]
    with pytest.raises(WriteRefused) as refused:
        await site.send(LEDGER, TOPIC, OTHER)
    assert (refused.value.topic, refused.value.reason) == ("topic", reason)


@pytest.mark.parametrize("request_name", ["AddPartitionsToTxn", "Produce"])
async def test_a_topic_that_is_gone_is_refused(request_name: str) -> None:
    site = await two_brokers()
    site.brokers.script[request_name] = [{TOPIC: NO_TOPIC} for _ in range(10_000)]
    site.catalog.gone.add("topic")
    with pytest.raises(WriteRefused) as refused:
        await site.send(*((TOPIC,) if request_name == "Produce" else (LEDGER, TOPIC)))
    assert (refused.value.topic, refused.value.reason) == ("topic", "unknown_topic")


async def test_a_silent_topic_is_refused_and_not_aborted_behind() -> None:
    site = await two_brokers()
    silent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    site.brokers.script["Produce"] = [0, silent]
    with pytest.raises(WriteRefused) as refused:
        await site.send(LEDGER, TOPIC, patience_s=0.01)
    assert refused.value.reason == "no_answer"
    await asyncio.sleep(0)
    await site.producer.abort()
    assert "EndTxn" not in site.brokers.names()


# --- the end of a transaction -----------------------------------------------------------------------------------------


async def test_an_end_is_asked_for_again_while_the_coordinator_is_busy() -> None:
    site = await one_broker()
    await site.send(LEDGER)
    site.brokers.script["EndTxn"] = [CONCURRENT, CONCURRENT]
    await site.producer.commit()
    assert site.brokers.names().count("EndTxn") == 3
    await site.send(LEDGER)
    assert batch_state(site.brokers.batches[LEDGER][-1]) == (7, 1, 0)


@pytest.mark.parametrize(
    ("answer", "raised", "means"),
    [
        (OLD_EPOCH, errors.InvalidProducerEpoch, Fenced), (FENCED, errors.ProducerFenced, Fenced),
        (BAD_MAPPING, errors.InvalidProducerIdMapping, Fenced), (BAD_STATE, errors.InvalidTxnState, LogFailed),
        (ABORTABLE, TransactionAbortable, LogFailed), (NOT_COORDINATOR, errors.NotCoordinatorForGroupError, LogFailed),
        (14, errors.GroupLoadInProgressError, LogFailed),
        (errors.KafkaConnectionError(), errors.KafkaConnectionError, LogFailed),
        (errors.RequestTimedOutError(), errors.RequestTimedOutError, LogFailed),
    ],
)  # fmt: skip
async def test_an_end_that_failed_is_not_tried_again(
    answer: Any, raised: type[Exception], means: type[Exception]
) -> None:
    site = await one_broker()
    await site.send(LEDGER)
    site.brokers.script["EndTxn"] = [answer]
    with pytest.raises(raised) as error:
        await site.producer.commit()
    assert isinstance(translate("s", error.value, lambda topic: None), means)
    assert site.brokers.names().count("EndTxn") == 1
    with pytest.raises(LogFailed, match="no epoch"):  # with the old one, records would be taken for those before
        await site.producer.begin()


async def test_who_is_fenced_while_the_coordinator_is_busy_does_not_know_how_it_ended() -> None:
    """It may have been busy with this very commit, and a newer producer has begun since."""
    site = await one_broker()
    await site.send(LEDGER)
    site.brokers.script["EndTxn"] = [CONCURRENT, FENCED]
    with pytest.raises(LogFailed, match="how a transaction ended"):
        await site.producer.commit()


@pytest.mark.parametrize("given", [(-1, -1), (7, 0)])
async def test_an_epoch_is_never_used_twice(given: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As a cluster whose feature was lowered would have it: no epoch comes, or the old one."""
    site = await one_broker()
    await site.send(LEDGER)
    answer = SimpleNamespace(error_code=0, producer_id=given[0], producer_epoch=given[1])
    monkeypatch.setattr(site.brokers, "_EndTxn", lambda *_: answer)
    await site.producer.commit()
    with pytest.raises(LogFailed, match="no epoch"):
        await site.producer.begin()


async def test_another_producer_id_begins_with_epoch_0() -> None:
    site = await one_broker()
    site.brokers.producer = (7, 32_766)
    await site.producer.start()
    await site.send(LEDGER)
    site.brokers.producer = (8, -1)
    await site.producer.commit()
    assert site.producer.producer_id == 8
    await site.send(LEDGER)
    assert batch_state(site.brokers.batches[LEDGER][-1]) == (8, 0, 0)


# --- the start, and what others left open -----------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [CONCURRENT, 14, 15, NOT_COORDINATOR, errors.KafkaConnectionError()])
async def test_a_start_goes_on_until_the_coordinator_takes_it(trouble: Any) -> None:
    site = Site({LEDGER: 1})
    site.brokers.script["InitProducerId"] = [trouble, trouble]
    await site.producer.start()
    assert site.brokers.names() == ["InitProducerId"] * 3
    assert site.producer.producer_id == 7


async def test_a_start_that_is_not_allowed_says_so() -> None:
    site = Site({LEDGER: 1})
    site.brokers.script["InitProducerId"] = [53]
    with pytest.raises(errors.TransactionalIdAuthorizationFailed):
        await site.producer.start()


@pytest.mark.parametrize("commits", [True, False])
async def test_what_is_open_is_ended_by_a_transaction_without_records(commits: bool) -> None:
    site = await one_broker()
    del site.brokers.sent[:]
    site.brokers.script["AddPartitionsToTxn"] = [CONCURRENT]
    await site.producer.end_open([LEDGER, TOPIC], commits=commits)
    assert site.brokers.names() == ["AddPartitionsToTxn", "AddPartitionsToTxn", "EndTxn"]
    assert site.brokers.sent[-1][2]._fields == ("duemq-duemq-s", 7, 0, commits)
    site.brokers.script["AddPartitionsToTxn"] = [FENCED]
    with pytest.raises(errors.ProducerFenced):
        await site.producer.end_open([LEDGER], commits=commits)


def test_markers_are_waited_for_a_while() -> None:
    assert module._MARKERS_S < 0.05
