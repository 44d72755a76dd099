"""Pays each order once, even if its message comes twice: a consumer that remembers finished work.

    pip install 'duemq[consumer]'          # and 'duemq[redis]' for --redis
    python once.py --bootstrap localhost:9092

Needs a running duemq on that Kafka (`make cluster`, or `duemq serve --kafka localhost:9092`). It creates a topic. It
only remembers finished work until the program ends. For several processes, use Redis: `--redis redis://localhost:6379`.
See docs/guides/idempotency.md.
"""

import argparse
import asyncio
import tempfile
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from duemq.client.consumer import Consumer, ConsumerOptions, Delays, Message
from duemq.client.idempotency import NothingHappened, RedisStore, RocksStore, Store, once

TOPIC, GROUP = f"payments-{time.time_ns():x}", f"bank-{time.time_ns():x}"
PAYMENTS = [b'{"order": 1}', b'{"order": 2}', b'{"order": 1}', b'{"order": 3}', b'{"order": 2}', b'{"order": 4}']


async def prepare(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(TOPIC, 2, 1)])
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for payment in PAYMENTS:
            await producer.send_and_wait(TOPIC, payment)


def order_of(message: Message) -> str:
    return f"order-{message.json['order']}"


async def main(bootstrap: str, store: Store) -> None:
    await prepare(bootstrap)
    consumer = Consumer(GROUP, bootstrap, ConsumerOptions(start="first", retry=Delays(["500ms"])))
    asked: list[int] = []
    receipts: list[int] = []
    finished = asyncio.Event()

    # Two messages for one order are one payment. With at_most_once, a payment with an unknown outcome is never
    # repeated, whatever the error: its message becomes a dead letter, which a human has to check.
    @once(store, key=order_of, scope=GROUP, at_most_once=True)
    async def pay(message: Message) -> dict[str, int]:
        order = message.json["order"]
        asked.append(order)
        if order == 3 and asked.count(3) == 1:
            raise NothingHappened("the bank is closed")  # nothing was paid, so it may be retried
        if order == 4:
            raise TimeoutError("the bank did not answer")  # it may have been paid, so it must not be retried
        print(f"order {order} is paid")
        return {"paid": order}

    @consumer.on(TOPIC)
    async def handle(message: Message) -> None:
        receipt = await pay(message)  # a repeat gets the receipt of the first payment
        print(f"receipt for {message.text}: {receipt}")
        receipts.append(message.json["order"])
        if sorted(receipts) == [1, 1, 2, 2, 3]:
            finished.set()

    letters = AIOKafkaConsumer(
        f"dlq.{GROUP}", bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    async with consumer, letters:
        letter = await letters.getone()
        print(f"{letter.value.decode()} is a dead letter: {dict(letter.headers)['x-duemq-reason'].decode()}")
        await finished.wait()


async def run(bootstrap: str, redis: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:  # use a permanent one: RocksStore.open("/var/lib/billing/once")
        store: Store = await RocksStore.open(folder) if redis is None else await RedisStore.open(redis)
        await main(bootstrap, store)
        await store.close()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--bootstrap", default="localhost:9092")
    arguments.add_argument("--redis")
    chosen = arguments.parse_args()
    asyncio.run(run(chosen.bootstrap, chosen.redis))
