"""Group commit: all pending requests share one write and one sync; while one group is being synced, the next one forms.

    submit -> stage, in order of arrival -> write -> sync -> publish -> answers

Before a group's sync, only masters see its frames (`AheadView`), and the commits that they base on these frames are in
this group or in a later one. One group is written and synced at a time, as one record of RocksDB's write-ahead log;
`bus/embedded/wal.py` and `LogSync` rely on this. After a failed group no other is written: only reopening the log shows
whether the group is on disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from rocksdict import Rdict, WriteBatch

from duemq.bus.base import AppendResult
from duemq.bus.embedded.chunk import Chunk, cut, pack_chunk
from duemq.bus.embedded.layout import PartitionStart
from duemq.bus.embedded.log_topic import LogPartition, LogTopic
from duemq.bus.embedded.sync.aio import Aio
from duemq.bus.embedded.sync.log_sync import LogSync
from duemq.model.errors import DuemqError, StoreFailed, Unavailable
from duemq.model.rocksdb_errors import translate

# A group of this size accepts no further requests, to limit how much one write copies, and how long it holds the GIL.
GROUP_BYTES = 8 << 20
# After this time, requests that wait for a cycle are written without it: their shard may have no master.
HOLD_S = 0.005

T = TypeVar("T")


class Trim(NamedTuple):
    """The new start of a partition, and the offset below which its chunks are deleted."""

    start: PartitionStart
    cut: int


Answer = tuple[asyncio.Future[Any], Any]
"""The future of a request, and the value that its stage returned."""


class Growth(NamedTuple):
    """Frames that a group appends to a partition with one timestamp (ms), and their lengths. `first`: the first frame's
    offset."""

    first: int
    timestamp: int
    frames: list[bytes]
    lengths: list[int]


class CommitGroup:
    """The changes that one write and one sync make durable, and that are published afterwards."""

    def __init__(self) -> None:
        self.timestamp = 0  # of the request that is being staged: a group may be open for several ms
        self.batch = WriteBatch(raw_mode=True)
        self.bytes = 0
        self.topics: dict[str, LogTopic] = {}
        self.trims: dict[LogPartition, Trim] = {}
        self.gaps: dict[LogPartition, tuple[tuple[int, int], ...]] = {}
        self.chunks: list[tuple[LogPartition, Chunk]] = []
        self.answers: list[Answer] = []
        self.late_answers: list[Answer] = []  # given last: by then the cycle has answered the commands
        self.awaits_cycle = True  # whether all requests wait for a cycle
        self._growth: dict[LogPartition, list[Growth]] = {}

    def append(self, partition: LogPartition, frames: Sequence[bytes]) -> AppendResult:
        growths = self._growth.setdefault(partition, [])
        if not growths or growths[-1].timestamp != self.timestamp:
            growths.append(Growth(partition.assigned, self.timestamp, [], []))
        growth = growths[-1]
        first, lengths = partition.assigned, list(map(len, frames))
        partition.assigned += len(lengths)
        growth.frames.extend(frames)
        growth.lengths.extend(lengths)
        self.bytes += sum(lengths)
        return AppendResult(first, self.timestamp)

    def staged(self, partition: LogPartition) -> Iterator[Chunk]:
        """The frames that the group will append to a partition, as chunks without positions."""
        for first, timestamp, frames, lengths in self._growth.get(partition, ()):
            yield Chunk(first, timestamp, 0, frames, sum(lengths))

    def seal(self) -> None:
        """Turn the appended frames into chunks, which requests to the same partition share. The previous group must be
        published already."""
        for partition, growths in self._growth.items():
            position = partition.position
            for first, timestamp, frames, lengths in growths:
                if frames:
                    for chunk, sizes in cut(frames, lengths, first, timestamp, position):
                        self.batch.put(partition.key(chunk.first), pack_chunk(chunk, sizes))
                        self.chunks.append((partition, chunk))
                    position += sum(lengths)


class GroupCommit:
    """`clock` returns epoch ms and never goes back. `publish` shows a durable group to readers. `on_end` is called once
    a group has failed.

    `failpoint` is for tests: it is called with the name of each step, and may raise or kill the process.
    """

    def __init__(
        self,
        db: Rdict,
        clock: Callable[[], int],
        publish: Callable[[CommitGroup], None],
        on_end: Callable[[], None],
        failpoint: Callable[[str], None] | None,
        aio: Callable[[], Aio | None],
        on_sync: Callable[[bool], None],
    ) -> None:
        self._db, self._clock, self._publish, self._on_end = db, clock, publish, on_end
        self._failpoint = failpoint
        self._loop = asyncio.get_running_loop()
        self._open: CommitGroup | None = None  # accepts requests
        self._in_sync: CommitGroup | None = None
        self._waiting: deque[tuple[Callable[[CommitGroup], Any], asyncio.Future[Any]]] = deque()  # not staged yet
        self._soon: asyncio.Handle | None = None  # writes the next group
        self._hold: asyncio.TimerHandle | None = None  # writes it later, if no cycle comes before
        self._idle = asyncio.Event()
        self._idle.set()
        self._failure = ""
        self._closed = False
        self._sync = LogSync(db, self._after_sync, aio, on_sync)

    @property
    def failed(self) -> bool:
        return bool(self._failure)

    def check(self) -> None:
        """Raises Unavailable (closed) or StoreFailed."""
        if self._closed:
            raise Unavailable("the log is closed")
        if self._failure:
            raise StoreFailed(f"the log accepts no requests until it is reopened: {self._failure}")

    async def submit(
        self,
        stage: Callable[[CommitGroup], T],
        *,
        at_once: bool = False,
        awaits_cycle: bool = False,
        after_sync: bool = False,
    ) -> T:
        """Return the result of `stage` once its group is durable.

        Requests from the same turn of the event loop share a group. A request with `at_once` does not wait for others:
        under load a turn takes milliseconds, and a shard's cycle is large enough for a group. `awaits_cycle`: the
        caller will next wait for a cycle. A group with only such requests waits, for up to `HOLD_S`, until another kind
        of request arrives, usually that cycle. `after_sync`: the stage depends on the state that earlier groups
        publish, so it runs while no group is being synced.

        If `stage` raises a DuemqError, only this caller gets it. So `stage` must raise it before it adds anything to
        the group.
        """
        self.check()
        future: asyncio.Future[T] = self._loop.create_future()
        self._idle.clear()
        if after_sync or self._waiting or (self._open is not None and self._open.bytes >= GROUP_BYTES):
            self._waiting.append((stage, future))
            awaits_cycle = False
        else:
            group = self._open = self._open or CommitGroup()
            try:
                self._stage(group, stage, future, awaits_cycle=awaits_cycle)
            except Exception as error:
                self._fail(group, error)
                self.check()
            group.awaits_cycle &= awaits_cycle
        if self._in_sync is None:
            if at_once:
                self._write()
            else:
                self._write_soon(awaits_cycle=awaits_cycle)
        return await future

    def staged(self, partition: LogPartition) -> Iterator[Chunk]:
        """A partition's frames that are not durable yet, in order."""
        for group in (self._in_sync, self._open):
            if group is not None:
                yield from group.staged(partition)

    async def close(self) -> None:
        """Refuse new requests, finish pending ones. Idempotent."""
        self._closed = True
        await self._idle.wait()
        self._sync.close()
        self._on_end()

    def _stage(
        self, group: CommitGroup, stage: Callable[[CommitGroup], T], future: asyncio.Future[T], *, awaits_cycle: bool
    ) -> None:
        answers = group.late_answers if awaits_cycle else group.answers
        group.timestamp = self._clock()
        try:
            answers.append((future, stage(group)))
        except DuemqError as error:
            future.set_exception(error)

    def _write_soon(self, *, awaits_cycle: bool) -> None:
        if self._soon is not None:
            return
        if not awaits_cycle:
            self._soon = self._loop.call_soon(self._write)
        elif self._hold is None:
            self._hold = self._loop.call_later(HOLD_S, self._write)

    def _write(self) -> None:
        for handle in (self._soon, self._hold):
            if handle is not None:
                handle.cancel()
        self._soon = self._hold = None
        group, self._open = self._open or CommitGroup(), None
        try:
            while self._waiting and group.bytes < GROUP_BYTES:
                stage, future = self._waiting[0]
                if not future.cancelled():
                    self._stage(group, stage, future, awaits_cycle=False)
                self._waiting.popleft()
            group.seal()
            if group.batch.is_empty():
                self._finish(group)
                return
            self._step("before_write")
            self._db.write(group.batch)
            self._step("after_write")
        except Exception as error:
            self._fail(group, error)
            return
        self._in_sync = group
        self._sync.start()

    def _after_sync(self, failure: Exception | None) -> None:
        group, self._in_sync = self._in_sync, None
        assert group is not None
        try:
            if failure is not None:
                raise failure
            self._step("after_sync")
            self._finish(group)
        except Exception as error:
            self._fail(group, error)

    def _finish(self, group: CommitGroup) -> None:
        self._publish(group)
        for future, answer in chain(group.answers, group.late_answers):
            if not future.done():
                future.set_result(answer)
        if self._open is not None or self._waiting:
            # Not at once: callers that were just answered may add requests to the next group.
            self._write_soon(awaits_cycle=self._open is not None and self._open.awaits_cycle and not self._waiting)
        else:
            self._idle.set()

    def _fail(self, group: CommitGroup, cause: Exception) -> None:
        error = translate("writing the log", cause)
        self._failure = str(error)
        staged = [group] if self._open is None else [group, self._open]
        answers = chain.from_iterable(chain(one.answers, one.late_answers) for one in staged)
        for future in chain((future for future, _ in answers), (future for _, future in self._waiting)):
            if not future.done():
                failure = type(error)(self._failure)
                failure.__cause__ = cause
                future.set_exception(failure)
        self._waiting.clear()
        self._open = None
        if self._in_sync is None:
            self._idle.set()
        self._on_end()

    def _step(self, name: str) -> None:
        if self._failpoint is not None:
            self._failpoint(name)
