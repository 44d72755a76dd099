"""Ends hanging transactions: their coordinator has ended them, but they are open in a partition that never got its
marker.

Kafka 4 brokers drop a marker if its partition has no leader at that moment, as if the topic had been deleted
(KAFKA-20734). This happens while all brokers that have the partition restart. Readers of committed records then get
nothing more from the partition. And the same producer's next transaction absorbs the open records: committed records
may be aborted with it, and aborted ones committed. So a committer checks each partition before it writes to it, and
writes the missing marker by means of a transaction without records.

The open records must be committed or aborted as the coordinator last decided. The coordinator reports its decision
until a new producer begins; after that, `Decisions` has it. The decision is unknown only if the process died before the
repair: then the records are aborted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Collection, Iterable, Set
from typing import TypeVar

from aiokafka import errors
from aiokafka.client import CoordinationType

from duemq.bus.base import TopicNames, WriteRefused
from duemq.bus.kafka.produce.decisions import NONE, Decisions, LastTransaction
from duemq.bus.kafka.produce.producer import Producer
from duemq.bus.kafka.requests.describe_requests import DescribeTransactionsRequest
from duemq.bus.kafka.requests.partition_producers import OpenIn, PartitionProducers
from duemq.bus.kafka.requests.wire import Wire
from duemq.model.errors import LogFailed
from duemq.model.messages.record import Partition

log = logging.getLogger(__name__)

_OVER = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
_COMMITTED = ("PrepareCommit", "CompleteCommit")
_CALM_S = 1.0  # how long a partition that was seen in order counts as in order
_SOON_S, _PATIENCE = 0.005, 100  # to wait for markers, which brokers write after they report the end of a transaction

T = TypeVar("T")


class OpenTransaction:
    """Finds and ends the hanging transactions of one producer. `own`: duemq's own topics; `written`: see
    `Bus.committer`.

    `last`: the partitions of the last committed transaction.
    """

    def __init__(
        self,
        wire: Wire,
        producers: PartitionProducers,
        transactional_id: str,
        producer: Producer,
        own: Collection[str],
        written: TopicNames,
        decisions: Decisions,
    ) -> None:
        self.wire, self._producers, self.transactional_id, self._producer = wire, producers, transactional_id, producer
        self._own, self._written, self._decisions = own, written, decisions
        self._asked: set[str] = set()  # topics that later commits need not check
        self.checked: set[Partition] = set()
        self._link: object | None = None
        self._calm_since = -_CALM_S
        self.last: frozenset[Partition] = frozenset()

    async def learn(self) -> None:
        """Ask how the last transaction ended, before the producer starts, because its start makes the coordinator
        forget the answer.

        Usually all partitions are in order, and a takeover waits only for this query. Raises LogFailed.
        """
        began = time.monotonic()
        before, open_ = await asyncio.gather(self._describe(), self._open())
        hanging = self._record(before.producer_id, open_)
        self._decisions.learn(before, self.checked)
        if before.over and not hanging:
            self._calm_since = began

    async def mend(self) -> None:
        """Write the missing markers once the producer has started. After that, readers see all committed records.

        It skips partitions whose broker does not answer at once: `check` checks these. Raises KafkaError and LogFailed.
        """
        hanging: set[Partition] = set()
        if time.monotonic() - self._calm_since > _CALM_S:  # since then, brokers may have lost markers
            self.checked.clear()
            hanging = self._record(self._producer.producer_id, await self._open())
        while hanging:
            for commits in (True, False):
                if part := {where for where in hanging if self._decisions.commits(where) is commits}:
                    await self._end(part, commits)
            for _ in range(_PATIENCE):
                hanging = await self._among(hanging)
                if not hanging:
                    break
                await asyncio.sleep(_SOON_S)
        self._decisions.suspects.clear()
        self._link = self._producer.coordinator()

    async def _end(self, hanging: Collection[Partition], commits: bool) -> None:
        """End open transactions in these partitions by means of a transaction without records."""
        log.warning(
            "%s what an earlier transaction of %s left open in %s",
            "committing" if commits else "aborting", self.transactional_id,
            ", ".join(f"{topic} {number}" for topic, number in sorted(hanging)), extra={"action": "kafka_hanging"},
        )  # fmt: skip
        await self._producer.end_open(hanging, commits=commits)

    async def check(self, partitions: Iterable[Partition]) -> None:
        """Raises LogFailed if a transaction hangs in a partition that is about to be written to.

        After a change of the coordinator, the last transaction's partitions are checked, too: the old one may have lost
        their markers. Raises WriteRefused for a topic of messages whose broker does not answer.
        """
        link = self._producer.coordinator()
        if link is not self._link:
            self._link = link
            self.checked.clear()
            partitions = self.last.union(partitions)
        await self._check_learned()
        new = set(partitions) - self.checked
        if not new:
            return
        self._asked.update(topic for topic, _ in new)
        try:
            hanging = await self._among(new)
        except LogFailed as error:
            silent = sorted(new - self.checked)
            if not silent or any(topic in self._own for topic, _ in silent):
                raise
            topic, number = silent[0]
            detail = f"the broker of partition {number} of topic {topic!r} does not list open transactions: {error}"
            raise WriteRefused(topic, "no_answer", detail) from error
        self._refuse(hanging)

    async def _check_learned(self) -> None:
        """Check topics that became known only now: the previous committer's last ledger entries, which are read after
        this committer has fenced it, may mention other topics."""
        names = self._written()
        if names is not None and (new := names - self._asked):
            self._asked |= new
            self._refuse(self._record(self._producer.producer_id, await self._of_topics(new)))

    def _refuse(self, hanging: Collection[Partition]) -> None:
        self._decisions.suspects.update(topic for topic, _ in hanging)
        for topic, number in hanging:
            raise LogFailed(f"a transaction hangs in partition {number} of topic {topic!r}: it has to be ended first")

    # --- asking -----------------------------------------------------------------------------------------------------

    async def _describe(self) -> LastTransaction:

        async def ask() -> LastTransaction:
            request = DescribeTransactionsRequest([self.transactional_id])
            answer = await self.wire.ask_coordinator(CoordinationType.TRANSACTION, self.transactional_id, request)
            for code, _, state, _, _, producer_id, *_ in answer.transactions:
                error = errors.for_code(code)
                if error.retriable:
                    raise error(f"transactional id {self.transactional_id!r}")
                if not code:
                    return LastTransaction(producer_id, state != "Empty", state in _OVER, state in _COMMITTED)
            return NONE  # the id was never used, or duemq's user may not see it

        return await _unless_old(self.wire.retry(ask), NONE)

    async def _open(self) -> OpenIn:
        """The open transactions in all partitions that our producer may have written to."""
        names = self._written()
        topics = None if names is None else {*names, *self._own, *self._decisions.suspects}
        self._asked.update(names or ())
        return await self._of_topics(topics)

    async def _of_topics(self, topics: Set[str] | None) -> OpenIn:
        open_ = await _unless_old(self._producers.of_topics(topics), OpenIn({}, set()))
        self.checked.update(where for where in open_.answered if topics is None or where[0] in topics)
        return open_

    async def _among(self, partitions: Iterable[Partition]) -> set[Partition]:
        """The given partitions in which our producer has an open transaction. Raises LogFailed."""
        targets = set(partitions) - self.checked

        async def ask() -> set[Partition]:
            open_ = await self._producers.of(targets)
            self.checked |= open_.answered
            ours = self._record(self._producer.producer_id, open_)
            for topic, number in targets - self.checked - ours:
                raise errors.NotLeaderForPartitionError(f"partition {number} of topic {topic!r}")
            return ours

        return await _unless_old(self.wire.retry(ask), set()) if targets else set()

    def _record(self, producer_id: int, open_: OpenIn) -> set[Partition]:
        """The partitions in which our producer has an open transaction.

        These must be checked again. All other partitions that were checked are in order.
        """
        ours = open_.held_by(producer_id)
        self.checked -= ours
        self._decisions.in_order(self.checked)
        return ours


async def _unless_old(answer: Awaitable[T], otherwise: T) -> T:
    """The answer; `otherwise` for brokers before 3.0, which have neither this request nor this fault."""
    try:
        return await answer
    except LogFailed as error:
        if isinstance(error.__cause__, errors.IncompatibleBrokerVersion):
            return otherwise
        raise
