"""Requests that reach the broker late: a round of each kind, and that a faulty committer does not pass them.

`make delayed` plays hundreds of rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from duemq.bus.base import Batches, Committer
from duemq.bus.kafka.options import TRANSACTIONS
from duemq.bus.kafka.produce.kafka_committer import KafkaCommitter
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.errors import DuemqError, Fenced
from tests.chaos.conftest import SEED
from tests.chaos.delayed.account import Account
from tests.chaos.delayed.holds import Api
from tests.chaos.delayed.journal import Commit, Journal, Outcome, SentMessage
from tests.chaos.delayed.model_shard import Logs, ModelShard
from tests.chaos.delayed.plan import COMMITTER, KINDS, Kind, Scene
from tests.chaos.delayed.reconcile import Stored, compare
from tests.chaos.delayed.run import OF_BROKER, Rounds, run
from tests.support.servers.real_servers import need_servers

_LONGEST_S = 2.0
_CHAOS = (pytest.mark.chaos, pytest.mark.smoke, pytest.mark.xdist_group("chaos"))


def chaos(test: Any) -> Any:
    for mark in _CHAOS:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServers]:
    """A separate broker: its duemq has more shards than that of other tests."""
    need_servers()
    with KafkaServers(tmp_path_factory.mktemp("kafka-delayed"), extra=OF_BROKER) as servers:
        yield servers


@chaos
@pytest.mark.parametrize("transactions", TRANSACTIONS)
def test_a_round_of_each_kind(kafka: KafkaServers, transactions: str) -> None:
    # Version 2 adds partitions to a transaction with the records, where no other transaction has just ended.
    kinds = tuple(kind for kind in KINDS if transactions == "v1" or kind.api is not Api.ADD_PARTITIONS)
    rounds = Rounds(SEED, 0, len(kinds), kinds, longest_s=_LONGEST_S)
    results = asyncio.run(run(kafka.bootstrap, rounds, {"transactions": transactions}))
    assert Account(SEED, transactions, results).clean, [(each.kind, each.wrong) for each in results if each.wrong]
    assert {each.kind for each in results} == {kind.name for kind in kinds}
    assert {each.level for each in results} == {"model", "node"}
    assert all(each.held_s and each.messages for each in results)


class Hasty(ModelShard):
    """Its committer reports success before EndTxn is answered."""

    async def open_committer(self) -> Committer:
        committer = await super().open_committer()
        assert isinstance(committer, KafkaCommitter)
        producer: Any = committer.producer
        begin, end = producer.begin, producer.commit
        ending: set[asyncio.Task[None]] = set()

        async def hasty() -> None:
            ending.add(asyncio.create_task(end()))

        async def later() -> None:
            await asyncio.gather(*ending)  # no transaction begins before
            ending.clear()
            await begin()

        producer.commit, producer.begin = hasty, later
        return committer


class Stubborn(ModelShard):
    """Repeats a batch with an unknown outcome without reading the ledger first."""

    _newest: Committer | None = None

    async def commit(self, committer: Committer, term: str, number: int, batches: Batches) -> None:
        while True:
            try:
                await super().commit(self._newest or committer, term, number, batches)
                return
            except Fenced:
                raise
            except DuemqError:
                self._newest = await self.open_committer()


@chaos
@pytest.mark.parametrize(
    ("mutant", "kind", "wrong"),
    [
        (Hasty, Kind(COMMITTER[0], Scene.DEPOSED), "untrue"),
        (Stubborn, Kind(COMMITTER[0], Scene.UNHEARD), "ledger"),
    ],
)
def test_a_faulty_committer_is_found_out(kafka: KafkaServers, mutant: type[ModelShard], kind: Kind, wrong: str) -> None:
    rounds = Rounds(SEED, 0, 3, (kind,), longest_s=_LONGEST_S, node_every=0, shard=mutant)
    results = asyncio.run(run(kafka.bootstrap, rounds, {}))
    assert wrong in {line.partition(":")[0] for each in results for line in each.wrong}, results


# --- the reconciliation ---------------------------------------------------------------------------------------------

LOGS = Logs("buffer", "ledger", ("a", "b"))


def _round() -> tuple[Journal, dict[str, list[Stored]]]:
    """Two messages, delivered by two entries, with a mark of a transaction after each."""
    journal, topics = Journal(), {name: list[Stored]() for name in LOGS.names}
    for number in range(2):
        name, topic = f"m{number}", LOGS.topic_states[number]
        place = {"id": name, "due": 100, "n": number, "term": "x.0"}
        topics[LOGS.buffer].append(Stored(number, 50, {"id": name, "topic": topic, "due": 100}))
        topics[LOGS.ledger].append(Stored(2 * number, 110, {"n": number, "term": "x.0", "ids": [name]}))
        topics[topic].append(Stored(0, 110, place))
        journal.sent.append(SentMessage(name, topic, 100, Outcome.DONE, number))
        journal.commits.append(Commit("x.0", number, Outcome.DONE, 2 * number))
    return journal, topics


def test_a_round_without_a_fault_is_clean() -> None:
    journal, topics = _round()
    assert compare(journal, LOGS, topics) == []


@pytest.mark.parametrize(
    ("topic", "change", "wrong"),
    [
        ("a", lambda records: [], {"torn", "lost"}),
        ("ledger", lambda records: records[:1], {"torn", "untrue"}),
        ("a", lambda records: records * 2, {"torn", "twice"}),
        ("buffer", lambda records: [*records, records[0]._replace(offset=2)], {"twice", "lost"}),
        ("buffer", lambda records: records[:1], {"lost", "untrue"}),
        ("b", lambda records: [records[0]._replace(stamp=99)], {"early"}),
        ("ledger", lambda records: [*records, records[1]._replace(offset=4)], {"ledger", "untrue"}),
    ],
)
def test_a_fault_is_told_by_its_kind(topic: str, change: Any, wrong: set[str]) -> None:
    journal, topics = _round()
    topics[topic] = change(topics[topic])
    assert {line.partition(":")[0] for line in compare(journal, LOGS, topics)} == wrong


def test_what_was_answered_with_nothing_must_not_be_there() -> None:
    journal, topics = _round()
    journal.commits[1] = journal.commits[1]._replace(outcome=Outcome.FENCED, offset=-1)
    assert [line.partition(":")[0] for line in compare(journal, LOGS, topics)] == ["untrue"]
