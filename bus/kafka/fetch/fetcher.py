"""Follows duemq's own topics: it fetches frames into memory as they are committed, and readers read them from memory.

One fetch per broker waits for new frames. It includes a partition once a reader has read all its frames in memory, and
until more arrive. So partitions that are rarely read cost few fetches, and the next frames are in flight while a reader
handles the previous ones. Only a partition with a backlog is fetched ahead of its reader, as memory allows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from aiokafka import errors
from aiokafka.errors import KafkaError

from duemq.bus.kafka.fetch.runs import FrameRun, RunPart
from duemq.bus.kafka.record_batches import decode
from duemq.bus.kafka.requests.wire import EARLIEST, LATEST, FetchedRecords, Wire
from duemq.model.errors import DuemqError
from duemq.model.messages.record import Partition, StoredRecord

log = logging.getLogger(__name__)

_FETCH_BYTES = 1 << 20
_BACKLOG_BYTES = _FETCH_BYTES // 4  # an answer of this size or more means that the partition has more frames
_LEAST_SHARE = 128 << 10  # 256 shards have 512 followed partitions
# A partition that is wanted only after a fetch was sent gets a separate fetch, on another connection, because a broker
# answers the requests on one connection in turn. The more fetches wait, the shorter the next one waits, so that a
# connection is soon free again. More connections would mean more and smaller fetches under load. No fetch waits longer
# than the first one; then all partitions share the next one.
_WAITS_MS = 500, 100, 40, 20
_TOGETHER_S = 0.004  # fetches that time out within this time of one another count as ending together
_TROUBLE_S = 5.0
_RETRY_S, _LONGEST_S = 0.1, 1.0  # pauses for a failing partition; they grow with the outage
_SENTENCE = "partition {1} of topic {0!r} cannot be read: {2}"
_DEPOSED_S = 1.0
_LEAP = 20_000  # if a reader is ahead by more offsets, the buffer jumps to its position instead of catching up


def _now() -> float:
    return asyncio.get_running_loop().time()


class PendingFetch(NamedTuple):
    """A fetch in flight. `ends_at`: when the broker answers at the latest, in seconds on the loop's clock."""

    task: asyncio.Task[None]
    ends_at: float


class PartitionBuffer:
    """The newest frames of one partition.

    `read_to`: the position of the foremost reader, -1 if there is none. `wants_more`: whether to fetch more. `fetch`:
    the fetch in flight that includes this partition. `log_start`: the first offset that the broker still has.
    `is_lost`: the broker does not have the next offset. A failing partition is left out of fetches until `rests_until`
    (on the loop's clock).
    """

    __slots__ = (
        "failing_since", "failure", "fetch", "is_lost", "log_start", "partition", "read_to", "rests_until", "run",
        "short_since", "started", "wants_more",
    )  # fmt: skip

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.restart()

    def restart(self) -> None:
        """Forget everything: the partition's end must be determined again."""
        self.run = FrameRun(0)
        self.started = self.is_lost = False
        self.wants_more = True
        self.read_to = -1
        self.log_start = 0
        self.fetch: object | None = None
        self.failing_since: float | None = None
        self.failure = ""
        self.short_since: float | None = None
        self.rests_until = 0.0

    def start(self, offset: int, read_to: int) -> None:
        """Start again at this offset. A fetch in flight is ignored."""
        self.run, self.read_to, self.started, self.fetch = FrameRun(offset), read_to, True, None
        self.wants_more, self.is_lost = True, False


class Fetcher:
    """The newest frames of all followed partitions.

    `wake_readers` is called with the partitions that have new frames; `known_end` returns the committed end of a
    partition, 0 if this process does not know it. `doubt` is called with the topic and number of each partition that
    begins to fail, and with the offset to read if the partition's log ends before that offset.

    Only the failing partition pauses: the others are fetched without it.
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
        self._buffers: dict[Partition, PartitionBuffer] = {}
        self._changed = asyncio.Event()
        self._pending: dict[tuple[int, int], PendingFetch] = {}  # by broker and number of the connection
        self._failing: set[PartitionBuffer] = set()
        self._placing: set[asyncio.Task[None]] = set()
        self._first_ends_at: dict[int, float] = {}  # by broker: `ends_at` of the last fetch on the first connection

    def follow(self, partition: Partition, known_end: int | None = None) -> PartitionBuffer:
        """Follow a partition from now on, starting at its known end or, without one, at the end that the broker
        reports."""
        buffer = self._buffers.get(partition)
        if buffer is None:
            buffer = self._buffers[partition] = PartitionBuffer(partition)
            if known_end is not None:
                buffer.start(known_end, -1)
            self._changed.set()
        return buffer

    def follows(self, partition: Partition) -> bool:
        return partition in self._buffers

    def first(self, partition: Partition) -> int:
        """The first offset among the partition's frames in memory."""
        return self._buffers[partition].run.first

    def reach(self, partition: Partition) -> int:
        buffer = self._buffers.get(partition)
        return buffer.run.end if buffer is not None and buffer.started else 0

    def read(self, partition: Partition, offset: int, max_records: int, max_bytes: int) -> list[StoredRecord] | None:
        """Frames in memory from `offset` on; None if the buffer begins later, so that they must be read from the
        broker."""
        buffer = self.follow(partition)
        run = buffer.run
        offset = max(offset, buffer.log_start)
        if buffer.started and offset < run.first:
            return None
        if not buffer.started or offset > run.end + _LEAP:
            buffer.start(offset, offset)
            self._changed.set()
            return []
        records = run.read(offset, max_records, max_bytes)
        read_to = records[-1].offset + 1 if records else offset
        if read_to > buffer.read_to:
            buffer.read_to = read_to
            run.drop_before(read_to, self._share)
        if not records or read_to >= run.last:
            self.want(partition)
        return records

    def want(self, partition: Partition) -> None:
        """Request more frames for a reader that has read all frames in memory."""
        buffer = self.follow(partition)
        if not buffer.wants_more:
            buffer.wants_more = True
            self._changed.set()

    def trim(self, partition: Partition, before: int) -> None:
        buffer = self._buffers.get(partition)
        if buffer is not None:
            buffer.run.cut(before)

    def restart(self, topic: str) -> None:
        """Forget a topic's frames: the topic was recreated or truncated."""
        for buffer in self._buffers.values():
            if buffer.partition[0] == topic:
                buffer.restart()
                self._failing.discard(buffer)
        self._changed.set()

    def troubles(self) -> dict[Partition, str]:
        """The partitions that could not be read for some seconds, each with a sentence that explains why."""
        since = _now() - _TROUBLE_S
        return {
            buffer.partition: _SENTENCE.format(*buffer.partition, buffer.failure)
            for buffer in self._failing
            if buffer.failing_since is not None and buffer.failing_since < since
        }

    # --- the pump -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled, keep every wanted partition in a fetch that waits for new frames."""
        try:
            while True:
                self._changed.clear()
                self._launch()
                await self._changed.wait()
        finally:
            tasks = [*(fetch.task for fetch in self._pending.values()), *self._placing]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _share(self) -> int:
        return max(self._max_bytes // max(len(self._buffers), 1), _LEAST_SHARE)

    def _launch(self) -> None:
        now, idle = _now(), defaultdict[int, list[PartitionBuffer]](list)
        for buffer in self._buffers.values():
            if buffer.fetch is not None or not buffer.wants_more or buffer.rests_until > now:
                continue
            node = self._wire.leader(*buffer.partition)
            if node is None:
                self._record_failure(buffer, errors.LeaderNotAvailableError("no broker leads it"))
            elif buffer.is_lost or not buffer.started:
                self._begin_placing(buffer)
            else:
                idle[node].append(buffer)
        for node, buffers in idle.items():
            self._launch_at(node, buffers)

    def _begin_placing(self, buffer: PartitionBuffer) -> None:
        task = asyncio.create_task(self._place(buffer), name=f"kafka place {buffer.partition}")
        self._placing.add(task)
        buffer.fetch = task

        def on_done(task: asyncio.Task[None]) -> None:
            self._placing.discard(task)
            if buffer.fetch is task:
                buffer.fetch = None
            self._changed.set()

        task.add_done_callback(on_done)

    async def _place(self, buffer: PartitionBuffer) -> None:
        """Start a task that determines the offset at which a partition continues."""
        where, is_new = buffer.partition, not buffer.started
        try:
            offset = (await self._wire.offsets([where], LATEST if is_new else EARLIEST))[where]
            if is_new and not buffer.started:  # a reader may have begun before the answer came
                buffer.start(offset, -1)
            elif buffer.is_lost and offset > buffer.run.end:
                buffer.log_start = offset
                buffer.start(offset, buffer.read_to)
                self._wake_readers([where])
            elif buffer.is_lost:
                self._doubt_log(*where, buffer.run.end)
                raise errors.OffsetOutOfRangeError(f"the log ends before offset {buffer.run.end}")
        except Exception as error:  # any error is retried
            buffer.is_lost = False  # the log may have grown
            self._record_failure(buffer, error)

    def _launch_at(self, node: int, buffers: list[PartitionBuffer]) -> None:
        """Start a fetch on a free connection. But if other fetches are about to end, wait for them, so that their
        partitions can share it."""
        loop = asyncio.get_running_loop()
        now, first_ends_at = loop.time(), self._first_ends_at.get(node, 0.0)
        if abs(first_ends_at - now) <= _TOGETHER_S and (pause_s := self._until_together(node, now)) > 0:
            loop.call_later(pause_s, self._changed.set)
            return
        for number, wait_ms in enumerate(_WAITS_MS):
            if (node, number) not in self._pending:
                if number == 0:
                    self._first_ends_at[node] = now + wait_ms / 1000
                elif (left_ms := round((first_ends_at - now) * 1000)) > 0:
                    wait_ms = min(wait_ms, left_ms)
                self._start(node, number, buffers, wait_ms)
                return

    def _until_together(self, node: int, now: float) -> float:
        """The time (s) until the end of those fetches from this broker that are about to time out; 0 if there are
        none."""
        ends = [fetch.ends_at for (broker, _), fetch in self._pending.items() if broker == node]
        return max((end + _TOGETHER_S - now for end in ends if abs(end - now) <= _TOGETHER_S), default=0.0)

    def _start(self, node: int, number: int, buffers: list[PartitionBuffer], wait_ms: int) -> None:
        connection = f"tail-{number}"
        task = asyncio.create_task(
            self._fly(node, connection, buffers, wait_ms), name=f"kafka fetch {node} {connection}"
        )
        self._pending[node, number] = PendingFetch(task, asyncio.get_running_loop().time() + wait_ms / 1000)
        for buffer in buffers:
            buffer.fetch = task

        def on_done(task: asyncio.Task[None]) -> None:
            del self._pending[node, number]
            for buffer in buffers:
                if buffer.fetch is task:
                    buffer.fetch = None
            self._changed.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("kafka fetch failed: %r", error, extra={"action": "kafka_fetch"})

        task.add_done_callback(on_done)

    async def _fly(self, node: int, connection: str, buffers: list[PartitionBuffer], wait_ms: int) -> None:
        """Make one fetch. After any error, the next fetch retries after a pause."""
        offsets = {buffer.partition: buffer.run.end for buffer in buffers}
        try:
            answers = await self._wire.fetch(node, offsets, wait_ms, _FETCH_BYTES, connection)
        except (KafkaError, DuemqError, OSError) as error:
            for buffer in buffers:
                self._record_failure(buffer, error)
            return
        grown = []
        for buffer in buffers:
            answer = answers.get(buffer.partition)
            if answer is None or buffer.run.end != offsets[buffer.partition]:
                continue  # a reader has moved the buffer since
            if answer.error is errors.OffsetOutOfRangeError:
                buffer.is_lost = True
                continue
            try:
                if self._add_answer(buffer, answer):
                    grown.append(buffer.partition)
                if buffer.failing_since is not None:
                    buffer.failing_since = None
                    self._failing.discard(buffer)
                self._doubt(buffer)
            except Exception as error:  # a batch that cannot be read must stop neither this nor other partitions
                self._record_failure(buffer, error)
        self._wake_readers(grown)

    def _add_answer(self, buffer: PartitionBuffer, answer: FetchedRecords) -> bool:
        """True if the partition advanced. Raises KafkaError."""
        if answer.error is not None:
            raise answer.error()
        buffer.log_start = max(buffer.log_start, answer.start)
        first = buffer.run.end
        batch = decode(answer.message_set, first, answer.aborted)
        if batch.next_offset == first:
            return False
        buffer.run.add(RunPart(first, batch.next_offset, batch.records, batch.size))
        buffer.run.drop_before(buffer.read_to, self._share)
        buffer.wants_more = batch.size >= _BACKLOG_BYTES and buffer.run.bytes_after(buffer.read_to) < self._share
        return True

    def _doubt(self, buffer: PartitionBuffer) -> None:
        """Ask who leads the partition: a broker that lacks committed frames may be a former leader that does not know
        that it was replaced."""
        now = _now()
        if self._known_end(buffer.partition) <= buffer.run.end:
            buffer.short_since = None
        elif buffer.short_since is None:
            buffer.short_since = now
        elif now - buffer.short_since > _DEPOSED_S:
            buffer.short_since = now
            self._wire.client.force_metadata_update()

    def _record_failure(self, buffer: PartitionBuffer, error: Exception) -> None:
        """Make a partition pause, and ask for its leader."""
        now = _now()
        buffer.failure = str(error) or type(error).__name__
        if buffer.failing_since is None:
            buffer.failing_since = now
            self._failing.add(buffer)
            self._doubt_log(*buffer.partition, None)
            log.warning(
                "kafka: partition %d of %s cannot be read now: %r", buffer.partition[1], buffer.partition[0], error,
                extra={"action": "kafka_fetch", "topic": buffer.partition[0]},
            )  # fmt: skip
        pause_s = min(max(_RETRY_S, (now - buffer.failing_since) / 10), _LONGEST_S)
        buffer.rests_until = now + pause_s
        asyncio.get_running_loop().call_later(pause_s + _TOGETHER_S, self._changed.set)  # after the pause
        self._wire.client.force_metadata_update()
