"""Consumes a topic with retries and dead letters: a handler sometimes fails, and its messages are retried.

    pip install 'duemq[consumer]'
    python consumer.py --bootstrap localhost:9092

Needs a running duemq on that Kafka (`make cluster`, or `duemq serve --kafka localhost:9092`). It creates a topic, sends
six orders to it and consumes them. See docs/guides/consumers.md.
"""

import argparse
import asyncio
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from duemq.client.consumer import Consumer, ConsumerOptions, Delays, Message, Reject, RetryLater

TOPIC, GROUP = f"orders-{time.time_ns():x}", f"billing-{time.time_ns():x}"


async def prepare(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(TOPIC, 2, 1)])
    await admin.close()
    orders = [b"fine", b"busy", b"flaky", b"broken", b"refund", b"hopeless"]
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for order in orders:
            tags = [("tags", b"refunded" if order == b"refund" else b"paid")]
            await producer.send_and_wait(TOPIC, order, key=order, headers=tags)


async def main(bootstrap: str) -> None:
    await prepare(bootstrap)
    done = asyncio.Event()
    # Two retries, after 1 s and after 2 s. The default is sixteen: 10 s, 30 s, 1 m ... 2 h.
    consumer = Consumer(GROUP, bootstrap, ConsumerOptions(start="first", retry=Delays(["1s", "2s"])))

    @consumer.on(TOPIC, tags="paid")
    async def book(message: Message) -> None:
        print(f"{message.text:9} attempt {message.attempt}  {message.id}")
        if message.text == "busy" and message.attempt == 1:
            raise RetryLater("the bank is closed", delay="500ms")
        if message.text == "flaky" and message.attempt == 1:
            raise ConnectionError("no answer")
        if message.text == "broken":
            raise ValueError("always")
        if message.text == "hopeless":
            raise Reject("no such customer")

    @consumer.on(TOPIC, tags="refunded")
    async def refund(message: Message) -> None:
        print(f"{message.text:9} goes to another handler")

    working = asyncio.create_task(consumer.run(done))
    letters = AIOKafkaConsumer(
        f"dlq.{GROUP}", bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    async with letters:
        for _ in range(2):
            letter = await letters.getone()
            headers = dict(letter.headers)
            reason, error = (headers[name].decode() for name in ("x-duemq-reason", "x-duemq-error"))
            print(f"{letter.value.decode():9} is a dead letter: {reason}, {error!r}")
    done.set()
    await working


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--bootstrap", default="localhost:9092")
    asyncio.run(main(arguments.parse_args().bootstrap))
