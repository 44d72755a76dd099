"""`take-over`: measures how long a node takes to become the writer of many shards at once, next to foreign topics."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import uvloop
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from duemq.bus.base import Committer
from duemq.bus.kafka.bus import KafkaBus
from duemq.bus.kafka.options import KafkaOptions
from duemq.cluster.topics.internal_topics import BUFFER, LEDGER, committer_name
from duemq.dev.kafka.kafka import KafkaServers
from duemq.model.messages.record import pack_record
from duemq.web.server import tune_interpreter

_TOPICS = frozenset(("orders", "bills", "mails"))  # topics that the shards deliver to
_AT_ONCE = 100  # partitions in one foreign topic


class TakeOver(NamedTuple):
    """The time (ms) until all shards have a new writer. `others`: the number of partitions that are not duemq's."""

    others: int
    fastest_ms: float
    median_ms: float
    p99_ms: float
    slowest_ms: float


def take_over(others: int, shards: int, rounds: int) -> list[TakeOver]:
    """Measure on a Kafka with one broker, first without and then with foreign partitions. Raises LocalError.

    The event loop and the interpreter's settings are those of a node.
    """
    tune_interpreter()
    with tempfile.TemporaryDirectory(prefix="duemq-bench-") as folder, KafkaServers(Path(folder)) as servers:
        return uvloop.run(_measure(servers.bootstrap, others, shards, rounds))


async def _measure(bootstrap: str, others: int, shards: int, rounds: int) -> list[TakeOver]:
    async with AsyncExitStack() as opened:
        nodes = []
        for _ in range(2):
            node = await KafkaBus.open(KafkaOptions(bootstrap))
            opened.push_async_callback(node.close)
            await node.create_log(BUFFER, shards)
            await node.create_log(LEDGER, shards, expires=False)
            nodes.append(node)
        for topic in sorted(_TOPICS):
            await nodes[0].create_topic(topic, 3)
        await _rounds(nodes, shards, 5)  # a warm-up: connections, and the coordinator's first transactions
        alone = await _rounds(nodes, shards, rounds)
        await _make_others(bootstrap, others)
        return [_figures(0, alone), _figures(others, await _rounds(nodes, shards, rounds))]


async def _rounds(nodes: list[KafkaBus], shards: int, rounds: int) -> list[float]:
    """Each node in turn takes over all shards from the other node, which has delivered to every topic.

    Between two rounds the deposed committers are closed, and their memory is freed, so that each take-over is like that
    of a node that has not been a writer before.
    """
    spent_ms: list[float] = []
    deposed: Sequence[Committer] = []
    for number in range(rounds):
        node, began = nodes[number % len(nodes)], time.perf_counter()
        names = [committer_name(shard) for shard in range(shards)]
        committers = await asyncio.gather(*(node.committer(name, lambda: _TOPICS) for name in names))
        spent_ms.append((time.perf_counter() - began) * 1000)
        for committer in deposed:
            await committer.close()
        frames = [pack_record(None, (), b"{}")]
        for shard, committer in enumerate(committers):
            await committer.commit({(LEDGER, shard): frames, **{(topic, 0): frames for topic in _TOPICS}})
        deposed = committers
        gc.collect()
    return spent_ms


async def _make_others(bootstrap: str, partitions: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=120_000)
    await admin.start()
    try:
        for first in range(0, partitions, _AT_ONCE):
            topic = NewTopic(f"others-{first}", min(_AT_ONCE, partitions - first), 1)
            await admin.create_topics([topic], timeout_ms=60_000)
    finally:
        await admin.close()


def _figures(others: int, spent_ms: list[float]) -> TakeOver:
    ordered = sorted(spent_ms)
    p99 = ordered[max(-(-99 * len(ordered) // 100) - 1, 0)]
    return TakeOver(others, ordered[0], ordered[len(ordered) // 2], p99, ordered[-1])
