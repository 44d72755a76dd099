"""A proxy's view of the ledger: the progress and the answers of each shard.

A proxy keeps no state about messages. When it starts, it begins to follow the ledger at the ledger's end, because
earlier answers belong to other processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from duemq.background.loop import Loop
from duemq.bus.base import Bus, Subscription
from duemq.cluster.shards.progress import Progress
from duemq.cluster.topics.internal_topics import LEDGER
from duemq.model.log.ledger import START, Barrier, Entry, read_ledger
from duemq.model.messages.record import unpack_record

_READ = 1_000
_LOOK_BACK = 32  # offsets; on a broker each cycle uses two, for its entry and its transaction marker
_QUIET_S = 5.0
# While no request waits for an answer, new entries are read only ten times a second, for all shards at the same time,
# so that one fetch suffices.
_LINGER_S = 0.1


class LedgerCollector(Collector):
    """Metrics of the shards as the proxy sees them, made at each scrape. Each node has more metrics for its shards."""

    def __init__(self, entries: Mapping[int, Entry], clock: Callable[[], int]) -> None:
        self._entries, self._clock = entries, clock

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        now = self._clock()
        label = ["shard"]
        pending = GaugeMetricFamily("duemq_ledger_pending_messages", "Messages held, by the ledger", labels=label)
        applied = GaugeMetricFamily("duemq_ledger_applied_offset", "Commands applied, by the ledger", labels=label)
        age = GaugeMetricFamily("duemq_ledger_age_seconds", "Since the last ledger entry was made", labels=label)
        for shard, entry in sorted(self._entries.items()):
            if entry.number >= 0:
                pending.add_metric([str(shard)], entry.pending)
                applied.add_metric([str(shard)], entry.applied)
                age.add_metric([str(shard)], max(now - entry.at, 0) / 1000)
        yield from (pending, applied, age)


class LedgerFollower:
    """Follows the ledger of all shards. `bus` must recover automatically."""

    def __init__(self, bus: Bus, shards: int) -> None:
        self.progress = [Progress() for _ in range(shards)]
        self.entries: dict[int, Entry] = {}
        self.ready = asyncio.Event()  # set once the end of every shard's ledger was found, or could not be
        self._bus = bus
        self._next: dict[int, int] = {}  # per shard: the next offset to read
        self._loops = [
            Loop(
                "ledger",
                partial(self._follow, shard),
                f"shard {shard}",
                ends_on=(),
                on_failure=lambda _: self._check_ready(),
            )
            for shard in range(shards)
        ]

    def why_not_ready(self) -> str | None:
        """None while the answers of at least one shard can be followed, else the reason in a sentence."""
        if (reason := self._bus.trouble()) is not None:
            return reason
        reasons = [self.why_unseen(shard) for shard in range(len(self.progress))]
        return None if None in reasons else reasons[0]

    def why_unseen(self, shard: int) -> str | None:
        """None while the answers of this shard can be followed, else the reason in a sentence."""
        if (reason := self._loops[shard].trouble or self._bus.troubles().get((LEDGER, shard))) is not None:
            return f"the ledger of shard {shard} cannot be read: {reason}"
        return None if shard in self.entries else f"the ledger of shard {shard} is being read for the first time"

    def unreadable(self) -> list[int]:
        """The shards whose ledger cannot be read now."""
        failing = (shard for shard, loop in enumerate(self._loops) if loop.trouble is not None)
        return sorted({*failing, *(number for topic, number in self._bus.troubles() if topic == LEDGER)})

    def unread(self) -> list[int]:
        """The shards whose ledger is being read for the first time, or could never be read."""
        return [shard for shard in range(len(self.progress)) if shard not in self.entries]

    def applied(self) -> dict[int, int]:
        """The offset up to which each shard has applied its commands, according to the ledger read so far."""
        return {shard: entry.applied for shard, entry in self.entries.items()}

    async def run(self) -> None:
        """Follow until cancelled. After a record that is not a ledger entry in a known format, the proxy gets no more
        answers from that shard."""
        async with asyncio.TaskGroup() as group:
            for shard, loop in enumerate(self._loops):
                group.create_task(loop.run(), name=f"ledger-{shard}")

    async def _follow(self, shard: int) -> float:
        with closing(self._bus.subscribe(LEDGER, shard)) as subscription:
            if shard not in self.entries:
                await self._find_end(shard, subscription)
            while True:
                grown = await self._read(shard)
                self._loops[shard].record_success()
                if not grown:
                    await subscription.wait(_QUIET_S)
                    rest = _LINGER_S - asyncio.get_running_loop().time() % _LINGER_S
                    await self.progress[shard].wait_for_waiter(rest)

    async def _find_end(self, shard: int, subscription: Subscription) -> None:
        """Publish the last entry. The search goes back step by step, because aborted cycles leave gaps."""
        end = await self._bus.end_offset(LEDGER, shard)
        back = _LOOK_BACK
        while shard not in self.entries:
            start = max(end - back, 0)
            self._next[shard] = start
            await self._read_to(end, shard, subscription)
            if start == 0:
                break
            back *= 16
        self.entries.setdefault(shard, START)
        self._check_ready()

    def _check_ready(self) -> None:
        if all(shard in self.entries or loop.trouble for shard, loop in enumerate(self._loops)):
            self.ready.set()

    async def _read_to(self, end: int, shard: int, subscription: Subscription) -> None:
        while self._next[shard] < end:
            if await self._read(shard):
                continue
            # Even if the bus has reached the end, entries may have come since the last read.
            if self._bus.reach(LEDGER, shard) >= end and not await self._read(shard):
                return
            await subscription.wait(_QUIET_S)

    async def _read(self, shard: int) -> bool:
        """Publish the entries available now; False if there are none."""
        records = await self._bus.read(LEDGER, shard, self._next[shard], _READ)
        progress = self.progress[shard]
        for record in records:
            entry = read_ledger(unpack_record(record.frame).payload)
            if not isinstance(entry, Barrier):
                self.entries[shard] = entry
                progress.publish(entry)
        if records:
            self._next[shard] = records[-1].offset + 1
        return bool(records)
