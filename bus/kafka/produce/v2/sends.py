"""The batches of one transaction in flight: one request at a time to each leader, with all its partitions.

A batch keeps its sequence number however often it is sent, so a broker that already has the batch returns its offset.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, NamedTuple

from aiokafka import errors
from aiokafka.errors import KafkaError
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest
from aiokafka.structs import TopicPartition

from duemq.bus.kafka.aiokafka_internals import built_batch, know_topic
from duemq.bus.kafka.produce.stop import notice_error
from duemq.bus.kafka.produce.transaction_sends import BatchesByPartition, Positions
from duemq.bus.kafka.record_batches import RecordBatch
from duemq.bus.kafka.requests.transaction_requests import OperationNotAttempted, ProduceRequest, error_of
from duemq.bus.kafka.requests.wire import group_by_topic
from duemq.model.errors import LogFailed
from duemq.model.messages.record import Partition

_SOON_S = 0.002  # a pause while the previous transaction's markers are written; the broker has already waited for them
_PAUSE_S = 0.04


class Epoch(NamedTuple):
    """A producer's identity on the brokers, for one transaction. Sequence numbers begin at 0 in each epoch."""

    producer_id: int
    epoch: int


def added_partitions(transactional_id: str, epoch: Epoch, partitions: Iterable[Partition]) -> AddPartitionsToTxnRequest:
    """The coordinator request that adds these partitions to the transaction."""
    return AddPartitionsToTxnRequest(transactional_id, *epoch, group_by_topic((each, each[1]) for each in partitions))


class BatchSends:
    """The `TransactionSends` of version 2. Call `start`, then wait until all sends have ended; call `close` in any
    case.

    `check` is called before each request, and raises LogFailed if no more requests may be sent.
    """

    def __init__(
        self,
        client: Any,
        transactional_id: str,
        epoch: Epoch,
        batches: BatchesByPartition,
        timeout_ms: int,
        check: Callable[[], None],
    ) -> None:
        self._client, self._id, self._epoch, self._timeout_ms = client, transactional_id, epoch, timeout_ms
        self._check = check
        self._left = {where: list(reversed(parts)) for where, parts in batches.items()}  # the next batch is last
        self._sequences = dict.fromkeys(batches, 0)
        self._built: dict[Partition, bytes] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._refused_once = False
        self.unanswered = 0  # requests without an answer, including cancelled ones
        self.positions: Positions = {where: [] for where in batches}
        self.failures: list[tuple[str, BaseException]] = []

    def start(self, coordinator: int, *, quiet: bool) -> None:
        """Start to send. `quiet`: on all brokers the previous transaction has ended, so it needs no more markers.

        If two brokers add their partitions at the same time, the coordinator refuses one of them. While it writes
        markers, it refuses all. A refused broker waits for 20 ms (add.partitions.to.txn.retry.backoff.ms). Adding all
        partitions in one request first takes only 1 or 2 ms.
        """
        one = len({self._leader(where) for where in self._left}) == 1
        self._work(self._send(self._left) if quiet and one else self._add(coordinator))

    def close(self) -> None:
        for worker in self._workers:
            worker.cancel()

    # --- the interface for `until_acknowledged` ---------------------------------------------------------------------

    async def wait(self, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        while self._workers and (left := until - time.monotonic()) > 0:
            done, _ = await asyncio.wait(self._workers, timeout=left)
            self._workers -= done
            for worker in done:
                worker.result()
        return not self._workers

    def silent(self) -> list[Partition]:
        return [where for where, parts in self._left.items() if parts]

    def has_leaders(self, partitions: Collection[Partition]) -> bool:
        return all(self._leader(where) is not None for where in partitions)

    def is_in_doubt(self) -> bool:
        return self._refused_once

    # --- sending ----------------------------------------------------------------------------------------------------

    def _leader(self, where: Partition) -> int | None:
        node: int | None = self._client.cluster.leader_for_partition(TopicPartition(*where))
        return None if node == -1 else node

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        worker = asyncio.create_task(work, name="kafka commit part")
        worker.add_done_callback(notice_error)
        self._workers.add(worker)

    async def _add(self, coordinator: int) -> None:
        """Add the partitions to the transaction, then send to them.

        A partition without a leader is not added here; its records add it later. Once it is in a transaction, no other
        transaction can begin before the partition has a leader.
        """
        partitions = [where for where in self._left if self._leader(where) is not None]
        while not self.failures:
            answer = await self._ask(coordinator, added_partitions(self._id, self._epoch, partitions))
            refusals = [
                (topic, number, error_of(code)) for topic, parts in answer.errors for number, code in parts if code
            ]
            if not refusals:
                await self._send(self._left)
                return
            self._refused_once = True
            kinds = {error for *_, error in refusals}
            if kinds == {errors.ConcurrentTransactions}:
                await asyncio.sleep(_SOON_S)
            elif errors.UnknownTopicOrPartitionError in kinds:  # deleted, or still unknown to this broker
                await asyncio.sleep(_PAUSE_S)
            else:
                self.failures += [
                    (topic, error(f"partition {number} of topic {topic!r}"))
                    for topic, number, error in refusals
                    if error is not OperationNotAttempted
                ]

    async def _ask(self, node: int, request: Any) -> Any:
        """Raises KafkaError, OSError and LogFailed."""
        self._check()
        self.unanswered += 1
        try:
            answer = await self._client.send(node, request)
        except Exception:
            self.unanswered -= 1
            raise
        self.unanswered -= 1
        return answer

    async def _send(self, partitions: Iterable[Partition]) -> None:
        """Send each leader its part: one in this task, the others in separate tasks."""
        groups: defaultdict[int | None, list[Partition]] = defaultdict(list)
        for where in partitions:
            groups[self._leader(where)].append(where)
        first, *others = (
            self._find_leaders(group) if node is None else self._send_to(node, group) for node, group in groups.items()
        )
        for work in others:
            self._work(work)
        await first

    async def _find_leaders(self, partitions: list[Partition]) -> None:
        while not self.failures:
            for topic in {topic for topic, _ in partitions}:
                if self._client.cluster.partitions_for_topic(topic) is None:
                    try:
                        await know_topic(self._client, topic)
                    except KafkaError as error:  # a failure of the topic, not of the commit
                        self.failures.append((topic, error))
            if any(self._leader(where) is not None for where in partitions):
                await self._send(partitions)
                return
            await self._client.force_metadata_update()
            await asyncio.sleep(_PAUSE_S)

    async def _send_to(self, node: int, partitions: list[Partition]) -> None:
        """Send to a leader until it has all batches for these partitions, or no longer leads one of them."""
        while not self.failures:
            troubles = await self._produce(node, partitions)
            partitions = [where for where in partitions if self._left[where]]
            if not partitions:
                return
            if troubles:
                self._refused_once = True
                if all(issubclass(trouble, errors.ConcurrentTransactions) for trouble in troubles):
                    await asyncio.sleep(_SOON_S)
                    continue
                if any(getattr(trouble, "invalid_metadata", False) for trouble in troubles):
                    await self._client.force_metadata_update()
                await asyncio.sleep(_PAUSE_S)
            if any(self._leader(where) != node for where in partitions):
                await self._send(partitions)
                return

    async def _produce(self, node: int, partitions: list[Partition]) -> set[type[KafkaError]]:
        """Send the next batch of each of these partitions. Returns the errors that should be retried."""
        batches = ((where, (where[1], self._next(where))) for where in partitions)
        request = ProduceRequest(self._id, self._timeout_ms, group_by_topic(batches))
        try:
            answer = await self._ask(node, request)
        except (KafkaError, OSError) as error:
            if isinstance(error, KafkaError) and not error.retriable:
                raise
            return {errors.NodeNotReadyError}
        troubles: set[type[KafkaError]] = set()
        for topic, parts, _ in answer.topics:
            for number, code, offset, timestamp, *_ in parts:
                where = topic, number
                if not code:
                    self._acknowledge(where, offset, timestamp)
                    continue
                kind = error_of(code)
                if kind.retriable or kind is errors.ConcurrentTransactions:
                    troubles.add(kind)
                else:
                    self.failures.append((topic, kind(f"partition {number} of topic {topic!r}: error {code}")))
        return troubles

    def _next(self, where: Partition) -> bytes:
        """A partition's next batch, in wire format."""
        built = self._built.get(where)
        if built is None:
            builder = self._left[where][-1].builder
            built = self._built[where] = built_batch(builder, *self._epoch, self._sequences[where])
        return built

    def _acknowledge(self, where: Partition, offset: int, timestamp: int) -> None:
        part: RecordBatch = self._left[where].pop()
        del self._built[where]
        self._sequences[where] += part.builder.record_count()
        if offset < 0:
            self.failures.append((where[0], LogFailed("Kafka no longer knows the offset of a batch")))
        self.positions[where].append((part.start, offset, timestamp))
