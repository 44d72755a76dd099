"""Which part of Kafka's topics a job reads: offsets, fixed once and shown to whoever asks what was read.

A time range becomes offsets here, by the brokers' own index of times. As a condition on the rows it would be a scan of
the whole topic, for Spark's Kafka source pushes nothing down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from duemq.bus.kafka.client import mend_timeouts
from duemq.model.errors import Unavailable
from duemq.pipeline.errors import BadInput
from duemq.pipeline.kafka import Kafka, options_of

_LOOK_S = 0.05

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Offsets [start, end) of each partition of a topic. `log_starts`: where what the brokers still keep begins."""

    topic: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    log_starts: Mapping[int, int]

    @property
    def count(self) -> int:
        """At most so many records: offsets of aborted transactions and of their marks are among them."""
        return sum(self.ends[partition] - start for partition, start in self.starts.items())

    @property
    def cut(self) -> tuple[int, ...]:
        """The partitions that are read from where the log begins although records were there before it: retention has
        dropped them, and nothing can be said of these."""
        return tuple(p for p, start in self.starts.items() if start <= self.log_starts[p] and self.log_starts[p] > 0)

    def __str__(self) -> str:
        parts = (f"{partition}: {start}..{self.ends[partition]}" for partition, start in sorted(self.starts.items()))
        return f"{self.topic} [{', '.join(parts)}]"

    def within(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> TopicRange:
        """The same with other bounds for some partitions, never beyond what the brokers keep."""
        begin = {p: max(starts.get(p, start), self.log_starts[p]) for p, start in self.starts.items()}
        return replace(self, starts=begin, ends={p: max(ends.get(p, self.ends[p]), begin[p]) for p in begin})


class Logs:
    """What a Kafka says of its topics.

    Methods raise Unavailable where the brokers do not answer, BadInput for a topic that is not there, and BadConfig.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._options = options_of(kafka)

    def topics(self) -> list[str]:
        """All topics but Kafka's own."""

        async def ask(consumer: Any) -> list[str]:
            return sorted(topic for topic in await consumer.topics() if not topic.startswith("__"))

        return self._asked(ask)

    def ranges(
        self, topics: Iterable[str], since: int | None = None, until: int | None = None
    ) -> dict[str, TopicRange]:
        """The records of these topics with a time in [since, until), epoch ms, as far as they are committed.

        Kafka's index of times gives the first record that is not older; where a topic keeps its producers' times, which
        may go back, younger records follow it and older ones may, too.
        """
        wanted = list(topics)

        async def ask(consumer: Any) -> dict[str, TopicRange]:
            return {topic: await _range(consumer, topic, since, until) for topic in wanted}

        return self._asked(ask)

    def settled_ends(self, topics: Iterable[str], patience_s: float) -> tuple[dict[TopicPartition, int], list[str]]:
        """Where these topics end now, once all transactions that are open in them are over.

        A transaction of several topics becomes visible in one topic a moment before it does in another. Whoever has
        read a ledger entry, and then asks here, gets an end behind all that its cycle delivered. Also returns the
        partitions whose transactions were still open after `patience_s`, which are read up to these.
        """
        wanted = list(topics)

        async def ask(consumer: Any) -> dict[TopicPartition, int]:
            return dict(await consumer.end_offsets(await _partitions(consumer, wanted)))

        written = self._asked(ask, isolation_level="read_uncommitted")

        async def wait(consumer: Any) -> dict[TopicPartition, int]:
            deadline = asyncio.get_running_loop().time() + patience_s
            while True:
                found = dict(await consumer.end_offsets(list(written)))
                late = asyncio.get_running_loop().time() > deadline
                if late or all(found[where] >= end for where, end in written.items()):
                    return found
                await asyncio.sleep(_LOOK_S)

        stable = self._asked(wait)
        open_still = [f"{w.topic} {w.partition}" for w, end in sorted(written.items()) if stable[w] < end]
        return {where: min(stable[where], end) for where, end in written.items()}, open_still

    def first_times(self, topics: Iterable[str]) -> dict[tuple[str, int], int]:
        """When the first record that is still there was appended (epoch ms), of each partition that has one."""
        wanted = list(topics)

        async def ask(consumer: Any) -> dict[tuple[str, int], int]:
            found = await consumer.offsets_for_times(dict.fromkeys(await _partitions(consumer, wanted), 0))
            return {(w.topic, w.partition): first.timestamp for w, first in found.items() if first is not None}

        return self._asked(ask)

    def compacted(self, topics: Collection[str]) -> set[str]:
        """Those that keep only the last record of each key. Empty where we may not ask."""
        try:
            return asyncio.run(self._compacted(list(topics))) if topics else set()
        except (KafkaError, OSError):
            return set()

    async def _compacted(self, topics: list[str]) -> set[str]:
        admin = AIOKafkaAdminClient(**self._options.client())
        await admin.start()
        try:
            wanted = [ConfigResource(ConfigResourceType.TOPIC, topic, {"cleanup.policy": None}) for topic in topics]
            found = set()
            for response in await admin.describe_configs(wanted):
                for _, _, _, topic, entries in response.resources:
                    if any(name == "cleanup.policy" and "compact" in value for name, value, *_ in entries):
                        found.add(topic)
            return found
        finally:
            await admin.close()

    def _asked(self, ask: Callable[[Any], Awaitable[T]], isolation_level: str = "read_committed") -> T:
        async def run() -> T:
            consumer = AIOKafkaConsumer(
                isolation_level=isolation_level, enable_auto_commit=False, **self._options.client()
            )
            mend_timeouts(consumer._client)
            try:
                await consumer.start()
                return await ask(consumer)
            except (KafkaError, OSError) as error:
                raise Unavailable(f"Kafka at {self._options.bootstrap} does not answer: {error!r}") from error
            finally:
                await consumer.stop()

        return asyncio.run(run())


async def _partitions(consumer: Any, topics: Iterable[str]) -> list[TopicPartition]:
    cluster = await consumer._client.fetch_all_metadata()
    found = []
    for topic in topics:
        if not (partitions := cluster.partitions_for_topic(topic)):
            raise BadInput(f"there is no topic {topic}")
        found += [TopicPartition(topic, number) for number in sorted(partitions)]
    return found


async def _range(consumer: Any, topic: str, since: int | None, until: int | None) -> TopicRange:
    partitions = await _partitions(consumer, [topic])
    first = await consumer.beginning_offsets(partitions)
    last = await consumer.end_offsets(partitions)
    starts, ends = dict(first), dict(last)
    if since is not None:
        for where, found in (await consumer.offsets_for_times(dict.fromkeys(partitions, since))).items():
            starts[where] = last[where] if found is None else min(found.offset, last[where])
    if until is not None:
        for where, found in (await consumer.offsets_for_times(dict.fromkeys(partitions, until))).items():
            ends[where] = last[where] if found is None else min(found.offset, last[where])
    return TopicRange(
        topic,
        {where.partition: offset for where, offset in starts.items()},
        {where.partition: max(offset, starts[where]) for where, offset in ends.items()},
        {where.partition: offset for where, offset in first.items()},
    )
