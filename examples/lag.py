"""Creates a small backlog, and shows how far its consumer group is behind.

    pip install 'duemq[consumer]'
    python lag.py --bootstrap localhost:9092 --topic orders --group billing

Needs a Kafka; the topic is created if it is missing. See docs/operate/lag.md.
"""

import argparse
import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from duemq.client.lag import GroupLag, LagReader


async def fill(bootstrap: str, topic: str) -> None:
    """Send ten messages; every second one has the tag `paid`."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 1, 1)])  # if the topic exists, the answer says so; nothing is raised
    await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(10):
            headers = [("tags", b"paid")] if number % 2 else []
            await producer.send_and_wait(topic, b"%d" % number, headers=headers)


async def consume(bootstrap: str, topic: str, group: str, count: int) -> None:
    """Consume some messages. This consumer is plain aiokafka, so it does not report its messages in hand."""
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        for _ in range(count):
            await consumer.getone()
        await consumer.commit()


def show(group: GroupLag) -> None:
    total = group.total
    print(f"{group.group} is {'offline' if group.offline else group.state}")
    print(f"lag: {total.lag}, the oldest message is {(total.lag_ms or 0) / 1000:.1f} s old")
    print(f"in hand: {'unknown' if total.inflight is None else total.inflight}")
    if total.matching is not None:
        print(f"tagged paid: {total.matching.messages}{'' if total.matching.exact else '+'}")


async def main(bootstrap: str, topic: str, group: str) -> None:
    await fill(bootstrap, topic)
    await consume(bootstrap, topic, group, 4)
    async with LagReader(bootstrap) as reader:
        for found in await reader.read([group], topics=[topic], tags="paid"):
            show(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--group", default="billing")
    options = parser.parse_args()
    asyncio.run(main(options.bootstrap, options.topic, options.group))
