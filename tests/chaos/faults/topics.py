"""Bad targets next to a good one: their effect on the good one, and how they are reported."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import aiohttp
from aiokafka import AIOKafkaProducer

from tests.chaos.pace import SLOW
from tests.chaos.pulse import Lateness, pulse
from tests.chaos.topics import committed, delete_topic, make_topic
from tests.chaos.world import BUFFER, DEAD_LETTERS, RECOVERED_S, World
from tests.support.servers.kafka_rights import FORBIDDEN

_BAD = 40  # messages to the bad topic
_DEAD = 3  # the broker that is down, and the only one (or one of two) that has the bad topic
_TOLD_S = 300.0 * SLOW


async def _nothing(world: World, topic: str) -> None:
    """Nothing to be done."""


async def _make_compacted(world: World, topic: str) -> None:
    await make_topic(world.bootstrap, topic, 1, world.shape.brokers, {"cleanup.policy": "compact"})


async def _lose_a_replica(world: World, topic: str) -> None:
    await make_topic(world.bootstrap, topic, replicas={0: [2, _DEAD]}, settings={"min.insync.replicas": "2"})
    await asyncio.to_thread(world.cluster.kafka.kill, _DEAD)


async def _lose_the_leader(world: World, topic: str) -> None:
    await make_topic(world.bootstrap, topic, replicas={0: [_DEAD]}, settings={"min.insync.replicas": "1"})
    await asyncio.to_thread(world.cluster.kafka.kill, _DEAD)


async def _mend_the_broker(world: World, topic: str) -> None:
    await asyncio.to_thread(world.cluster.kafka.start, _DEAD)
    await asyncio.to_thread(world.cluster.kafka.wait_until_whole)


async def _make_a_namesake(world: World, topic: str) -> None:
    """Brokers take `.` and `_` for the same in the names of their metrics, and refuse the second topic."""
    await make_topic(world.bootstrap, topic.replace("_", "."), 1, world.shape.brokers)


async def _make(world: World, topic: str) -> None:
    await make_topic(world.bootstrap, topic, 1, world.shape.brokers)


async def _delete(world: World, topic: str) -> None:
    await delete_topic(world.bootstrap, topic)


@dataclass(frozen=True, slots=True)
class BadTopic:
    """`make` it bad before the good one is measured; `spoil` it when messages for it are pending; `mend` it in the end.

    `brokers`: how many it needs. `made_again`: duemq recreates it, so there is nothing to report.
    """

    name: str
    make: Callable[[World, str], Awaitable[None]]
    spoil: Callable[[World, str], Awaitable[None]] = _nothing
    mend: Callable[[World, str], Awaitable[None]] = _nothing
    brokers: int = 1
    prefix: str = "bad_"
    made_again: bool = False


BAD_TOPICS = (
    BadTopic("compacted, and messages have no key", _make_compacted),
    BadTopic("too few replicas in sync", _lose_a_replica, mend=_mend_the_broker, brokers=3),
    BadTopic("no leader", _lose_the_leader, mend=_mend_the_broker, brokers=3),
    BadTopic("a name that collides", _make_a_namesake),
    BadTopic("no right to create", _nothing, prefix=FORBIDDEN),
    BadTopic("deleted", _make, spoil=_delete, made_again=True),
)


async def stand_beside(world: World, bad: BadTopic, per_s: int, seconds: int) -> tuple[Lateness, Lateness]:
    """The lateness of a good target before and next to a bad one. Each message to the bad one has one outcome."""
    topic, good = f"{bad.prefix}{secrets.token_hex(4)}", f"good.{secrets.token_hex(4)}"
    await make_topic(world.bootstrap, good, 3, world.shape.brokers)
    dead_before = len(await committed(world.bootstrap, DEAD_LETTERS))
    await bad.make(world, topic)
    try:
        before = await pulse(world, good, per_s, seconds)
        payloads = [f"{topic}.{number}" for number in range(_BAD)]
        async with asyncio.TaskGroup() as group:
            beside = group.create_task(pulse(world, good, per_s, seconds), name="good")
            group.create_task(_send_plain(world, topic, payloads, int(seconds * SLOW)), name="bad")
            await bad.spoil(world, topic)
            if not bad.made_again:
                await world.until(
                    lambda: _is_told(world, topic), f"somebody to say what is wrong with {topic}", _TOLD_S
                )
    finally:
        await bad.mend(world, topic)

    async def all_ended() -> bool:
        ends = await _ends(world, topic)
        assert max(ends.values(), default=0) <= 1, f"twice: {ends.most_common(3)}"
        return ends.keys() == set(payloads)

    await world.until(all_ended, f"every message to {topic} to be delivered or a dead letter", RECOVERED_S * 2)
    world.dead_letters += len(await committed(world.bootstrap, DEAD_LETTERS)) - dead_before
    return before, beside.result()


async def _send_plain(world: World, topic: str, payloads: list[str], seconds: int) -> None:
    """Send like plain Kafka clients, which never learn that a topic is bad. Due one after another, over this time."""
    async with AIOKafkaProducer(bootstrap_servers=world.bootstrap) as producer:
        for number, payload in enumerate(payloads):
            delay_ms = 1_000 + number * seconds * 1_000 // len(payloads)
            headers = [("duemq-topic", topic.encode()), ("duemq-delay", b"%dms" % delay_ms)]
            await producer.send_and_wait(
                BUFFER, payload.encode(), headers=headers, partition=number % world.shape.shards
            )


async def _is_told(world: World, topic: str) -> bool:
    """By `/v1/cluster` of a node or proxy, and by the topic itself; False if one of them does not answer."""
    ready = False
    with suppress(aiohttp.ClientError, TimeoutError):
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5 * SLOW)) as session:
            for process in (*world.cluster.nodes, *world.cluster.proxies):
                async with session.get(f"{process.url}/v1/cluster") as answer:
                    ready |= topic in (await answer.json()).get("topics", {})
            async with session.get(f"{world.cluster.proxies[0].url}/v1/topics/{topic}") as answer:
                trouble = (await answer.json()).get("trouble")
        return ready and bool(trouble)
    return False


async def _ends(world: World, topic: str) -> Counter[str]:
    """How often the messages of a bad topic came, to it or to the dead letters."""
    letters = await committed(world.bootstrap, DEAD_LETTERS)
    ended = Counter(letter["payload"] for letter in letters if letter["payload"].startswith(topic))
    try:
        records = await committed(world.bootstrap, topic)
    except (KeyError, IndexError):
        return ended  # there is no such topic
    ended.update(record["payload"] for record in records)
    return ended
