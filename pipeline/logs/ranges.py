"""The ranges of offsets that a job reads from Kafka's topics. They are fixed once and can be reported.

A range of times is converted to offsets by the brokers' time index. As a condition on rows it would need a scan of the
whole topic, because Spark's Kafka source pushes no filter down. One request covers all topics, so the number of
requests grows with the brokers and not with the topics.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from duemq.bus.kafka.aiokafka_internals import client_of, offsets_at
from duemq.bus.kafka.clients import new_admin, new_consumer
from duemq.bus.kafka.options import KafkaOptions
from duemq.model.errors import Unavailable
from duemq.model.messages.names import PURGES
from duemq.model.topics.topic_names import TopicNames
from duemq.pipeline.errors import BadInput
from duemq.pipeline.logs.kafka import CONFIGURED, EARLIEST, LATEST, JavaKafka, Kafka, options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S = 0.05

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Offsets [start, end) of each partition of a topic. `log_starts`: the first offsets that the brokers have."""

    topic: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    log_starts: Mapping[int, int]

    @property
    def count(self) -> int:
        """An upper bound for the record count: it includes offsets of aborted transactions and transaction marks."""
        return sum(self.ends[partition] - start for partition, start in self.starts.items())

    @property
    def cut(self) -> tuple[int, ...]:
        """The partitions that are read from the start of their log although the log had earlier records."""
        return tuple(p for p, start in self.starts.items() if start <= self.log_starts[p] and self.log_starts[p] > 0)

    def __str__(self) -> str:
        parts = (f"{partition}: {start}..{self.ends[partition]}" for partition, start in sorted(self.starts.items()))
        return f"{self.topic} [{', '.join(parts)}]"

    def within(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> TopicRange:
        """This range with other bounds for some partitions, limited to the offsets that the brokers have."""
        begin = {p: max(starts.get(p, start), self.log_starts[p]) for p, start in self.starts.items()}
        return replace(self, starts=begin, ends={p: max(ends.get(p, self.ends[p]), begin[p]) for p in begin})


@dataclass(frozen=True, slots=True)
class Retention:
    """The records that brokers may drop: records older than `ms`, the oldest records of a partition larger than `bytes`
    (-1 each: never), and with `compacts` all records except the last one of each key."""

    ms: int = -1
    bytes: int = -1
    compacts: bool = False

    @staticmethod
    def of(config: Mapping[str, str]) -> Retention:
        """The retention in a topic's configuration. Its settings have Kafka's names."""
        policy = config.get("cleanup.policy", "delete")
        drops = "delete" in policy
        ms, size = (int(config.get(name, -1)) if drops else -1 for name in CONFIGURED[1:])
        return Retention(ms, size, "compact" in policy)


class KafkaConnection(Protocol):
    """A connection to Kafka. Methods raise KafkaError, OSError or Unavailable."""

    async def topics(self) -> dict[str, list[int]]:
        """The partitions of every topic, by one request."""

    async def offsets(
        self, times: Mapping[TopicPartition, int], *, committed: bool = True
    ) -> dict[TopicPartition, tuple[int, int]]:
        """The offset and time of the first record at or after each time (epoch ms), or at `EARLIEST` or `LATEST`.
        Partitions without such a record are missing. This takes one request per broker."""

    async def configs(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        """The settings `CONFIGURED` of each topic, by one request. Topics that may not be described are missing."""

    async def notes(self, group: str, topics: Collection[str]) -> dict[str, str]:
        """The metadata in a group's committed offset for partition 0 of each topic. Topics without an offset, or
        all topics if the user may not read the group, are missing."""

    async def close(self) -> None: ...


class Logs:
    """Asks Kafka about topics: ranges, retention, purges.

    Methods raise Unavailable if the brokers do not answer, BadInput for a missing topic, and BadConfig. `spark`: needed
    for logins that only the Java client supports.
    """

    def __init__(self, kafka: Kafka, spark: SparkSession | None = None) -> None:
        self._kafka, self._spark = kafka, spark
        self._options = options_of(kafka)
        self._partitions: Mapping[str, list[int]] = {}
        self._open: tuple[asyncio.Runner, KafkaConnection] | None = None

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Let requests inside this block share a connection and the list of topics."""
        if self._open is not None:
            yield
            return
        with asyncio.Runner() as runner:
            connection = runner.run(self._connection())
            self._open = runner, connection
            try:
                yield
            finally:
                self._open, self._partitions = None, {}
                runner.run(connection.close())

    async def _connection(self) -> KafkaConnection:
        if isinstance(self._kafka, JavaKafka) and self._kafka.java_login:
            if self._spark is None:
                raise BadInput("only Kafka's Java client knows this login: it needs a Spark session")
            from duemq.pipeline.logs.java_logs import JavaConnection

            return NamedConnection(JavaConnection(self._spark, self._kafka), self._options.names)
        return NamedConnection(await PythonConnection.open(self._options), self._options.names)

    def topics(self) -> list[str]:
        """All topics except Kafka's own."""
        with self.connected():
            self._partitions = self._ask(lambda connection: connection.topics())
            return sorted(topic for topic in self._partitions if not topic.startswith("__"))

    def ranges(
        self, topics: Iterable[str], since: int | None = None, until: int | None = None
    ) -> dict[str, TopicRange]:
        """The committed records in these topics with a time in [since, until), epoch ms.

        Kafka's time index finds the first record at or after a time. In a topic where producers set the times, times
        may go back, so that records with earlier times may follow.
        """
        with self.connected():
            places = self._places(topics)
            first, last = self._offsets(places, EARLIEST), self._offsets(places, LATEST)
            starts = first if since is None else self._times(last, since)
            ends = last if until is None else self._times(last, until)
        by_topic: dict[str, list[TopicPartition]] = {}
        for where in places:
            by_topic.setdefault(where.topic, []).append(where)
        return {
            topic: TopicRange(
                topic,
                {where.partition: starts[where] for where in parts},
                {where.partition: max(ends[where], starts[where]) for where in parts},
                {where.partition: first[where] for where in parts},
            )
            for topic, parts in by_topic.items()
        }

    def settled_ends(self, topics: Iterable[str], patience_s: float) -> tuple[dict[TopicPartition, int], list[str]]:
        """The ends of these topics, after all transactions that are open now have ended.

        A transaction becomes visible in its topics at slightly different moments. If a ledger entry has been read
        before the call, these ends include all deliveries of its cycle. Also returns the partitions with transactions
        that were still open after `patience_s`; the ends of these partitions are before the open transactions.
        """

        async def wait(connection: KafkaConnection) -> dict[TopicPartition, int]:
            deadline = asyncio.get_running_loop().time() + patience_s
            while True:
                ends = {where: at for where, (at, _) in (await connection.offsets(dict.fromkeys(written, -1))).items()}
                late = asyncio.get_running_loop().time() > deadline
                if late or all(ends.get(where, 0) >= end for where, end in written.items()):
                    return ends
                await asyncio.sleep(_LOOK_S)

        with self.connected():
            written = self._offsets(self._places(topics), LATEST, committed=False)
            stable = self._ask(wait)
        open_still = [f"{w.topic} {w.partition}" for w, end in sorted(written.items()) if stable[w] < end]
        return {where: min(stable[where], end) for where, end in written.items()}, open_still

    def first_times(self, topics: Iterable[str]) -> dict[tuple[str, int], int]:
        """The time (epoch ms) of the first remaining record in each partition that has records."""
        with self.connected():
            times = dict.fromkeys(self._places(topics), 0)
            records = self._ask(lambda connection: connection.offsets(times)) if times else {}
        return {(where.topic, where.partition): time for where, (_, time) in records.items() if time >= 0}

    def retention(self, topics: Iterable[str]) -> dict[str, Retention]:
        """The retention of each topic. Topics that may not be described are missing."""
        names = list(topics)
        if not names:
            return {}
        with self.connected():
            configs = self._ask(lambda connection: connection.configs(names))
        return {topic: Retention.of(config) for topic, config in configs.items()}

    def purges(self, topics: Iterable[str]) -> dict[str, int]:
        """When duemq's jobs last began to purge these topics (epoch ms). Topics without such a record are missing."""
        names = list(topics)
        if not names:
            return {}
        with self.connected():
            notes = self._ask(lambda connection: connection.notes(self._options.names.cursors + PURGES, names))
        return {topic: int(b64decode(note)) for topic, note in notes.items()}

    def _places(self, topics: Iterable[str]) -> list[TopicPartition]:
        names = list(topics)
        if any(topic not in self._partitions for topic in names):
            self._partitions = self._ask(lambda connection: connection.topics())
        if missing := [topic for topic in names if not self._partitions.get(topic)]:
            raise BadInput(f"there is no topic {missing[0]}")
        return [TopicPartition(topic, number) for topic in names for number in self._partitions[topic]]

    def _offsets(
        self, places: Collection[TopicPartition], time: int, *, committed: bool = True
    ) -> dict[TopicPartition, int]:
        if not places:
            return {}
        records = self._ask(lambda connection: connection.offsets(dict.fromkeys(places, time), committed=committed))
        if missing := [where for where in places if where not in records]:
            raise Unavailable(
                f"Kafka at {self._options.bootstrap} does not say where {missing[0].topic} begins or ends"
            )
        return {where: offset for where, (offset, _) in records.items()}

    def _times(self, last: Mapping[TopicPartition, int], time: int) -> dict[TopicPartition, int]:
        """The first offset at or after `time` for each partition, but at most the last one."""
        if not last:
            return {}
        records = self._ask(lambda connection: connection.offsets(dict.fromkeys(last, max(time, 0))))
        return {where: min(records[where][0], end) if where in records else end for where, end in last.items()}

    def _ask(self, ask: Callable[[KafkaConnection], Awaitable[T]]) -> T:
        assert self._open is not None
        runner, connection = self._open

        async def answer() -> T:
            return await ask(connection)

        try:
            return runner.run(answer())
        except (KafkaError, OSError) as error:
            raise Unavailable(f"Kafka at {self._options.bootstrap} does not answer: {error!r}") from error


class NamedConnection:
    """A `KafkaConnection` that translates between duemq's topic names and those on the brokers. Topics of other
    clusters are left out."""

    def __init__(self, inner: KafkaConnection, names: TopicNames) -> None:
        self._inner, self._names = inner, names

    async def topics(self) -> dict[str, list[int]]:
        topics = await self._inner.topics()
        return {own: parts for name, parts in topics.items() if (own := self._names.own(name)) is not None}

    async def offsets(
        self, times: Mapping[TopicPartition, int], *, committed: bool = True
    ) -> dict[TopicPartition, tuple[int, int]]:
        asked = {where._replace(topic=self._names.on_brokers(where.topic)): at for where, at in times.items()}
        offsets = await self._inner.offsets(asked, committed=committed)
        return {own: offsets[where] for own, where in zip(times, asked, strict=True) if where in offsets}

    async def configs(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        configs = await self._inner.configs([self._names.on_brokers(topic) for topic in topics])
        return {topic: configs[name] for topic in topics if (name := self._names.on_brokers(topic)) in configs}

    async def notes(self, group: str, topics: Collection[str]) -> dict[str, str]:
        notes = await self._inner.notes(group, [self._names.on_brokers(topic) for topic in topics])
        return {topic: notes[name] for topic in topics if (name := self._names.on_brokers(topic)) in notes}

    async def close(self) -> None:
        await self._inner.close()


class PythonConnection:
    """A `KafkaConnection` that uses duemq's own client."""

    def __init__(self, consumer: Any, options: KafkaOptions) -> None:
        self._consumer, self._options = consumer, options

    @staticmethod
    async def open(options: KafkaOptions) -> PythonConnection:
        """Open a connection. Raises Unavailable and BadConfig."""
        consumer = new_consumer(enable_auto_commit=False, **options.client())
        try:
            await consumer.start()
        except (KafkaError, OSError) as error:
            await consumer.stop()
            raise Unavailable(f"Kafka at {options.bootstrap} does not answer: {error!r}") from error
        return PythonConnection(consumer, options)

    async def topics(self) -> dict[str, list[int]]:
        # Request the metadata of all topics at once: otherwise the client sends a request for each new topic.
        client = client_of(self._consumer)
        if not await client.force_metadata_update():
            raise Unavailable(f"Kafka at {self._options.bootstrap} does not say what topics it has")
        return {topic: sorted(client.cluster.partitions_for_topic(topic) or ()) for topic in client.cluster.topics()}

    async def offsets(
        self, times: Mapping[TopicPartition, int], *, committed: bool = True
    ) -> dict[TopicPartition, tuple[int, int]]:
        records = await offsets_at(self._consumer, times, self._options.request_timeout_ms, committed=committed)
        return {where: (at, -1 if time is None else time) for where, (at, time) in records.items() if at >= 0}

    async def configs(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        admin = new_admin(**self._options.client())
        try:
            await admin.start()
            resources = [ConfigResource(ConfigResourceType.TOPIC, topic, dict.fromkeys(CONFIGURED)) for topic in topics]
            return {
                topic: {name: value for name, value, *_ in entries}
                for response in await admin.describe_configs(resources)
                for error, _, _, topic, entries in response.resources
                if error == 0
            }
        except (KafkaError, OSError):  # not authorized
            return {}
        finally:
            await admin.close()

    async def notes(self, group: str, topics: Collection[str]) -> dict[str, str]:
        admin = new_admin(**self._options.client())
        try:
            await admin.start()
            places = [TopicPartition(topic, 0) for topic in topics]
            stored = await admin.list_consumer_group_offsets(group, partitions=places)
            return {where.topic: str(one.metadata) for where, one in stored.items() if one.offset >= 0}
        except (KafkaError, OSError):  # not authorized
            return {}
        finally:
            await admin.close()

    async def close(self) -> None:
        await self._consumer.stop()
