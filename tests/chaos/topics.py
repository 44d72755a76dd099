"""Topics on the real broker, as a consumer that wants exactly once sees them: stamped by the broker, read committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.errors import KafkaConnectionError, NodeNotReadyError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

from duemq.bus.kafka.aiokafka_internals import client_of
from duemq.proxy.response.render import headers_json
from tests.chaos.pace import SLOW

_TAGS = ("tags", TaggedFields)


class _AlterReplicasResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY, API_VERSION = 45, 0
    SCHEMA = Schema(("throttle_time_ms", Int32), ("error_code", Int16))  # the rest is not read


class _AlterReplicasRequest_v0(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY, API_VERSION = 45, 0
    RESPONSE_TYPE = _AlterReplicasResponse
    SCHEMA = Schema(
        ("timeout_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                ("partitions", CompactArray(("partition", Int32), ("replicas", CompactArray(Int32)), _TAGS)),
                _TAGS,
            ),
        ),
        _TAGS,
    )


class _AlterReplicasRequest(Request[_AlterReplicasRequest_v0]):  # type: ignore[misc]
    """KIP-455, which aiokafka does not have."""

    API_KEY: ClassVar[int] = 45

    def __init__(self, topics: list[Any]) -> None:
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(30_000, self._topics, {})


_BROKER_STAMPS = {"message.timestamp.type": "LogAppendTime"}
_READ_S = 300.0 * SLOW
_DELETED_S = 300.0 * SLOW
_COMMITS_S = 8.0 * SLOW  # less than the brokers take to end a transaction that hangs


@asynccontextmanager
async def administration(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=int(10_000 * SLOW))
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def make_topic(
    bootstrap: str,
    name: str,
    partitions: int = -1,
    replicas: int | Mapping[int, list[int]] = 1,
    settings: Mapping[str, str] | None = None,
) -> None:
    """`replicas`: how many, or the brokers of each partition with its first leader first."""
    placed = None if isinstance(replicas, int) else dict(replicas)
    topic = NewTopic(
        name, partitions if placed is None else -1, replicas if placed is None else -1, placed,
        topic_configs={**_BROKER_STAMPS, **(settings or {})},
    )  # fmt: skip
    async with administration(bootstrap) as admin:
        answer = await admin.create_topics([topic])
        for made, code, *why in answer.topic_errors:
            assert code == 0, (made, code, why)


async def leaders(bootstrap: str, name: str) -> dict[int, int]:
    """The broker that leads each partition, as the broker that is asked sees it; -1 for none."""
    (topic,) = await describe(bootstrap, [name])
    return {part["partition"]: part["leader"] for part in topic["partitions"]}


async def describe(bootstrap: str, names: Iterable[str]) -> list[dict[str, Any]]:
    """As any broker that is there says it: aiokafka asks one by chance, also one that was killed."""
    wanted, deadline = list(names), time.monotonic() + _READ_S
    while True:
        try:
            async with administration(bootstrap) as admin:
                described: list[dict[str, Any]] = await admin.describe_topics(wanted)
                return described
        except (KafkaConnectionError, NodeNotReadyError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def delete_topic(bootstrap: str, name: str) -> None:
    """Comes back when the broker shows it no longer."""
    async with administration(bootstrap) as admin, asyncio.timeout(_DELETED_S):
        await admin.delete_topics([name])
        while True:
            if name not in await admin.list_topics():
                return
            await asyncio.sleep(0.05)


async def move_topic(bootstrap: str, name: str, broker: int) -> None:
    """Leave all partitions of a topic to one broker. Comes back when it leads them."""
    async with administration(bootstrap) as admin, asyncio.timeout(_DELETED_S):
        partitions = range(len(await leaders(bootstrap, name)))
        request = _AlterReplicasRequest([(name, [(number, [broker], {}) for number in partitions], {})])
        client = client_of(admin)
        await client.send(client.cluster.controller.nodeId, request)
        while set((await leaders(bootstrap, name)).values()) != {broker}:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def end_offsets(bootstrap: str, names: Iterable[str]) -> dict[TopicPartition, int]:
    async with consumer(bootstrap, names) as reading:
        ends: dict[TopicPartition, int] = await reading.end_offsets(reading.assignment())
        return ends


async def start_offsets(bootstrap: str, names: Iterable[str]) -> dict[TopicPartition, int]:
    async with consumer(bootstrap, names) as reading:
        starts: dict[TopicPartition, int] = await reading.beginning_offsets(reading.assignment())
        return starts


async def purge_before(bootstrap: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Delete the records below these offsets: a consumer that has not read them never will."""
    async with administration(bootstrap) as admin:
        await admin.delete_records({at: RecordsToDelete(before_offset=end) for at, end in offsets.items()})


@asynccontextmanager
async def consumer(bootstrap: str, topics: Iterable[str], **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
    """Reads committed records of all partitions, from the first one kept on."""
    settings = {
        "isolation_level": "read_committed", "auto_offset_reset": "earliest", "enable_auto_commit": False,
        "request_timeout_ms": int(8_000 * SLOW),  # a broker that is cut off never answers
    }  # fmt: skip
    described = await describe(bootstrap, topics)
    reading = AIOKafkaConsumer(bootstrap_servers=bootstrap, **{**settings, **options})
    await reading.start()
    await asyncio.sleep(0)  # `stop` of aiokafka 0.14 raises CancelledError where its task has not had a turn yet
    try:
        reading.assign(
            [TopicPartition(topic["topic"], part["partition"]) for topic in described for part in topic["partitions"]]
        )
        yield reading
    finally:
        await reading.stop()


async def committed(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """All committed records, as the HTTP API shows them; empty for a missing topic.

    Fails if an abandoned transaction holds readers up: then there are records after the last stable offset.
    """
    records: list[dict[str, Any]] = []
    async with consumer(bootstrap, [topic]) as reading, asyncio.timeout(_READ_S):
        async with consumer(bootstrap, [topic], isolation_level="read_uncommitted") as uncommitted:
            written = await uncommitted.end_offsets(uncommitted.assignment())
        deadline = time.monotonic() + _COMMITS_S  # a transaction may be under way
        while True:
            stable = await reading.end_offsets(reading.assignment())
            if all(stable[at] >= end for at, end in written.items()):
                break
            assert time.monotonic() < deadline, f"readers are held up in {topic}: stable {stable}, written {written}"
            await asyncio.sleep(0.1)
        while any([await reading.position(partition) < end for partition, end in stable.items()]):
            for batch in (await reading.getmany(timeout_ms=200)).values():
                records += [as_shown(record) for record in batch]
    return records


def as_shown(record: Any) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "key": None if record.key is None else record.key.decode(),
        "payload": None if record.value is None else record.value.decode(errors="backslashreplace"),
        **headers_json(record.headers),
    }
