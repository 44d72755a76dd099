"""Records of other programs in duemq's logs: none of them stops a reader."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson
import pytest
from aiokafka import AIOKafkaProducer

from duemq.bus.kafka.bus import KafkaBus
from duemq.client import Record
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.messages.record import pack_record, unpack_record
from duemq.proxy.response.render import records_bytes
from tests.functional.kafka.kafka_bus import batch_with_a_bad_name, frames, own_log, values

pytestmark = pytest.mark.anyio


@pytest.fixture
async def producer(kafka: KafkaServers) -> AsyncIterator[AIOKafkaProducer]:
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
        yield producer


async def test_null_stays_null_both_ways(bus: KafkaBus, producer: AIOKafkaProducer) -> None:
    log = await own_log(bus)
    await producer.send_and_wait(log, None, key=b"k", headers=[("none", None), ("ünï", b"x")])
    await bus.append({(log, 0): frames("next")})
    assert await values(bus, log) == ["", "next"]
    record = unpack_record((await bus.read(log, 0, 0, 1))[0].frame)
    assert record == (b"k", (("none", None), ("ünï", b"x")), None)
    mine = pack_record(None, (("none", None), ("empty", b"")), None)
    await bus.append({(log, 0): [mine, pack_record(None, (), None), pack_record(None, (), b"")]})
    assert await values(bus, log) == ["", "next", "", "", ""]
    found = await bus.read(log, 0, 2, 3)
    assert [unpack_record(one.frame) for one in found] == [
        (None, (("none", None), ("empty", b"")), None), (None, (), None), (None, (), b""),
    ]  # fmt: skip
    assert found[0].frame == mine


async def test_repeated_and_binary_headers_are_shown_over_http_as_they_are(
    bus: KafkaBus, producer: AIOKafkaProducer
) -> None:
    """As Spring's retry topics write them."""
    log = await own_log(bus)
    headers: list[tuple[str, bytes | None]] = [
        ("retry_topic-attempts", b"\0\0\0\1"), ("retry_topic-attempts", bytes.fromhex("01A1FD8DC890")),
        ("kafka_dlt-exception-message", b"first"), ("kafka_dlt-exception-message", b"second"), ("none", None),
    ]  # fmt: skip
    await producer.send_and_wait(log, b"x", headers=headers)
    assert await values(bus, log) == ["x"]
    (shown,) = records_bytes(0, await bus.read(log, 0, 0, 1))
    assert Record.from_json(log, orjson.loads(shown)).header_list == tuple(headers)


async def test_a_header_name_that_is_not_text_is_replaced(bus: KafkaBus, producer: AIOKafkaProducer) -> None:
    """aiokafka's own reader stops at it, and would for ever."""
    log = await own_log(bus)
    await bus.append({(log, 0): frames("before")})
    batch = batch_with_a_bad_name(producer, [("more", None)])
    await (await producer.send_batch(batch, log, partition=0))
    await bus.append({(log, 0): frames("after")})
    assert await values(bus, log) == ["before", "one", "two", "three", "after"]
    found = await bus.read(log, 0, 0, 10)
    assert [record.offset for record in found] == [0, 1, 2, 3, 4]
    assert len({record.timestamp for record in found[1:4]}) == 1
    assert unpack_record(found[2].frame).headers == (("a\ufffd\ufffdz", b"1"), ("more", None))


async def test_compressed_and_transactional_producers_are_read(bus: KafkaBus, kafka: KafkaServers) -> None:
    log = await own_log(bus)
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, compression_type="gzip") as packing:
        await packing.send_and_wait(log, b"x" * 1_000)
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=f"other-{log}") as other:
        await other.begin_transaction()
        await other.send_and_wait(log, b"aborted")
        await other.abort_transaction()
        async with other.transaction():
            await other.send_and_wait(log, b"kept")
    assert await values(bus, log) == ["x" * 1_000, "kept"]
