"""A producer of which the brokers are cut off."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import ProducerClosed
from aiokafka.structs import TopicPartition

from duemq.bus.kafka.produce import stop as module
from duemq.bus.kafka.produce.stop import stop
from tests.support.servers.aiokafka_parts import accumulator_of, batch_being_sent, batches_in, connections_of

pytestmark = pytest.mark.anyio


class Unending:
    """A connection that does not close: its broker does not answer the end of TLS."""

    def __init__(self) -> None:
        self.closed = asyncio.get_running_loop().create_future()

    def close(self, **_: object) -> asyncio.Future[None]:
        return self.closed


@pytest.mark.parametrize("failed", [False, True])
async def test_whoever_stops_a_producer_is_not_cancelled_by_it(failed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STOP_S", 0.02)
    monkeypatch.setattr(module, "_CUT_S", 0.02)
    producer: Any = AIOKafkaProducer(bootstrap_servers="127.0.0.1:9", transactional_id="t")
    connections_of(producer.client)[1, 0] = Unending()
    stopping = asyncio.create_task(stop(producer, failed=failed))
    await asyncio.wait([stopping])
    assert not stopping.cancelled()
    assert stopping.exception() is None


async def test_a_request_that_ends_after_its_producer_was_cut_puts_nothing_back() -> None:
    """It raised KeyError in a task of aiokafka, which the log showed with its traceback."""
    producer: Any = AIOKafkaProducer(bootstrap_servers="127.0.0.1:9")
    accumulator = accumulator_of(producer)
    builder = producer.create_batch()
    builder.append(key=None, value=b"x", timestamp=None)
    accepted = await accumulator.add_batch(builder, TopicPartition("t", 0), 1.0)
    batch = batch_being_sent(producer, TopicPartition("t", 0))  # its request is under way
    await stop(producer, failed=True)
    with pytest.raises(ProducerClosed):
        await accepted
    accumulator.reenqueue(batch)
    assert not batches_in(accumulator)
