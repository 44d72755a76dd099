"""The transaction protocol of Kafka 4 (KIP-890): each transaction has its own epoch.

Sending records adds their partitions to the transaction, and the answer to the end of a transaction contains the next
epoch. So a cycle is one request to each leader and one to the coordinator. A late request whose caller gave up is
refused because of its epoch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from aiokafka import errors
from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError

from duemq.bus.kafka.aiokafka_internals import connection_to, on_connection_closed, use_brokers_of
from duemq.bus.kafka.clients import new_sending_client
from duemq.bus.kafka.produce.failures import worst
from duemq.bus.kafka.produce.producer import ProducerSetup
from duemq.bus.kafka.produce.stop import close_client
from duemq.bus.kafka.produce.transaction_sends import BatchesByPartition, Positions, until_acknowledged
from duemq.bus.kafka.produce.v2.sends import BatchSends, Epoch, added_partitions
from duemq.bus.kafka.requests.transaction_requests import EndTxnRequest, InitProducerIdRequest, error_of
from duemq.model.errors import LogFailed
from duemq.model.messages.record import Partition

_SOON_S = 0.002  # before a retry, while the coordinator is working on the previous transaction
_PAUSE_S = 0.04
_MARKERS_S = 0.01  # brokers have nearly always written a transaction's markers within this time
_NONE = Epoch(-1, -1)


class ProducerV2:
    """A `Producer` for brokers with transactions of version 2 (see `uses_v2`).

    Records for the broker that is the coordinator use the connection to the coordinator, so that records and
    coordinator requests notice its death at the same time.
    """

    def __init__(self, setup: ProducerSetup) -> None:
        self._setup, self.transactional_id = setup, setup.transactional_id
        self.epoch = _NONE
        self._ended = time.monotonic()  # when the last transaction ended
        self.node = -1  # the coordinator
        self._link: object | None = None  # the connection to the coordinator when the transaction began
        self._sends: BatchSends | None = None
        self.client: Any = new_sending_client(**setup.options.client())
        setup.wire.watch(self.client)
        on_connection_closed(self.client, self._on_closed)

    @property
    def producer_id(self) -> int:
        return self.epoch.producer_id

    def coordinator(self) -> object | None:
        return connection_to(self.client, self.node)

    async def connect(self) -> None:
        bus = self._setup.wire.client
        with suppress(KafkaError, OSError):
            use_brokers_of(bus, self.client)
            self.node = await bus.coordinator_lookup(CoordinationType.TRANSACTION, self.transactional_id)
            await self.client.ready(self.node)

    async def start(self) -> None:
        request = InitProducerIdRequest(self.transactional_id, self._setup.options.transaction_timeout_ms)
        if self.node < 0:
            await self.client.bootstrap()
        while True:
            try:
                if self.node < 0:
                    self.node = await self.client.coordinator_lookup(
                        CoordinationType.TRANSACTION, self.transactional_id
                    )
                answer = await self.client.send(self.node, request)
                if answer.error_code:
                    raise self._error_of(answer)
                self.epoch = Epoch(answer.producer_id, answer.producer_epoch)
                return
            except (KafkaError, OSError) as error:
                if isinstance(error, KafkaError) and not (error.retriable or _is_busy(error)):
                    raise
                self.node = -1
                await asyncio.sleep(_PAUSE_S)

    async def begin(self) -> None:
        if self.epoch is _NONE:
            raise LogFailed("Kafka gave no epoch for another transaction")
        if not await self.client.ready(self.node):
            raise errors.NodeNotReadyError(f"the coordinator of {self.transactional_id!r} is away")
        self._link = self.coordinator()

    async def send(self, batches: BatchesByPartition, patience_s: float) -> Positions:
        setup = self._setup
        timeout_ms = setup.options.request_timeout_ms * 3 // 4  # the broker's time limit: it answers before we give up
        self._sends = sends = BatchSends(
            self.client, self.transactional_id, self.epoch, batches, timeout_ms, self._check
        )
        try:
            sends.start(self.node, quiet=time.monotonic() - self._ended > _MARKERS_S)
            await until_acknowledged(sends, setup.catalog, setup.own, patience_s)
        finally:
            sends.close()
        if sends.failures:
            raise worst(setup.name, sends.failures, setup.own, setup.catalog.forget)
        return sends.positions

    async def commit(self) -> None:
        await self._end(commits=True)

    async def abort(self) -> None:
        """Abort, but do nothing while a broker has not answered: if this broker is the coordinator, the abort would
        wait for its answer."""
        if self._sends is None or not self._sends.unanswered:
            await self._end(commits=False)

    async def end_open(self, partitions: Collection[Partition], *, commits: bool) -> None:
        """Retry until the coordinator answers: if this gave up, the next start would abort the transaction, whatever
        was decided. A late request does no harm, because an epoch ends only one transaction."""
        epoch = self.epoch
        while True:
            try:
                self.node = await self.client.coordinator_lookup(CoordinationType.TRANSACTION, self.transactional_id)
                await self.begin()
                await self._add(partitions)
                await self._end(commits=commits)
                return
            except (KafkaError, OSError) as error:
                if isinstance(error, KafkaError) and not error.retriable:
                    raise
                self.epoch = epoch
                await asyncio.sleep(_PAUSE_S)

    async def stop(self, *, failed: bool) -> None:
        await close_client(self.client)

    # --- the coordinator --------------------------------------------------------------------------------------------

    async def _add(self, partitions: Collection[Partition]) -> None:
        while True:
            answer = await self.client.send(self.node, added_partitions(self.transactional_id, self.epoch, partitions))
            refusals = {error_of(code) for _, parts in answer.errors for _, code in parts if code}
            if not refusals:
                return
            if refusals != {errors.ConcurrentTransactions}:
                raise min(refusals, key=str)(f"transactional id {self.transactional_id!r}")
            await asyncio.sleep(_PAUSE_S)

    async def _end(self, *, commits: bool) -> None:
        """End the transaction. Each epoch is used only once: if it were used again, records with sequence numbers from
        0 on would look like records that the broker already has."""
        self._check()
        used, self.epoch = self.epoch, _NONE
        request, was_busy = EndTxnRequest(self.transactional_id, *used, commits), False
        while (answer := await self.client.send(self.node, request)).error_code:
            error = self._error_of(answer)
            if _is_busy(error):
                was_busy = True
                await asyncio.sleep(_SOON_S)
                self._check()
            elif was_busy:  # perhaps this request ended it, and a newer producer has begun since
                raise LogFailed(f"Kafka does not report how a transaction ended: {error!r}") from error
            else:
                raise error
        given = Epoch(answer.producer_id, answer.producer_epoch)
        if given.producer_id >= 0 and given != used:
            self.epoch = given
        self._ended = time.monotonic()

    def _check(self) -> None:
        """Raises LogFailed if the coordinator was lost since the transaction began.

        The coordinator may have lost the previous transaction's markers. Then that transaction's open records would
        become part of this transaction.
        """
        if self._link is None or self.coordinator() is not self._link:
            raise LogFailed(f"the coordinator of {self.transactional_id!r} was lost in a transaction")

    def _error_of(self, answer: Any) -> KafkaError:
        return error_of(answer.error_code)(f"transactional id {self.transactional_id!r}: error {answer.error_code}")

    def _on_closed(self, connection: Any) -> None:
        if self._link is not None and connection is self._link:
            self._setup.on_coordinator_lost()


def _is_busy(error: KafkaError) -> bool:
    """Whether the coordinator is still working on the previous transaction."""
    return isinstance(error, errors.ConcurrentTransactions)
