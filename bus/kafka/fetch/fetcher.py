"""Follows duemq's own topics: fetches frames into memory as they are committed, and readers read them there.

One fetch per broker waits for new frames. It includes a partition from when a reader has read all frames in memory
until more arrive. So rare reads cost few fetches, and the next frames are in flight while a reader handles the last
ones. Only a partition with a backlog is fetched ahead of its reader, as memory allows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from aiokafka import errors
from aiokafka.errors import KafkaError

from duemq.bus.kafka.fetch.runs import Run, RunPart
from duemq.bus.kafka.record_batches import decode
from duemq.bus.kafka.requests.wire import EARLIEST, LATEST, FetchedRecords, Wire
from duemq.model.errors import DuemqError
from duemq.model.messages.record import Partition, StoredRecord

log = logging.getLogger(__name__)

_FETCH_BYTES = 1 << 20
_BACKLOG_BYTES = _FETCH_BYTES // 4  # an answer of this size means that there is more
_LEAST_SHARE = 128 << 10  # 256 shards have 512 of them
# A partition wanted after a fetch was sent gets a separate fetch, on another connection, because a broker answers the
# requests of one connection in turn. The more fetches wait, the shorter the next one waits, so that a connection is
# free again soon. More connections would mean more and smaller fetches under load. No fetch waits longer than the first
# one: after that, all share the next one.
_WAITS_MS = 500, 100, 40, 20
_TOGETHER_S = 0.004  # fetches that time out together do so within this time
_TROUBLE_S = 5.0
_RETRY_S, _LONGEST_S = 0.1, 1.0  # pauses of a partition that fails; they grow with the outage
_SENTENCE = "partition {1} of topic {0!r} cannot be read: {2}"
_DEPOSED_S = 1.0
_LEAP = 20_000  # if a reader is this far ahead, the tail jumps to it instead of catching up


def _now() -> float:
    return asyncio.get_running_loop().time()


class Flight(NamedTuple):
    """A fetch in flight. `ends_at`: when the broker answers at the latest, s of the loop."""

    task: asyncio.Task[None]
    ends_at: float


class PartitionBuffer:
    """The newest frames of one partition.

    `read_to`: how far its foremost reader is, -1 without any. `wants_more`: whether to fetch more. `flight`: the fetch
    that includes it now. `log_start`: the first offset that the broker still has. `is_lost`: the broker does not have
    the next offset. A failing partition is left out of fetches until `rests_until`, on the loop's clock.
    """

    __slots__ = (
        "failing_since", "failure", "flight", "is_lost", "log_start", "partition", "read_to", "rests_until", "run",
        "short_since", "started", "wants_more",
    )  # fmt: skip

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.restart()

    def restart(self) -> None:
        """Forget everything: its end must be found again."""
        self.run = Run(0)
        self.started = self.is_lost = False
        self.wants_more = True
        self.read_to = -1
        self.log_start = 0
        self.flight: object | None = None
        self.failing_since: float | None = None
        self.failure = ""
        self.short_since: float | None = None
        self.rests_until = 0.0

    def start(self, offset: int, read_to: int) -> None:
        """Start again at this offset. A fetch in flight for another offset no longer counts."""
        self.run, self.read_to, self.started, self.flight = Run(offset), read_to, True, None
        self.wants_more, self.is_lost = True, False


class Tails:
    """The newest frames of all followed partitions.

    `wake_readers` is called with the partitions that have new frames; `known_end` returns the committed end of a
    partition, 0 if this process does not know it. `doubt` is called with topic and number of each partition that begins
    to fail, and with the offset if its log ends before it.

    A failing partition rests alone: the others are fetched without it.
    """

    def __init__(
        self,
        wire: Wire,
        max_bytes: int,
        wake_readers: Callable[[Iterable[Partition]], None],
        known_end: Callable[[Partition], int],
        doubt: Callable[[str, int, int | None], None] = lambda topic, partition, offset: None,
    ) -> None:
        self._wire, self._max_bytes, self._wake_readers, self._known_end = wire, max_bytes, wake_readers, known_end
        self._doubt_log = doubt
        self._tails: dict[Partition, PartitionBuffer] = {}
        self._changed = asyncio.Event()
        self._flights: dict[tuple[int, int], Flight] = {}  # by broker and number of the connection
        self._failing: set[PartitionBuffer] = set()
        self._placing: set[asyncio.Task[None]] = set()
        self._first_ends_at: dict[int, float] = {}  # by broker: of its last fetch on the first connection

    def follow(self, partition: Partition, known_end: int | None = None) -> PartitionBuffer:
        """Follow it from now on, starting at its known end, or else at the broker's."""
        tail = self._tails.get(partition)
        if tail is None:
            tail = self._tails[partition] = PartitionBuffer(partition)
            if known_end is not None:
                tail.start(known_end, -1)
            self._changed.set()
        return tail

    def follows(self, partition: Partition) -> bool:
        return partition in self._tails

    def first(self, partition: Partition) -> int:
        """The first offset of its frames in memory."""
        return self._tails[partition].run.first

    def reach(self, partition: Partition) -> int:
        tail = self._tails.get(partition)
        return tail.run.end if tail is not None and tail.started else 0

    def read(self, partition: Partition, offset: int, max_records: int, max_bytes: int) -> list[StoredRecord] | None:
        """Frames in memory from `offset` on; None if the tail begins later, so that the broker must be read."""
        tail = self.follow(partition)
        run = tail.run
        offset = max(offset, tail.log_start)
        if tail.started and offset < run.first:
            return None
        if not tail.started or offset > run.end + _LEAP:
            tail.start(offset, offset)
            self._changed.set()
            return []
        records = run.read(offset, max_records, max_bytes)
        read_to = records[-1].offset + 1 if records else offset
        if read_to > tail.read_to:
            tail.read_to = read_to
            run.drop_before(read_to, self._share)
        if not records or read_to >= run.last:
            self.want(partition)
        return records

    def want(self, partition: Partition) -> None:
        """A reader has read all frames in memory, and waits for more."""
        tail = self.follow(partition)
        if not tail.wants_more:
            tail.wants_more = True
            self._changed.set()

    def trim(self, partition: Partition, before: int) -> None:
        tail = self._tails.get(partition)
        if tail is not None:
            tail.run.cut(before)

    def restart(self, topic: str) -> None:
        """Forget a topic: it was replaced by another one."""
        for tail in self._tails.values():
            if tail.partition[0] == topic:
                tail.restart()
                self._failing.discard(tail)
        self._changed.set()

    def troubles(self) -> dict[Partition, str]:
        """The partitions that could not be read for some seconds, each with a sentence."""
        since = _now() - _TROUBLE_S
        return {
            tail.partition: _SENTENCE.format(*tail.partition, tail.failure)
            for tail in self._failing
            if tail.failing_since is not None and tail.failing_since < since
        }

    # --- the pump -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a fetch waiting for every partition that is wanted, until cancelled."""
        try:
            while True:
                self._changed.clear()
                self._launch()
                await self._changed.wait()
        finally:
            tasks = [*(flight.task for flight in self._flights.values()), *self._placing]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _share(self) -> int:
        return max(self._max_bytes // max(len(self._tails), 1), _LEAST_SHARE)

    def _launch(self) -> None:
        now, idle = _now(), defaultdict[int, list[PartitionBuffer]](list)
        for tail in self._tails.values():
            if tail.flight is not None or not tail.wants_more or tail.rests_until > now:
                continue
            node = self._wire.leader(*tail.partition)
            if node is None:
                self._note_failure(tail, errors.LeaderNotAvailableError("no broker leads it"))
            elif tail.is_lost or not tail.started:
                self._begin_placing(tail)
            else:
                idle[node].append(tail)
        for node, tails in idle.items():
            self._launch_at(node, tails)

    def _begin_placing(self, tail: PartitionBuffer) -> None:
        task = asyncio.create_task(self._place(tail), name=f"kafka place {tail.partition}")
        self._placing.add(task)
        tail.flight = task

        def on_done(task: asyncio.Task[None]) -> None:
            self._placing.discard(task)
            if tail.flight is task:
                tail.flight = None
            self._changed.set()

        task.add_done_callback(on_done)

    async def _place(self, tail: PartitionBuffer) -> None:
        """Find the offset at which a partition continues, in a separate task."""
        where, is_new = tail.partition, not tail.started
        try:
            offset = (await self._wire.offsets([where], LATEST if is_new else EARLIEST))[where]
            if is_new and not tail.started:  # a reader may have begun before the answer came
                tail.start(offset, -1)
            elif tail.is_lost and offset > tail.run.end:
                tail.log_start = offset
                tail.start(offset, tail.read_to)
                self._wake_readers([where])
            elif tail.is_lost:
                self._doubt_log(*where, tail.run.end)
                raise errors.OffsetOutOfRangeError(f"the log ends before offset {tail.run.end}")
        except Exception as error:  # retried whatever it is
            tail.is_lost = False  # the log may have grown
            self._note_failure(tail, error)

    def _launch_at(self, node: int, tails: list[PartitionBuffer]) -> None:
        """Start a fetch on a free connection, but not right before others end whose partitions can share it."""
        loop = asyncio.get_running_loop()
        now, first_ends_at = loop.time(), self._first_ends_at.get(node, 0.0)
        if abs(first_ends_at - now) <= _TOGETHER_S and (pause_s := self._until_together(node, now)) > 0:
            loop.call_later(pause_s, self._changed.set)
            return
        for number, wait_ms in enumerate(_WAITS_MS):
            if (node, number) not in self._flights:
                if number == 0:
                    self._first_ends_at[node] = now + wait_ms / 1000
                elif (left_ms := round((first_ends_at - now) * 1000)) > 0:
                    wait_ms = min(wait_ms, left_ms)
                self._start(node, number, tails, wait_ms)
                return

    def _until_together(self, node: int, now: float) -> float:
        """The time (s) until fetches of this broker that are about to time out end; 0 if there are none."""
        ends = [flight.ends_at for (broker, _), flight in self._flights.items() if broker == node]
        return max((end + _TOGETHER_S - now for end in ends if abs(end - now) <= _TOGETHER_S), default=0.0)

    def _start(self, node: int, number: int, tails: list[PartitionBuffer], wait_ms: int) -> None:
        connection = f"tail-{number}"
        task = asyncio.create_task(self._fly(node, connection, tails, wait_ms), name=f"kafka fetch {node} {connection}")
        self._flights[node, number] = Flight(task, asyncio.get_running_loop().time() + wait_ms / 1000)
        for tail in tails:
            tail.flight = task

        def on_done(task: asyncio.Task[None]) -> None:
            del self._flights[node, number]
            for tail in tails:
                if tail.flight is task:
                    tail.flight = None
            self._changed.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("kafka fetch failed: %r", error, extra={"action": "kafka_fetch"})

        task.add_done_callback(on_done)

    async def _fly(self, node: int, connection: str, tails: list[PartitionBuffer], wait_ms: int) -> None:
        """One fetch. After any error, the next one retries after a pause."""
        offsets = {tail.partition: tail.run.end for tail in tails}
        try:
            answers = await self._wire.fetch(node, offsets, wait_ms, _FETCH_BYTES, connection)
        except (KafkaError, DuemqError, OSError) as error:
            for tail in tails:
                self._note_failure(tail, error)
            return
        grown = []
        for tail in tails:
            answer = answers.get(tail.partition)
            if answer is None or tail.run.end != offsets[tail.partition]:
                continue  # a reader has moved it elsewhere
            if answer.error is errors.OffsetOutOfRangeError:
                tail.is_lost = True
                continue
            try:
                if self._take(tail, answer):
                    grown.append(tail.partition)
                if tail.failing_since is not None:
                    tail.failing_since = None
                    self._failing.discard(tail)
                self._doubt(tail)
            except Exception as error:  # a batch that cannot be read must stop neither this nor other partitions
                self._note_failure(tail, error)
        self._wake_readers(grown)

    def _take(self, tail: PartitionBuffer, answer: FetchedRecords) -> bool:
        """True if the partition advanced. Raises KafkaError."""
        if answer.error is not None:
            raise answer.error()
        tail.log_start = max(tail.log_start, answer.start)
        first = tail.run.end
        batch = decode(answer.message_set, first, answer.aborted)
        if batch.next_offset == first:
            return False
        tail.run.add(RunPart(first, batch.next_offset, batch.records, batch.size))
        tail.run.drop_before(tail.read_to, self._share)
        tail.wants_more = batch.size >= _BACKLOG_BYTES and tail.run.bytes_after(tail.read_to) < self._share
        return True

    def _doubt(self, tail: PartitionBuffer) -> None:
        """A broker without committed frames may be a former leader that does not know it: ask for the leader."""
        now = _now()
        if self._known_end(tail.partition) <= tail.run.end:
            tail.short_since = None
        elif tail.short_since is None:
            tail.short_since = now
        elif now - tail.short_since > _DEPOSED_S:
            tail.short_since = now
            self._wire.client.force_metadata_update()

    def _note_failure(self, tail: PartitionBuffer, error: Exception) -> None:
        """Let a partition rest, and ask for its leader."""
        now = _now()
        tail.failure = str(error) or type(error).__name__
        if tail.failing_since is None:
            tail.failing_since = now
            self._failing.add(tail)
            self._doubt_log(*tail.partition, None)
            log.warning(
                "kafka: partition %d of %s cannot be read now: %r", tail.partition[1], tail.partition[0], error,
                extra={"action": "kafka_fetch", "topic": tail.partition[0]},
            )  # fmt: skip
        pause_s = min(max(_RETRY_S, (now - tail.failing_since) / 10), _LONGEST_S)
        tail.rests_until = now + pause_s
        asyncio.get_running_loop().call_later(pause_s + _TOGETHER_S, self._changed.set)  # after the rest
        self._wire.client.force_metadata_update()
