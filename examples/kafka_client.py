"""Schedules, moves and cancels messages with a plain Kafka client, without any duemq library.

    pip install aiokafka
    python kafka_client.py --bootstrap localhost:9092 --topic orders

Needs a running duemq on that Kafka, and the topic, unless duemq creates topics itself. See docs/guides/kafka.md.
"""

import argparse
import asyncio
import time
import zlib

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

BUFFER = "duemq.buffer"


async def partition_of_name(producer: AIOKafkaProducer, name: str) -> int:
    """The partition of the one shard to which this name belongs."""
    partitions = await producer.partitions_for(BUFFER)
    return zlib.crc32(b"n:" + name.encode()) % len(partitions)


async def schedule(
    producer: AIOKafkaProducer, topic: str, value: bytes, *, delay_ms: int, name: str | None = None
) -> None:
    headers = [("duemq-topic", topic.encode()), ("duemq-delay", b"%d" % delay_ms), ("source", b"example")]
    partition = None
    if name is not None:
        headers.append(("duemq-name", name.encode()))
        partition = await partition_of_name(producer, name)
    await producer.send_and_wait(BUFFER, value, headers=headers, partition=partition)


async def move(producer: AIOKafkaProducer, name: str, due_ms: int) -> None:
    headers = [("duemq-move", name.encode()), ("duemq-deliver-at", b"%d" % due_ms)]
    await producer.send_and_wait(BUFFER, b"", headers=headers, partition=await partition_of_name(producer, name))


async def cancel(producer: AIOKafkaProducer, name: str) -> None:
    headers = [("duemq-cancel", name.encode())]
    await producer.send_and_wait(BUFFER, b"", headers=headers, partition=await partition_of_name(producer, name))


async def receive(bootstrap: str, topic: str, count: int) -> None:
    """Print this many deliveries. Only a consumer that reads committed records gets each message exactly once."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    async with consumer:
        for _ in range(count):
            record = await consumer.getone()
            headers = dict(record.headers)
            late = record.timestamp - int(headers["duemq-due"])
            print(f"{record.value.decode():12} id {headers['duemq-id'].decode()}, {late} ms after it was due")


async def run(bootstrap: str, topic: str, wait: bool) -> None:
    run_name = f"{time.time_ns():x}"
    # Idempotent and acks=all: a record is stored once, in the order of sending, and survives the loss of one broker.
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, acks="all") as producer:
        await schedule(producer, topic, b"in a second", delay_ms=1_000)
        await schedule(producer, topic, b"moved", delay_ms=3_600_000, name=f"moved-{run_name}")
        await schedule(producer, topic, b"cancelled", delay_ms=2_000, name=f"cancelled-{run_name}")
        await move(producer, f"moved-{run_name}", time.time_ns() // 1_000_000 + 2_000)
        await cancel(producer, f"cancelled-{run_name}")
    print("scheduled three messages, moved one, cancelled one")
    if wait:
        await asyncio.wait_for(receive(bootstrap, topic, 2), 30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for the deliveries")
    options = parser.parse_args()
    asyncio.run(run(options.bootstrap, options.topic, wait=not options.no_wait))


if __name__ == "__main__":
    main()
