"""The private parts of aiokafka that tests read and set. They are used only here."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock

from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.structs import TopicPartition


def topics_of(request: Any) -> Any:
    """The topics that a request is about, as it was given them."""
    return request._topics


def resources_of(request: Any) -> Any:
    """The resources of a request about settings."""
    return request._resources


def makes_topics(request: MetadataRequest) -> bool:
    makes: bool = request._allow_auto_topic_creation
    return makes


def followed_topics(client: Any) -> set[str]:
    """Those that an AIOKafkaClient asks about again and again."""
    topics: set[str] = client._topics
    return topics


def connections_of(client: Any) -> dict[Any, Any]:
    """The connections of an AIOKafkaClient, by broker and kind."""
    connections: dict[Any, Any] = client._conns
    return connections


def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AIOKafkaConnection:
    """A connection to a broker that knows requests for metadata."""
    connection = AIOKafkaConnection("127.0.0.1", 1)
    connection._reader, connection._writer = reader, writer
    connection._versions = {MetadataRequest.API_KEY: (0, 5)}
    connection._read_task = connection._create_reader_task()
    return connection


def connect(client: Any, connection: object) -> None:
    """Make an AIOKafkaClient use this connection for all requests."""
    client._get_conn = AsyncMock(return_value=connection)


async def update_metadata(client: Any, topics: set[str]) -> None:
    """Make an AIOKafkaClient ask for these topics."""
    await client._metadata_update(client.cluster, topics)


def follow_metadata(client: Any) -> asyncio.Task[None]:
    """Start the task that asks for metadata when an AIOKafkaClient wants it."""
    task: asyncio.Task[None] = asyncio.create_task(client._md_synchronizer())
    client._sync_task = task
    return task


def never_started(owner: Any) -> None:
    """A client that was never started complains at its end, unless it is closed."""
    owner._closed = True


def batch_being_sent(producer: Any, partition: TopicPartition) -> Any:
    """Take a batch from a producer, as its sender does."""
    return producer._message_accumulator._pop_batch(partition)


def accumulator_of(producer: Any) -> Any:
    return producer._message_accumulator


def batches_in(accumulator: Any) -> list[Any]:
    """Batches that wait or are under way."""
    return [*accumulator._batches, *accumulator._pending_batches]
