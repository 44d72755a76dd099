"""Asks the leaders of partitions for the partitions' producers, with one query for all committers that ask at the same
time."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Set
from typing import NamedTuple

from aiokafka import errors
from aiokafka.errors import KafkaError

from duemq.bus.kafka.requests.describe_requests import DescribeProducersRequest
from duemq.bus.kafka.requests.wire import Wire, group_by_topic
from duemq.model.messages.record import Partition

log = logging.getLogger(__name__)

LOOK_S = 1.0  # how long a broker may take to answer for all partitions that it leads; a takeover waits for this
_GATHER_S = 0.002
_AT_ONCE = 1_000  # partitions in one request
_CONCLUSIVE = (
    errors.NoError,
    errors.TopicAuthorizationFailedError,
)  # the last one: duemq's user may not read the topic


class OpenIn(NamedTuple):
    """`producers`: by partition, the producers with an open transaction; for each, the offset of the transaction's
    first record and the time (epoch ms) of the producer's last record. `answered`: the partitions whose brokers have
    answered."""

    producers: dict[Partition, dict[int, tuple[int, int]]]
    answered: set[Partition]

    def held_by(self, producer_id: int) -> set[Partition]:
        """The partitions in which this producer has an open transaction."""
        return {where for where, producers in self.producers.items() if producer_id in producers}


class _Question:
    """A query that several callers share. `topics`: None = all."""

    def __init__(self) -> None:
        self.topics: set[str] | None = set()
        self.answer: asyncio.Task[OpenIn]

    def add(self, topics: Set[str] | None) -> None:
        self.topics = None if topics is None or self.topics is None else self.topics | topics


class PartitionProducers:
    """The producers of a cluster's partitions, for one bus."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._next: _Question | None = None

    async def of_topics(self, topics: Set[str] | None) -> OpenIn:
        """The open transactions in all partitions of these topics (None = all topics). Raises LogFailed.

        The brokers are asked after this call has begun. Brokers that do not answer at once are left out. Concurrent
        callers share an answer, so it may cover more topics.
        """
        question = self._next
        if question is None:
            question = self._next = _Question()
            question.answer = asyncio.create_task(self._answer(question), name="kafka producers")
            question.answer.add_done_callback(_retrieve_error)
        question.add(topics)
        return await asyncio.shield(question.answer)

    async def _answer(self, question: _Question) -> OpenIn:
        await asyncio.sleep(_GATHER_S)  # share a query: a dead node's shards are taken over together
        self._next = None
        names = question.topics
        by_node: defaultdict[int, list[Partition]] = defaultdict(list)
        answer = OpenIn({}, set())
        if names is None or names:
            topics = await self._wire.metadata(None if names is None else sorted(names))
            for code, topic, internal, partitions, *_ in topics:
                for _, number, leader, *_ in () if internal or code else partitions:
                    by_node[leader].append((topic, number))
        lookups = (self._soon(node, partitions) for node, partitions in by_node.items() if node >= 0)
        for part in await asyncio.gather(*lookups):
            answer.producers.update(part.producers)
            answer.answered.update(part.answered)
        return answer

    async def _soon(self, node: int, partitions: list[Partition]) -> OpenIn:
        try:
            async with asyncio.timeout(LOOK_S):
                return await self._ask(node, partitions)
        except (KafkaError, OSError, TimeoutError) as error:
            log.debug("broker %d does not list open transactions: %r", node, error)
            return OpenIn({}, set())

    async def of(self, partitions: Iterable[Partition]) -> OpenIn:
        """The open transactions in these partitions. Raises KafkaError and OSError."""
        answer = OpenIn({}, set())
        for node, group in self._wire.by_leader(partitions).items():
            part = await self._ask(node, group)
            answer.producers.update(part.producers)
            answer.answered.update(part.answered)
        return answer

    async def _ask(self, node: int, partitions: list[Partition]) -> OpenIn:
        """Ask a broker about partitions that it leads. Raises KafkaError and OSError."""
        answer = OpenIn({}, set())
        for at in range(0, len(partitions), _AT_ONCE):
            topics = group_by_topic((where, where[1]) for where in partitions[at : at + _AT_ONCE])
            for topic, parts, *_ in (await self._wire.ask(node, DescribeProducersRequest(topics))).topics:
                for number, code, _, producers, *_ in parts:
                    if errors.for_code(code) in _CONCLUSIVE:
                        answer.answered.add((topic, number))
                    if open_ := {
                        producer: (start, last_at) for producer, _, _, last_at, _, start, _ in producers if start >= 0
                    }:
                        answer.producers[topic, number] = open_
        return answer


def _retrieve_error(answer: asyncio.Task[OpenIn]) -> None:
    """Retrieve the error, because otherwise asyncio logs it if all callers were cancelled."""
    if not answer.cancelled():
        answer.exception()
