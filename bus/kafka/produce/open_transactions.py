"""Hanging transactions: over for their coordinator, and open in a partition that never got its marker.

Brokers of Kafka 4 give a marker up when its partition has no leader just then, as if the topic was deleted
(KAFKA-20734): so it happens while the only broker of a partition, or all of them, start again. Readers of committed
records get nothing further from such a partition, and the next transaction of the same producer takes the open records
into itself: what was committed may be aborted with it, and what was aborted committed. So a committer looks before it
writes to a partition, and gives it the marker that is missing by a transaction without records.

How the open records are to end is what the coordinator last decided, which it tells until a new producer begins. From
then on `Decisions` knows it. Only where the process died before this was mended is it unknown: then they are aborted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Collection, Iterable
from typing import TypeVar

from aiokafka import errors
from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError

from duemq.bus.base import WriteRefused
from duemq.bus.kafka.produce.decisions import NONE, Decisions, Last
from duemq.bus.kafka.produce.producer import Producer
from duemq.bus.kafka.requests.describe_requests import DescribeProducersRequest, DescribeTransactionsRequest
from duemq.bus.kafka.requests.wire import Wire, group_by_topic
from duemq.model.errors import LogFailed
from duemq.model.record import Partition

log = logging.getLogger(__name__)

_OVER = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
_COMMITTED = ("PrepareCommit", "CompleteCommit")
_AT_ONCE = 1_000  # partitions in one request
_SOON_S, _PATIENCE = 0.005, 100  # for markers, which brokers write after they said that a transaction is over
_LOOK_S = 1.0  # that each broker has to answer for all it leads, which a take-over waits for
_CONCLUSIVE = (
    errors.NoError,
    errors.TopicAuthorizationFailedError,
)  # where duemq may only write, nothing is to be seen

Open = dict[Partition, frozenset[int]]
"""Producers that have a transaction open in a partition."""

T = TypeVar("T")


class OpenTransaction:
    """What transactions before left open of one producer. `last`: the partitions of the last one that was committed."""

    def __init__(self, wire: Wire, transactional_id: str, producer: Producer, decisions: Decisions) -> None:
        self._wire, self._id, self._producer, self._decisions = wire, transactional_id, producer, decisions
        self._looked: set[Partition] = set()
        self._link: object | None = None
        self._calm_since = -_LOOK_S
        self.last: frozenset[Partition] = frozenset()

    async def learn(self) -> None:
        """Ask how the last transaction ended, before the start of the producer makes the coordinator forget it.

        Nearly always all is in order, and this is all that a take-over waits for. Raises LogFailed.
        """
        began = time.monotonic()
        before, (open_, silent) = await asyncio.gather(self._describe(), self._everywhere())
        hanging = self._note(before.producer_id, open_)
        self._decisions.learn(before, hanging | silent)
        if before.over and not hanging:
            self._calm_since = began

    async def mend(self) -> None:
        """Write the markers that are missing, once the producer has started. Then all shows what is committed.

        Partitions whose broker does not answer at once are left to `look`. Raises KafkaError and LogFailed.
        """
        hanging: set[Partition] = set()
        if time.monotonic() - self._calm_since > _LOOK_S:  # a broker may have lost markers since
            self._looked.clear()
            open_, _ = await self._everywhere()
            hanging = self._note(self._producer.producer_id, open_)
        while hanging:
            for commits in (True, False):
                if part := {where for where in hanging if self._decisions.commits(where) is commits}:
                    await self._end(part, commits)
            for _ in range(_PATIENCE):
                hanging = await self._among(hanging)
                if not hanging:
                    break
                await asyncio.sleep(_SOON_S)
        self._link = self._producer.coordinator()

    async def _end(self, hanging: Collection[Partition], commits: bool) -> None:
        """End what is open in these partitions, by a transaction without records."""
        log.warning(
            "%s what an earlier transaction of %s left open in %s",
            "committing" if commits else "aborting", self._id,
            ", ".join(f"{topic} {number}" for topic, number in sorted(hanging)), extra={"action": "kafka_hanging"},
        )  # fmt: skip
        await self._producer.end_open(hanging, commits=commits)

    async def look(self, partitions: Iterable[Partition], own: Collection[str]) -> None:
        """Raises LogFailed where something hangs in a partition that is about to be written to.

        A coordinator that was away since the last transaction may have lost its markers. Raises WriteRefused for
        a topic that is not among `own` and whose broker does not tell.
        """
        link = self._producer.coordinator()
        if link is not self._link:
            self._link = link
            self._looked.clear()
            partitions = self.last.union(partitions)
        new = set(partitions) - self._looked
        if not new:
            return
        try:
            hanging = await self._among(new)
        except LogFailed as error:
            silent = sorted(new - self._looked)
            if not silent or any(topic in own for topic, _ in silent):
                raise
            topic, number = silent[0]
            detail = f"the broker of partition {number} of topic {topic!r} does not tell what is open there: {error}"
            raise WriteRefused(topic, "no_answer", detail) from error
        for topic, number in hanging:
            raise LogFailed(f"a transaction hangs in partition {number} of topic {topic!r}: it has to be ended first")

    # --- asking -----------------------------------------------------------------------------------------------------

    async def _describe(self) -> Last:

        async def ask() -> Last:
            request = DescribeTransactionsRequest([self._id])
            answer = await self._wire.ask_coordinator(CoordinationType.TRANSACTION, self._id, request)
            for code, _, state, _, _, producer_id, *_ in answer.transactions:
                error = errors.for_code(code)
                if error.retriable:
                    raise error(f"transactional id {self._id!r}")
                if not code:
                    return Last(producer_id, state != "Empty", state in _OVER, state in _COMMITTED)
            return NONE  # never used, or nothing we may know

        return await _unless_old(self._wire.retry(ask), NONE)

    async def _everywhere(self) -> tuple[Open, set[Partition]]:
        """What is open in all partitions, and those that nothing is known of because their broker does not answer."""
        by_node: dict[int, list[Partition]] = {}
        for code, topic, internal, partitions, *_ in await self._wire.metadata(None):
            for _, number, leader, *_ in () if internal else partitions:
                by_node.setdefault(-1 if code else leader, []).append((topic, number))
        lookups = (self._soon(node, partitions) for node, partitions in by_node.items() if node >= 0)
        transactions: Open = {}
        for part in await asyncio.gather(*lookups):
            transactions |= part
        return transactions, {
            where for partitions in by_node.values() for where in partitions if where not in self._looked
        }

    async def _soon(self, node: int, partitions: list[Partition]) -> Open:
        try:
            async with asyncio.timeout(_LOOK_S):
                return await self._ask(node, partitions)
        except (KafkaError, OSError, TimeoutError) as error:
            log.debug("broker %d does not tell of hanging transactions: %r", node, error)
            return {}

    async def _among(self, partitions: Iterable[Partition]) -> set[Partition]:
        """The partitions among these in which something of our producer is open. Raises LogFailed."""
        targets = set(partitions) - self._looked

        async def ask() -> set[Partition]:
            transactions: Open = {}
            for node, group in self._wire.by_leader(targets).items():
                transactions |= await self._ask(node, group)
            ours = self._note(self._producer.producer_id, transactions)
            for topic, number in targets - self._looked - ours:
                raise errors.NotLeaderForPartitionError(f"partition {number} of topic {topic!r}")
            return ours

        return await _unless_old(self._wire.retry(ask), set()) if targets else set()

    async def _ask(self, node: int, partitions: list[Partition]) -> Open:
        """What is open in partitions that this broker leads. Raises KafkaError."""
        transactions: Open = {}
        for at in range(0, len(partitions), _AT_ONCE):
            topics = group_by_topic((where, where[1]) for where in partitions[at : at + _AT_ONCE])
            for topic, parts, *_ in (await self._wire.ask(node, DescribeProducersRequest(topics))).topics:
                for number, code, _, producers, *_ in parts:
                    if errors.for_code(code) in _CONCLUSIVE:
                        self._looked.add((topic, number))
                    if open_ := frozenset(producer for producer, *_, start, _ in producers if start >= 0):
                        transactions[topic, number] = open_
        return transactions

    def _note(self, producer_id: int, transactions: Open) -> set[Partition]:
        """The partitions in which our producer has something open.

        They are to be looked at again. All else that was looked at is in order.
        """
        ours = {where for where, producers in transactions.items() if producer_id in producers}
        self._looked -= ours
        self._decisions.in_order(self._looked)
        return ours


async def _unless_old(answer: Awaitable[T], otherwise: T) -> T:
    """What was asked for; `otherwise` of brokers before 3.0, which know neither the request nor this fault."""
    try:
        return await answer
    except LogFailed as error:
        if isinstance(error.__cause__, errors.IncompatibleBrokerVersion):
            return otherwise
        raise
