"""The work of each key once, with real consumers on a real Kafka."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from duemq.client.consumer import Consumer, ConsumerOptions, Delays, Message
from duemq.client.idempotency import MemoryStore, RocksStore, once
from duemq.model.topics.group_topics import dead_letter_topic
from tests.support.consumer.consumer_site import new_group, new_topic, read_all, send, until
from tests.support.patience import SERVERS_S

pytestmark = pytest.mark.anyio


async def test_a_group_that_begins_anew_does_nothing_twice(kafka_with_duemq: str, tmp_path: Path) -> None:
    """The same messages twice, as after offsets that were lost."""
    topic, effects, store = await new_topic(kafka_with_duemq), Counter[str](), await RocksStore.open(tmp_path)
    await send(kafka_with_duemq, topic, [b"%d" % (n % 40) for n in range(100)])

    @once(store, key=lambda message: message.payload)
    async def pay(message: Message) -> str:
        await asyncio.sleep(0)
        effects[message.text] += 1
        return message.text

    for _ in range(2):
        consumer, results = Consumer(new_group(), kafka_with_duemq, ConsumerOptions(start="first")), list[str]()

        async def handle(message: Message, results: list[str] = results) -> None:
            results.append(await pay(message))

        consumer.add(topic, handle)
        async with consumer:
            await until(lambda results=results: len(results) == 100, "all messages")  # type: ignore[misc]
        assert sorted(results) == sorted(str(n % 40) for n in range(100))
    assert effects == {str(n): 1 for n in range(40)}
    await store.close()


async def test_what_ran_into_the_consumers_time_out_comes_back_and_is_in_doubt(kafka_with_duemq: str) -> None:
    topic, group, begun = await new_topic(kafka_with_duemq), new_group(), Counter[str]()
    await send(kafka_with_duemq, topic, [b"slow"])
    options = ConsumerOptions(start="first", timeout_s=0.3, retry=Delays(["10ms"] * 5))
    consumer = Consumer(group, kafka_with_duemq, options)

    @consumer.on(topic)
    @once(MemoryStore(), at_most_once=True, lease=timedelta(seconds=1.5))
    async def pay(message: Message) -> None:
        begun[message.text] += 1
        await asyncio.Event().wait()

    async with consumer:
        (letter,) = await read_all(kafka_with_duemq, dead_letter_topic(group), 1)
    assert dict(letter.headers)["x-duemq-reason"] == b"in_doubt"
    assert begun == {"slow": 1}


@pytest.mark.parametrize("store", ["rocks", "redis"])
async def test_the_example_runs(kafka_with_duemq: str, redis_url: str, store: str) -> None:
    example = Path(__file__).parents[3] / "examples" / "once.py"
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-P", example, "--bootstrap", kafka_with_duemq, *(["--redis", redis_url] * (store == "redis")),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(running.communicate(), SERVERS_S)
    assert running.returncode == 0, err.decode()
    assert Counter(out.decode().splitlines()) == {
        "order 1 is paid": 1,
        "order 2 is paid": 1,
        "order 3 is paid": 1,
        """receipt for {"order": 1}: {'paid': 1}""": 2,
        """receipt for {"order": 2}: {'paid': 2}""": 2,
        """receipt for {"order": 3}: {'paid': 3}""": 1,
        '{"order": 4} is a dead letter: in_doubt': 1,
    }
