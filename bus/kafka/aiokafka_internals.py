"""The private parts of aiokafka 0.14 that duemq uses. They are used only here, and a test checks that they exist.

First come fixes for defects, each applied to one client only; then come other attributes that duemq reads and sets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.conn import CloseReason
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.errors import KafkaConnectionError, ProducerClosed, RequestTimedOutError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.transaction import EndTxnRequest
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import decode_varint
from aiokafka.structs import OffsetAndMetadata, TopicPartition

BATCH_HEAD_BYTES = 12  # base offset and length; the length does not include these
_MANY_TOPICS = 1_000  # from this number on, deleted topics are dropped


def mend_requests(client: Any) -> None:
    """Make every failed request of an AIOKafkaClient raise a KafkaError.

    When several requests time out on one connection, the first one closes the connection, and the next request opens a
    new one. The others then no longer find theirs, and `send` raises KeyError. And if the broker has only recently
    closed a connection, uvloop refuses to write to it with a RuntimeError (asyncio's own transports do not). Either
    error ends aiokafka's background tasks, and callers expect a KafkaError.
    """
    send = client.send

    async def sending(node: int, request: Any, **options: Any) -> Any:
        try:
            return await send(node, request, **options)
        except KeyError as error:
            raise RequestTimedOutError from error
        except RuntimeError as error:
            if "handler is closed" not in str(error):
                raise
            connection = client._conns.get((node, options.get("group", ConnectionGroup.DEFAULT)))
            if connection is not None:
                connection.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"the connection to broker {node} was closed: {error}") from error

    client.send = sending


def mend_leaders(client: Any) -> None:
    """Make the AIOKafkaClient of a producer keep the leaders of all topics that it sends to.

    Unmended, the client keeps all leaders until it sends to an unknown topic. Then it requests metadata for that topic
    only and forgets the leaders of all others: their batches wait forever, and the client repeats the request without a
    pause.
    """
    wait = client._wait_on_metadata

    async def waiting(topic: str) -> Any:
        topics = client._topics
        if topic not in topics:
            if len(topics) >= _MANY_TOPICS:
                topics = topics.intersection(client.cluster.topics())
            client._topics = topics | {topic}
        return await wait(topic)

    client._wait_on_metadata = waiting


def make_no_topics(client: Any) -> None:
    """Make an AIOKafkaClient's metadata requests forbid brokers to create the requested topics.

    Brokers may create topics by default (auto.create.topics.enable). A client repeats its request every minute, and
    after each error, for all names that it has ever used. So a topic that its owner deleted would come back, with one
    replica.
    """
    client._metadata_update = _with_names(client._metadata_update, MetadataRequest=_ask_only)
    send = client.send

    async def sending(node: int, request: Any, **options: Any) -> Any:
        if isinstance(request, MetadataRequest):
            request._allow_auto_topic_creation = False
        return await send(node, request, **options)

    client.send = sending


def _ask_only(topics: list[str] | None) -> MetadataRequest:
    return MetadataRequest(topics, allow_auto_topic_creation=False)


def forget_topic(client: Any, topic: str) -> None:
    """Make an AIOKafkaClient stop requesting a topic's metadata until the topic is used again."""
    client._topics.discard(topic)


def mend_missing_offsets(client: Any) -> None:
    """Make an AIOKafkaClient raise an error in an OffsetFetch response that applies to the whole group.

    Since version 2 of that request (KIP-88), a coordinator that is loading, or no longer the coordinator, reports its
    error once, without partitions. aiokafka checks only the partitions, so it concludes that the group has no offsets.
    """
    send = client.send

    async def sending(node: int, request: Any, **options: Any) -> Any:
        answer = await send(node, request, **options)
        if isinstance(request, OffsetFetchRequest) and (code := getattr(answer, "error_code", 0)):
            raise for_code(code)()
        return answer

    client.send = sending


def mend_header_names(fetcher: Any) -> None:
    """Make the Fetcher of an AIOKafkaConsumer accept header names that are not UTF-8, with U+FFFD for invalid bytes.

    Other clients may write such names. At the first one, aiokafka raises UnicodeDecodeError, after it has marked the
    records before it as read. So those records are lost, and the next try stops at the same record.
    """
    fetcher._proc_fetch_request = _with_names(
        fetcher._proc_fetch_request, MemoryRecords=_Batches, PartitionRecords=_Records
    )


def _with_names(method: MethodType, **names: Any) -> MethodType:
    """A copy of the method that uses other values for these global names."""
    plain = method.__func__
    assert isinstance(plain, FunctionType)
    names = {**plain.__globals__, **names}
    function = FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__)
    return MethodType(function, method.__self__)


class LenientRecord(NamedTuple):
    """A record in a batch that aiokafka's parser cannot read to the end."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    checksum: None = None


def leniently(raw: memoryview | bytes) -> Iterator[LenientRecord]:
    """The records of a batch in format version 2, with U+FFFD for invalid UTF-8 in header names.

    aiokafka/record/default_records.py describes the format.
    """
    batch: Any = _DefaultRecordBatchPy(raw)
    batch._maybe_uncompress()
    body: bytearray = batch._buffer
    at: int = batch._pos

    def field() -> bytes | None:
        nonlocal at
        size, start = decode_varint(body, at)
        at = start + max(size, 0)
        return None if size < 0 else bytes(body[start:at])

    for _ in range(batch._num_records):
        size, start = decode_varint(body, at)
        since, at = decode_varint(body, start + 1)  # skips the attributes, one byte
        step, at = decode_varint(body, at)
        key, value = field(), field()
        count, at = decode_varint(body, at)
        headers = [((field() or b"").decode(errors="replace"), field()) for _ in range(count)]
        at = start + size
        stamp = batch.max_timestamp if batch.timestamp_type else batch.first_timestamp + since
        yield LenientRecord(batch.base_offset + step, stamp, batch.timestamp_type, key, value, headers)


class _Batches:
    """Replaces aiokafka's MemoryRecords, with the same methods. `raw`: the broker's bytes."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        batches = MemoryRecords(raw)
        self.has_next, self.next_batch, self.size_in_bytes = (
            batches.has_next, batches.next_batch, batches.size_in_bytes,
        )  # fmt: skip

    def with_offset(self, offset: int) -> tuple[memoryview, int]:
        """The first batch that ends after an offset, and the next offset after that batch."""
        at = 0
        while True:
            base, length, _, _, _, _, last, *_ = _DefaultRecordBatchPy.HEADER_STRUCT.unpack_from(self.raw, at)
            if base + last >= offset:
                return memoryview(self.raw)[at : at + BATCH_HEAD_BYTES + length], base + last + 1
            at += BATCH_HEAD_BYTES + length


class _Records(PartitionRecords):  # type: ignore[misc]
    """The records of a partition as aiokafka reads them, read leniently from the first header that it cannot decode."""

    _records_iterator: Iterator[Any]
    next_fetch_offset: int

    def __next__(self) -> Any:
        try:
            return next(self._records_iterator)
        except UnicodeDecodeError:
            self._records_iterator = self._from_here()
            return next(self._records_iterator)

    def _from_here(self) -> Iterator[Any]:
        raw, following = self._records.with_offset(self.next_fetch_offset)
        for record in leniently(raw):
            if record.offset >= self.next_fetch_offset:
                self.next_fetch_offset = record.offset + 1
                yield self._consumer_record(self._tp, record)
        self.next_fetch_offset = following
        yield from self._unpack_records()


# --- producers --------------------------------------------------------------------------------------------------------


def transaction_manager(producer: Any) -> Any:
    """The TransactionManager of an AIOKafkaProducer; None without a transactional id."""
    return producer._txn_manager


def transaction_waiter(producer: Any) -> asyncio.Future[Any] | None:
    """The future that `commit_transaction` of a producer waits for, if any."""
    manager = producer._txn_manager
    return None if manager is None else manager._transaction_waiter


def transaction_coordinator(producer: Any) -> object | None:
    """The connection of a producer to its coordinator; None if there is none now."""
    node = producer._sender._coordinators.get(CoordinationType.TRANSACTION)
    link = producer.client._conns.get((node, ConnectionGroup.COORDINATION))
    return link if link is not None and link.connected() else None


def connection_to(client: Any, node: int) -> object | None:
    """The connection of an AIOKafkaClient to a broker; None if there is none now."""
    link = client._conns.get((node, ConnectionGroup.DEFAULT))
    return link if link is not None and link.connected() else None


def use_brokers_of(known: Any, client: Any) -> None:
    """Replaces `bootstrap` of an AIOKafkaClient: it uses the brokers that another client knows, without connecting to
    any."""
    client.cluster._brokers = dict(known.cluster._brokers)
    if client._sync_task is None:
        client._sync_task = asyncio.create_task(client._md_synchronizer(), name="kafka metadata")


async def know_topic(client: Any, topic: str) -> None:
    """Make an AIOKafkaClient (after `mend_leaders`) request and keep the leaders of a topic. Raises KafkaError if there
    are none."""
    await client._wait_on_metadata(topic)


def built_batch(builder: Any, producer_id: int, epoch: int, sequence: int) -> bytes:
    """Build a producer's batch from a BatchBuilder and return its bytes. Call it only once per builder."""
    builder._set_producer_state(producer_id, epoch, sequence)
    batch: bytes = builder._build()
    return batch


def on_coordinator_lost(producer: Any, on_lost: Callable[[], None]) -> None:
    """Make a producer call `on_lost` when it loses its coordinator, after it has forgotten the coordinator's address.

    It loses the coordinator if, for example, the connection closes before an EndTxn is answered. aiokafka would send
    the EndTxn again with the same epoch. But the first request may still be in flight, and would then end the next
    transaction as soon as that begins (KIP-890).
    """
    coordinators, send = producer._sender._coordinators, producer.client.send

    async def sending(node: int, request: Any, **options: Any) -> Any:
        try:
            return await send(node, request, **options)
        except KafkaConnectionError as error:
            if isinstance(request, EndTxnRequest):
                raise RequestTimedOutError from error
            raise

    producer.client.send = sending

    def dead(kind: CoordinationType) -> None:
        coordinators.pop(kind, None)  # as aiokafka does
        on_lost()

    producer._sender._coordinator_dead = dead


def is_sending(producer: Any) -> bool:
    """Whether a producer has unsent or unacknowledged batches."""
    accumulator = producer._message_accumulator
    return bool(accumulator._pending_batches) or any(accumulator._batches.values())


def fail_unsent(producer: Any) -> list[asyncio.Future[Any]]:
    """Refuse further sends by a producer, fail all its batches with ProducerClosed, and return their futures."""
    producer._closed = True
    accumulator = producer._message_accumulator
    unsent = [*accumulator._pending_batches, *(batch for queue in accumulator._batches.values() for batch in queue)]
    accumulator._pending_batches.update(unsent)  # each failed batch is looked up here, even if it was sent
    accumulator.fail_all(ProducerClosed())
    accumulator.reenqueue = lambda batch: None  # otherwise a request that ends later would put its batches back
    return [future for batch in unsent for future in (batch.future, batch._drain_waiter)]


def give_up(producer: Any, topic: str, partition: int) -> None:
    """Make a producer send nothing more to one partition. Batches for other partitions are still sent."""
    accumulator, where = producer._message_accumulator, TopicPartition(topic, partition)
    accumulator._batches.pop(where, None)
    reenqueue = accumulator.reenqueue
    accumulator.reenqueue = lambda batch: None if batch.tp == where else reenqueue(batch)


def sender_task(producer: Any) -> asyncio.Task[Any] | None:
    """A producer's sender task. From now on it fails no batches when it ends, because that does not work without
    transactions."""
    task: asyncio.Task[Any] | None = producer._sender.sender_task
    if task is not None:
        task.remove_done_callback(producer._sender._fail_all)
    return task


# --- clients and consumers --------------------------------------------------------------------------------------------


def on_connection_closed(client: Any, on_closed: Callable[[Any], None]) -> None:
    """Make an AIOKafkaClient call `on_closed` with each connection that it loses."""
    before = client._on_connection_closed

    def both(connection: Any, reason: Any) -> None:
        before(connection, reason)
        on_closed(connection)

    client._on_connection_closed = both


def client_of(owner: Any) -> Any:
    """The AIOKafkaClient of a consumer or of an admin client."""
    return owner._client


def fetcher_of(consumer: Any) -> Any:
    """The Fetcher of an AIOKafkaConsumer."""
    return consumer._fetcher


def start_without_topics(consumer: Any) -> None:
    """Make a consumer request the existing topics when it starts, without waiting until all subscribed topics exist."""
    consumer._wait_topics = consumer._client.force_metadata_update


def subscription_of(consumer: Any) -> Any:
    """The Subscription of an AIOKafkaConsumer; None if it has none."""
    return consumer._subscription.subscription


async def committed_offsets(consumer: Any, partitions: list[TopicPartition]) -> Mapping[TopicPartition, Any]:
    """The committed offsets of a consumer's group. Raises KafkaError."""
    offsets: Mapping[TopicPartition, Any] = await consumer._coordinator.fetch_committed_offsets(partitions)
    return offsets


async def commit_offsets(
    consumer: Any, offsets: Mapping[TopicPartition, OffsetAndMetadata], check: Callable[[], None]
) -> None:
    """Commit with one request, as this member of the group. `check` may raise right before it. Raises KafkaError.

    aiokafka's `commit` retries forever while brokers are out of reach. For a deleted topic it retries until a topic
    with that name exists again, and then commits the old offsets for the new topic.
    """
    coordinator = consumer._coordinator
    await coordinator.ensure_coordinator_known()
    async with coordinator._commit_lock:
        check()
        await coordinator._do_commit_offsets(None, offsets)


async def offsets_at(
    consumer: Any, times: Mapping[TopicPartition, int], timeout_ms: int, *, committed: bool
) -> Mapping[TopicPartition, tuple[int, int | None]]:
    """For each partition, the offset and time of the first record at or after a given time. `committed`: as
    read-committed consumers see it.

    The consumer's public methods send the same request, but they drop the time, and represent "none" in different ways.
    """
    fetcher = consumer._fetcher
    fetcher._isolation_level = 1 if committed else 0
    offsets: Mapping[TopicPartition, tuple[int, int | None]] = await fetcher._retrieve_offsets(dict(times), timeout_ms)
    return offsets


def abandon(consumer: Any) -> None:
    """End the tasks that aiokafka leaves behind if a consumer's `stop` does not finish."""
    coordinator, fetcher, client = consumer._coordinator, consumer._fetcher, consumer._client
    tasks = [
        getattr(coordinator, name, None)
        for name in ("_coordination_task", "_heartbeat_task", "_commit_refresh_task", "_reset_committed_task")
    ]
    tasks += [getattr(fetcher, "_fetch_task", None), *getattr(fetcher, "_pending_tasks", ()), client._sync_task]
    for task in tasks:
        if task is not None:
            task.cancel()
    for connection in list(client._conns.values()):
        connection.close()
