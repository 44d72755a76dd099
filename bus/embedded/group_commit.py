"""Group commit: all pending requests share one write and one sync; while one group syncs, the next one forms.

    submit -> waiting -> [stage, in order of arrival] -> write -> sync (own thread) -> publish -> answers

Nothing of a group is visible before its sync. A failed group is the last one: only reopening the log shows whether it
is on disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from rocksdict import Rdict, WriteBatch

from duemq.bus.base import AppendResult
from duemq.bus.embedded.chunk import Chunk, cut, pack_chunk
from duemq.bus.embedded.layout import PartitionStart
from duemq.bus.embedded.log_topic import LogPartition, LogTopic
from duemq.model.errors import DuemqError, StoreFailed, Unavailable
from duemq.model.rocksdb_errors import translate

# A group of this size takes no further requests, to bound what one write copies, and how long it holds the GIL.
GROUP_BYTES = 8 << 20

T = TypeVar("T")


class Trim(NamedTuple):
    """The new start of a partition, and the offset below which its chunks are gone."""

    start: PartitionStart
    cut: int


class CommitGroup:
    """What one write and one sync make durable, and what is published after that."""

    def __init__(self, timestamp: int) -> None:
        self.timestamp = timestamp
        self.batch = WriteBatch(raw_mode=True)
        self.bytes = 0
        self.topics: dict[str, LogTopic] = {}
        self.trims: dict[LogPartition, Trim] = {}
        self.gaps: dict[LogPartition, tuple[tuple[int, int], ...]] = {}
        self.chunks: list[tuple[LogPartition, Chunk]] = []
        self.answers: list[tuple[asyncio.Future[Any], Any]] = []
        self._growth: dict[LogPartition, tuple[list[bytes], list[int]]] = {}

    def append(self, partition: LogPartition, frames: Sequence[bytes]) -> AppendResult:
        group_frames, lengths = self._growth.setdefault(partition, ([], []))
        first = partition.end + len(group_frames)
        frame_lengths = list(map(len, frames))
        group_frames += frames
        lengths += frame_lengths
        self.bytes += sum(frame_lengths)
        return AppendResult(first, self.timestamp)

    def seal(self) -> None:
        """Turn the appended frames into chunks, which requests to the same partition share."""
        for partition, (frames, lengths) in self._growth.items():
            if frames:
                for chunk, sizes in cut(frames, lengths, partition.end, self.timestamp, partition.position):
                    self.batch.put(partition.key(chunk.first), pack_chunk(chunk, sizes))
                    self.chunks.append((partition, chunk))


class GroupCommit:
    """`begin` makes an empty group, `publish` shows a durable one to readers, `on_end` is called once it failed.

    `failpoint` is the seam for tests: it is called with the name of each step and may raise, or kill the process.
    """

    def __init__(
        self,
        db: Rdict,
        begin: Callable[[], CommitGroup],
        publish: Callable[[CommitGroup], None],
        on_end: Callable[[], None],
        failpoint: Callable[[str], None] | None,
    ) -> None:
        self._db, self._begin, self._publish, self._on_end = db, begin, publish, on_end
        self._failpoint = failpoint
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Callable[[CommitGroup], Any], asyncio.Future[Any]]] = deque()
        self._busy = False
        self._soon: asyncio.Handle | None = None  # starts the next group
        self._idle = asyncio.Event()
        self._idle.set()
        self._failure = ""
        self._closed = False
        # An executor's futures would cost more than the sync: a queue and a thread are enough.
        self._to_sync: SimpleQueue[CommitGroup | None] = SimpleQueue()
        self._syncer = Thread(target=self._sync, name="duemq-log-sync", daemon=True)
        self._syncer.start()

    @property
    def failed(self) -> bool:
        return bool(self._failure)

    def check(self) -> None:
        """Raises Unavailable (closed) or StoreFailed."""
        if self._closed:
            raise Unavailable("the log is closed")
        if self._failure:
            raise StoreFailed(f"the log accepts no requests until it is reopened: {self._failure}")

    async def submit(self, stage: Callable[[CommitGroup], T], *, at_once: bool = False) -> T:
        """Return the result of `stage` once its group is durable.

        Requests of the same turn of the event loop share its group, unless it must go `at_once`: under load a turn
        takes milliseconds, and a shard's cycle is large enough.

        A DuemqError of `stage` goes to the caller alone: it must be raised before anything was added to the group.
        """
        self.check()
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append((stage, future))
        if not self._busy:
            self._busy = True
            self._idle.clear()
            self._soon = self._loop.call_soon(self._write)
        if at_once and self._soon is not None:
            self._soon.cancel()
            self._write()
        return await future

    async def close(self) -> None:
        """Refuse new requests, finish pending ones. Idempotent."""
        self._closed = True
        await self._idle.wait()
        self._to_sync.put(None)
        self._syncer.join()
        self._on_end()

    def _write(self) -> None:
        self._soon = None
        group = self._begin()
        try:
            while self._waiting and group.bytes < GROUP_BYTES:
                stage, future = self._waiting[0]
                if not future.cancelled():
                    try:
                        group.answers.append((future, stage(group)))
                    except DuemqError as error:
                        future.set_exception(error)
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
        self._to_sync.put(group)

    def _sync(self) -> None:
        while (group := self._to_sync.get()) is not None:
            failure: Exception | None = None
            try:
                self._db.flush_wal(True)
            except Exception as error:
                failure = error
            with suppress(RuntimeError):  # the loop was closed without closing the bus: there are no waiters
                self._loop.call_soon_threadsafe(self._after_sync, group, failure)

    def _after_sync(self, group: CommitGroup, failure: Exception | None) -> None:
        try:
            if failure is not None:
                raise failure
            self._step("after_sync")
            self._finish(group)
        except Exception as error:
            self._fail(group, error)

    def _finish(self, group: CommitGroup) -> None:
        self._publish(group)
        for future, answer in group.answers:
            if not future.done():
                future.set_result(answer)
        if self._waiting:
            # Not at once: answered callers may have more for the next group.
            self._soon = self._loop.call_soon(self._write)
        else:
            self._busy = False
            self._idle.set()

    def _fail(self, group: CommitGroup, cause: Exception) -> None:
        error = translate("writing the log", cause)
        self._failure = str(error)
        for future in [future for future, _ in group.answers] + [future for _, future in self._waiting]:
            if not future.done():
                failure = type(error)(self._failure)
                failure.__cause__ = cause
                future.set_exception(failure)
        self._waiting.clear()
        self._busy = False
        self._idle.set()
        self._on_end()

    def _step(self, name: str) -> None:
        if self._failpoint is not None:
            self._failpoint(name)
