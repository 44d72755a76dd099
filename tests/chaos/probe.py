"""A steady pulse of messages per shard, by which its pauses are seen. Sent as any Kafka client may: plain headers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from duemq.bus.kafka.produce.stop import stop as stop_producer
from tests.chaos.pace import SLOW
from tests.chaos.takeover import Pause, longest_pause
from tests.chaos.topics import consumer
from tests.e2e.load import now_ms

BUFFER = "duemq.buffer"
_EVERY_MS = int(20 * SLOW)
_AHEAD_MS = 1_500
_PART_MS = 500
_ACK_S = 15.0 * SLOW
_RETRY_S = 0.2


class Seen(NamedTuple):
    """A delivered probe. Times in epoch ms: `stamp` by the broker at append, `seen` by a read-committed consumer."""

    shard: int
    due: int
    stamp: int
    seen: int


class Probe:
    """One message every 20 ms per shard while it runs; follows the deliveries."""

    def __init__(self, bootstrap: str, topic: str, shards: int) -> None:
        self.sent: set[str] = set()  # payloads the broker acknowledged
        self.open: set[str] = set()  # sent, without an acknowledgement
        self.seen: dict[int, list[Seen]] = defaultdict(list)
        self.topic = topic
        self.nulls = True  # whether each probe has a null header
        self._bootstrap, self._shards = bootstrap, shards
        self._going = asyncio.Event()
        self._going.set()
        self._pending: set[asyncio.Task[None]] = set()
        self._grown = asyncio.Condition()
        self._failed: AIOKafkaProducer | None = None

    async def send(self, stop: asyncio.Event) -> None:
        """Send until `stop`, a second and a half ahead of the due times."""
        producer = await self._producer()
        try:
            due = now_ms() + _AHEAD_MS
            while not stop.is_set():
                await self._going.wait()
                if self._failed is producer:  # once a record of it is refused, an idempotent one has no way back
                    await stop_producer(producer, failed=True)
                    producer = await self._producer()
                for _ in range(_PART_MS // _EVERY_MS):
                    due = max(due + _EVERY_MS, now_ms())
                    for shard in range(self._shards):
                        task = asyncio.create_task(self._send(producer, shard, due), name="probe")
                        self._pending.add(task)
                        task.add_done_callback(self._pending.discard)
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(due - _AHEAD_MS - now_ms(), 1) / 1000):
                        await stop.wait()
            await asyncio.gather(*self._pending)
        finally:
            await stop_producer(producer)

    async def rest(self) -> None:
        """Send nothing until `go_on`; return once all sent messages are acknowledged, or given up."""
        self._going.clear()
        await asyncio.gather(*self._pending)

    def go_on(self) -> None:
        self._going.set()

    async def _producer(self) -> AIOKafkaProducer:
        """A new one, as soon as a broker is there."""
        while True:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                enable_idempotence=True,
                request_timeout_ms=int(6_000 * SLOW),
                linger_ms=5,
            )
            try:
                await producer.start()
            except KafkaError:
                await stop_producer(producer)
                await asyncio.sleep(_RETRY_S)
            else:
                return producer

    async def _send(self, producer: AIOKafkaProducer, shard: int, due: int) -> None:
        payload = f"{shard}.{due}"
        headers: list[tuple[str, bytes | None]] = [
            ("duemq-topic", self.topic.encode()),
            ("duemq-deliver-at", b"%d" % due),
        ]
        headers += [("null", None)] * self.nulls
        self.open.add(payload)
        try:
            async with asyncio.timeout(_ACK_S):
                await (await producer.send(BUFFER, payload.encode(), partition=shard, headers=headers))
        except (KafkaError, TimeoutError):
            self._failed = producer
            return  # the outcome stays open
        self.sent.add(payload)
        self.open.discard(payload)

    async def follow(self) -> None:
        """Read the deliveries, until cancelled."""
        async with consumer(self._bootstrap, [self.topic]) as reading:
            while True:
                batches = await reading.getmany(timeout_ms=100)
                now = now_ms()
                for record in (record for batch in batches.values() for record in batch):
                    shard, due = map(int, record.value.split(b"."))
                    self.seen[shard].append(Seen(shard, due, record.timestamp, now))
                if batches:
                    async with self._grown:
                        self._grown.notify_all()

    async def delivers(self, shards: Iterable[int], due_after_ms: int, within_s: float) -> None:
        """Wait until each of these shards has delivered a probe that was due after this time."""
        wanted = set(shards)

        def all_seen() -> bool:
            return all(self.seen[shard] and self.seen[shard][-1].due > due_after_ms for shard in wanted)

        async with asyncio.timeout(within_s), self._grown:
            await self._grown.wait_for(all_seen)

    def pause(self, shard: int, fault_ms: int, until_ms: int) -> Pause:
        """The longest pause of a shard's deliveries by the broker's stamps."""
        return longest_pause(sorted(seen.stamp for seen in self.seen[shard]), fault_ms, until_ms)


def reconcile_probes(probe: Probe, records: Iterable[dict[str, Any]]) -> None:
    """Every probe came once, none of them early, and none that was not sent."""
    stamps: dict[str, list[int]] = defaultdict(list)
    for record in records:
        assert record["headers"].get("null") is None, f"a null header of {record['payload']} is not null any more"
        stamps[record["payload"]].append(record["timestamp_ms"])
    lost = probe.sent - stamps.keys()
    assert not lost, f"{len(lost)} probes lost: {sorted(lost)[:5]}"
    twice = [payload for payload, found in stamps.items() if len(found) > 1]
    assert not twice, f"{len(twice)} probes delivered twice: {sorted(twice)[:5]}"
    early = [payload for payload, (at,) in stamps.items() if at < int(payload.partition(".")[2])]
    assert not early, f"{len(early)} probes early: {sorted(early)[:5]}"
    foreign = stamps.keys() - probe.sent - probe.open
    assert not foreign, f"records that nobody sent: {sorted(foreign)[:5]}"
