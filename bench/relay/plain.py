"""Plain clients for the systems. They have the relay's library, payloads and number of messages in flight, but nothing
else."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from duemq.bench.base.workers import WorkerLink
from duemq.bench.clients.consumers import ConsumeCost
from duemq.bench.clients.payloads import Payloads

_PIPELINE = 500  # as many messages as in one of the relay's pipelines

Payload = bytes


async def http(link: WorkerLink, url: str, name: str, payloads: tuple[int, int, int], at_once: int) -> ConsumeCost:
    """Send with pyreqwest. `payloads`: their number, their size in bytes, and the seed."""
    from datetime import timedelta

    from pyreqwest.client import ClientBuilder

    async with (
        ClientBuilder().http1_only().no_proxy().timeout(timedelta(seconds=10))
        .pool_max_idle_per_host(at_once).build()
    ) as client:  # fmt: skip

        async def send(payload: Payload) -> None:
            async with client.post(url).body_bytes(payload).build_streamed() as response:
                assert response.status == 204

        return await _in_lanes(link, send, payloads, at_once)


async def rabbitmq(link: WorkerLink, url: str, name: str, payloads: tuple[int, int, int], at_once: int) -> ConsumeCost:
    """Send with pika: publisher confirms, persistent messages."""
    from pika import BasicProperties, URLParameters
    from pika.adapters.asyncio_connection import AsyncioConnection

    loop = asyncio.get_running_loop()
    ready, room, waiting = loop.create_future(), asyncio.Event(), set[int]()
    lowest = 1

    def confirmed(frame: Any) -> None:
        nonlocal lowest
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            waiting.difference_update(range(lowest, tag + 1))
            lowest = tag + 1
        else:
            waiting.discard(tag)
        room.set()

    def opened(channel: Any) -> None:
        channel.confirm_delivery(confirmed, lambda _: ready.set_result(channel))

    connection = AsyncioConnection(
        URLParameters(url),
        on_open_callback=lambda opening: opening.channel(on_open_callback=opened),
        on_open_error_callback=lambda _, error: ready.set_exception(error),
        custom_ioloop=loop,
    )
    channel = await ready
    properties, texts = BasicProperties(delivery_mode=2), list(_bodies(payloads))
    began = time.perf_counter(), time.process_time()
    for tag, body in enumerate(texts, 1):
        while len(waiting) >= at_once:
            room.clear()
            await room.wait()
        waiting.add(tag)
        channel.basic_publish("", name, body, properties, mandatory=True)
    while waiting:
        room.clear()
        await room.wait()
    consumed = _since(began, len(texts))
    connection.close()
    return consumed


async def nats(link: WorkerLink, url: str, name: str, payloads: tuple[int, int, int], at_once: int) -> ConsumeCost:
    """Send with nats-py to JetStream."""
    import nats as library

    client = await library.connect(url)
    stream = client.jetstream(timeout=30)
    try:
        return await _in_lanes(link, lambda payload: stream.publish(name, payload), payloads, at_once)
    finally:
        await client.close()


async def redis(link: WorkerLink, url: str, name: str, payloads: tuple[int, int, int], at_once: int) -> ConsumeCost:
    """Send with redis-py, in pipelines of XADD, one pipeline after another."""
    from redis.asyncio import Redis

    async with Redis.from_url(url, protocol=2) as client:
        bodies = list(_bodies(payloads))
        began = time.perf_counter(), time.process_time()
        for first in range(0, len(bodies), _PIPELINE):
            pipeline = client.pipeline(transaction=False)
            for body in bodies[first : first + _PIPELINE]:
                pipeline.execute_command("XADD", name, "*", "payload", body)
            await pipeline.execute()
        return _since(began, len(bodies))


async def rocketmq(link: WorkerLink, url: str, name: str, payloads: tuple[int, int, int], at_once: int) -> ConsumeCost:
    """Send with Apache's client, by `send_async`."""
    from duemq.bench.relay.rocketmq import TOPIC, configuration
    from duemq.relay.rocketmq.client import Producer

    # isort: split
    # Imported after the module above, which prevents the client from opening a log file.
    from rocketmq import Message

    producer = Producer(configuration(url), (TOPIC,))
    await asyncio.to_thread(producer.startup)

    async def send(payload: Payload) -> None:
        message = Message()
        message.topic, message.tag, message.body = TOPIC, name, payload
        await asyncio.wrap_future(producer.send_async(message))

    try:
        return await _in_lanes(link, send, payloads, at_once)
    finally:
        await asyncio.to_thread(producer.shutdown)


CLIENTS: dict[str, Callable[..., Awaitable[ConsumeCost]]] = {
    "http": http, "rabbitmq": rabbitmq, "nats": nats, "redis": redis, "rocketmq": rocketmq,
}  # fmt: skip


async def _in_lanes(
    link: WorkerLink, send: Callable[[Payload], Awaitable[object]], payloads: tuple[int, int, int], at_once: int
) -> ConsumeCost:
    bodies = list(_bodies(payloads))
    left = iter(bodies)

    async def lane() -> None:
        for body in left:
            await send(body)

    began = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(lane(), name="lane")
    return _since(began, len(bodies))


def _bodies(payloads: tuple[int, int, int]) -> Iterator[Payload]:
    count, size, seed = payloads
    return (text.encode() for text in Payloads(size, seed).make(0, count))


def _since(began: tuple[float, float], count: int) -> ConsumeCost:
    return ConsumeCost(count, time.perf_counter() - began[0], time.process_time() - began[1])
