"""Finds open transactions that block duemq's own topics, with their producer and age.

Readers get only committed records, in order. So a Kafka client that hangs in the middle of a transaction in
`duemq.buffer` delays all other clients' commands in that shard, until the brokers end the transaction.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from aiokafka.errors import KafkaError

from duemq.background.loop import Loop
from duemq.bus.base import BlockingTransaction
from duemq.bus.kafka.requests.describe_requests import ListTransactionsRequest
from duemq.bus.kafka.requests.partition_producers import PartitionProducers
from duemq.bus.kafka.requests.wire import Wire
from duemq.model.errors import LogFailed
from duemq.model.messages.record import Partition

log = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
_BLOCKED_S: Final = 2.0  # a cycle's transaction is open only for milliseconds
_ANSWER_S: Final = 1.0
_UNKNOWN: Final = -1


class BlockedPartitions:
    """`own`: duemq's own topics, with their numbers of partitions. `clock`: epoch ms.

    `abandoned`: transactional ids that processes use only briefly. `end` is called with each of these ids at the start,
    because a process may have died during such a transaction, and later whenever a transaction with one of them blocks
    a partition.
    """

    def __init__(
        self,
        wire: Wire,
        producers: PartitionProducers,
        own: Mapping[str, int],
        clock: Callable[[], int],
        abandoned: Collection[str],
        end: Callable[[str], Awaitable[None]],
    ) -> None:
        self._wire, self._producers, self._own, self._clock = wire, producers, own, clock
        self._abandoned, self._end = abandoned, end
        self._stable: dict[Partition, tuple[int, float]] = {}  # last stable offsets that do not advance, and since when
        self.now: Mapping[Partition, BlockingTransaction] = {}

    async def run(self) -> None:
        """End abandoned transactions, then check until cancelled."""
        for transactional_id in self._abandoned:
            await self._end(transactional_id)
        expected = (KafkaError, OSError, LogFailed, TimeoutError)
        await Loop(
            "blocked partitions", self.refresh, expected=expected, every_s=_EVERY_S, delay_s=_EVERY_S, first_s=_EVERY_S,
            level=logging.DEBUG,
        ).run()  # fmt: skip

    async def refresh(self) -> None:
        """Check all partitions once. Raises KafkaError, OSError and LogFailed."""
        by_leader: defaultdict[int, list[Partition]] = defaultdict(list)
        for where in [(topic, each) for topic, count in self._own.items() for each in range(count)]:
            if (node := self._wire.leader(*where)) is not None:
                by_leader[node].append(where)
        looks = await asyncio.gather(*map(self._wait_for_readers, by_leader.values()))
        waiting = {where: offset for part in looks for where, offset in part.items()}
        at, known = time.monotonic(), self._stable
        self._stable = {
            where: known[where] if where in known and known[where][0] == offset else (offset, at)
            for where, offset in waiting.items()
        }
        blocked = {where: since for where, (_, since) in self._stable.items() if at - since >= _BLOCKED_S}
        now = await self._name(blocked, at) if blocked else {}
        before, self.now = self.now, now
        for where, transaction in now.items():
            if where not in before or before[where].offset != transaction.offset:
                log.warning("topic %s: %s", where[0], transaction.sentence(where[1]), extra={"action": "blocked"})
        for topic, number in before.keys() - now.keys():
            log.info("topic %s: partition %d is read on", topic, number, extra={"action": "blocked"})
        for name in {transaction.transactional_id for transaction in now.values()}.intersection(self._abandoned):
            await self._end(name)

    async def _wait_for_readers(self, partitions: list[Partition]) -> dict[Partition, int]:
        """The partitions of one leader that have records after their last stable offset, with that offset."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                stable = await self._wire.offsets(partitions)
                ends = await self._wire.offsets(partitions, committed=False)
        except (TimeoutError, LogFailed) as error:
            log.debug("how far partitions are read is not known: %r", error)
            return {where: self._stable[where][0] for where in partitions if where in self._stable}
        return {where: offset for where, offset in stable.items() if ends[where] > offset}

    async def _name(self, blocked: Mapping[Partition, float], at: float) -> dict[Partition, BlockingTransaction]:
        """Find the blocking transactions. `blocked`: since when each partition is blocked, on the steady clock. Raises
        KafkaError and OSError."""
        try:
            producers = (await self._producers.of(blocked)).producers
        except (KafkaError, OSError) as error:  # brokers before 3.0 do not list producers
            log.debug("which producers block partitions is not known: %r", error)
            producers = {}
        first = {where: min(open_.items(), key=lambda one: one[1]) for where, open_ in producers.items()}
        ids = await self._transactional_ids({producer for producer, _ in first.values()})
        transactions, now = {}, self._clock()
        for where, since_s in blocked.items():
            producer, (offset, last_at) = first.get(where, (_UNKNOWN, (self._stable[where][0], now)))
            before = self.now.get(where)
            if before is not None and (before.producer_id, before.offset) == (producer, offset):
                transactions[where] = before
            else:
                since = min(last_at, now - int((at - since_s) * 1000))
                transactions[where] = BlockingTransaction(producer, ids.get(producer, ""), offset, since)
        return transactions

    async def _transactional_ids(self, producers: Iterable[int]) -> dict[int, str]:
        """By producer id; producers are left out if duemq's user may not see their transactional ids."""
        known = {one.producer_id: one.transactional_id for one in self.now.values()}
        if new := set(producers) - known.keys():
            for broker in self._wire.client.cluster.brokers():
                try:
                    async with asyncio.timeout(_ANSWER_S):
                        answer = await self._wire.ask(broker.nodeId, ListTransactionsRequest(new))
                except (KafkaError, OSError, TimeoutError) as error:
                    log.debug("broker %d does not list transactions: %r", broker.nodeId, error)
                    continue
                known |= {producer: name for name, producer, *_ in answer.transactions}
        return known
