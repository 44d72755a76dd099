"""A store in RocksDB, for one process at a time: returned results survive kill -9 and a power failure.

A thread executes all waiting requests with one write and one sync; further requests collect during the sync. The thread
also makes the decisions, in the order of the calls, so that the event loop never waits for the disk.

If a write or a read fails, its outcome is unknown: only the contents of the reopened database are certain. So all
waiting calls get StoreFailed, and the thread closes the database and tries to reopen it, with growing pauses. Until it
is open, every call gets StoreFailed. The session stays the same, so running work keeps its owner.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, NamedTuple, TypeVar

from rocksdict import Rdict, WriteBatch

from duemq.client.idempotency.base import Begun, InDoubt
from duemq.client.idempotency.rocks_layout import (
    MINUTE_MS,
    SessionOver,
    expiry_key,
    open_folder,
    read_row,
    reopen_folder,
    stage_row,
)
from duemq.client.idempotency.states import KeyRow, begin, finish, release
from duemq.model.errors import CorruptStore, StoreFailed, Unavailable
from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.model.rocksdb_errors import translate

log = logging.getLogger(__name__)

_SWEEP_ROWS = 1_000  # per sweep
_SWEEP_BEHIND, _SWEEP_EACH = 20, 4  # per group of requests, and in addition per request, which adds at most one row
_GROUP_REQUESTS = 4_000
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0  # before an attempt to reopen the database
_STEADY_S = 60.0  # after this time without a failure, pauses restart with the shortest

T = TypeVar("T")


class _Request(NamedTuple):
    key: bytes
    decide: Callable[[KeyRow | None], tuple[KeyRow | None, Any]]
    answer: asyncio.Future[Any]
    now_ms: int


class _Sweep(NamedTuple):
    now_ms: int
    answer: asyncio.Future[Any]


class RocksStore:
    """The store; create it with `open`. `failpoint`: a hook for tests, called with the name of each step, in the
    store's thread."""

    shared = False

    def __init__(self, folder: Path, db: Rdict, session: int, failpoint: Failpoint) -> None:
        self._folder, self._db, self._session, self._failpoint = folder, db, session, failpoint
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Request | _Sweep] = []
        self._busy, self._idle = False, asyncio.Event()
        self._idle.set()
        self._failure, self._closed = "", False
        self._ending = Event()
        self._end: asyncio.Task[None] | None = None
        self._pause_s, self._is_open, self._since = _PAUSE_S, True, time.monotonic()
        self._swept = 0  # expired rows have been removed for all minutes before this one
        self._work: SimpleQueue[list[_Request | _Sweep] | None] = SimpleQueue()
        self._worker = Thread(target=self._run, name="duemq-idempotency", daemon=True)
        self._worker.start()

    @classmethod
    async def open(cls, folder: Path | str, failpoint: Failpoint = no_failpoint) -> RocksStore:
        """Open a store. Raises FolderRefused (the folder is in use, or contains something else or another version),
        CorruptStore, DiskFull or StoreFailed."""
        path = Path(folder)
        db, session = await asyncio.to_thread(open_folder, path)
        return cls(path, db, session, failpoint)

    async def begin(
        self,
        key: bytes,
        owner: str,
        now_ms: int,
        lease_ms: int,
        keep_ms: int,
        at_most_once: bool = False,
        over: str = "",
    ) -> Begun:
        decide = partial(
            begin, key=key, owner=owner, now_ms=now_ms, lease_ms=lease_ms, keep_ms=keep_ms, at_most_once=at_most_once,
            over=over,
        )  # fmt: skip
        return await self._submit(key, decide, now_ms)

    async def finish(self, key: bytes, owner: str, result: bytes, now_ms: int, keep_ms: int) -> bool:
        decide = partial(finish, owner=owner, result=result, now_ms=now_ms, keep_ms=keep_ms)
        return await self._submit(key, decide, now_ms)

    async def release(self, key: bytes, owner: str) -> bool:
        return await self._submit(key, partial(release, owner=owner), 0)

    async def expire(self, now_ms: int) -> int:
        """Remove the rows that expired in past minutes, and return their number."""
        count, more = 0, True
        while more:
            self._check()
            answer: asyncio.Future[tuple[int, bool]] = self._loop.create_future()
            self._enqueue(_Sweep(now_ms, answer))
            swept, more = await answer
            count += swept
        return count

    async def close(self) -> None:
        """Refuse new calls, finish waiting ones, and close the store. Concurrent calls of `close` wait for the same
        end."""
        self._closed = True
        if self._end is None:
            self._end = asyncio.create_task(self._finish_and_end(), name="close-idempotency")
        await asyncio.shield(self._end)

    async def _finish_and_end(self) -> None:
        await self._idle.wait()
        self._ending.set()
        self._work.put(None)
        await asyncio.to_thread(self._worker.join)

    # --- in the event loop ----------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise Unavailable("the store of idempotency keys is closed")
        if self._failure:
            raise StoreFailed(f"the store of idempotency keys failed and is not reopened yet: {self._failure}")

    async def _submit(self, key: bytes, decide: Callable[[KeyRow | None], tuple[KeyRow | None, T]], now_ms: int) -> T:
        self._check()
        answer: asyncio.Future[T] = self._loop.create_future()
        self._enqueue(_Request(key, decide, answer, now_ms))
        return await answer

    def _enqueue(self, request: _Request | _Sweep) -> None:
        self._waiting.append(request)
        if not self._busy:
            self._busy = True
            self._idle.clear()
            self._loop.call_soon(self._go)  # later, so that other requests in this turn of the loop share the sync

    def _go(self) -> None:
        group, self._waiting = self._waiting[:_GROUP_REQUESTS], self._waiting[_GROUP_REQUESTS:]
        self._work.put(group)

    def _answer_group(self, group: list[_Request | _Sweep], answers: list[Any]) -> None:
        for request, answer in zip(group, answers, strict=True):
            if request.answer.done():
                continue  # the caller was cancelled
            if isinstance(answer, Exception):
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(answer)
        if self._waiting:
            self._loop.call_soon(self._go)
        else:
            self._busy = False
            self._idle.set()

    def _fail_all(self, group: list[_Request | _Sweep], failure: Exception) -> None:
        """Fail this group and all waiting calls: until the database is reopened, it is unknown whether the write took
        effect."""
        self._failure = str(translate("writing idempotency keys", failure))
        log.warning(
            "store of idempotency keys failed and is being reopened: %s", self._failure, extra={"action": "store"}
        )
        group, self._waiting = group + self._waiting, []
        answers: list[Any] = [StoreFailed(self._failure) for _ in group]
        for answer in answers:
            answer.__cause__ = failure
        self._answer_group(group, answers)

    def _not_yet(self, failure: Exception, pause_s: float) -> None:
        self._failure = str(failure)
        log.error(
            "store of idempotency keys cannot be reopened, the next attempt is in %g s: %s", pause_s, failure,
            extra={"action": "store"},
        )  # fmt: skip

    def _never(self, failure: SessionOver) -> None:
        self._failure = str(failure)
        log.critical("store of idempotency keys stays closed: %s", failure, extra={"action": "store"})

    def _again(self) -> None:
        self._failure = ""
        log.warning("store of idempotency keys in %s is open again", self._folder, extra={"action": "store"})

    # --- in the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (group := self._work.get()) is not None:
            try:
                answers = self._carry_out(group)
            except Exception as error:
                self._tell(self._fail_all, group, error)
                self._close_db()
                self._reopen()
            else:
                self._tell(self._answer_group, group, answers)
                self._sweep_behind(group)
        self._close_db()

    def _tell(self, callback: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop was closed before the store, so no caller waits any more
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _close_db(self) -> None:
        """Close the database. The writes of answered calls are synced, so a failure here changes no result."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._db.close()
        except Exception as error:
            log.warning("store of idempotency keys cannot close: %r", error, extra={"action": "store"})

    def _reopen(self) -> None:
        if time.monotonic() - self._since > _STEADY_S:
            self._pause_s = _PAUSE_S
        while not self._ending.wait(self._pause_s):
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            try:
                self._failpoint("before_reopen")
                self._db = reopen_folder(self._folder, self._session)
            except SessionOver as error:
                self._tell(self._never, error)
                return
            except Exception as error:
                self._tell(self._not_yet, error, self._pause_s)
            else:
                self._is_open, self._since = True, time.monotonic()
                self._tell(self._again)
                return

    def _carry_out(self, group: list[_Request | _Sweep]) -> list[Any]:
        rows: dict[bytes, KeyRow | None] = {}
        answers: list[Any] = []
        batch = WriteBatch(raw_mode=True)
        for request in group:
            if isinstance(request, _Sweep):
                answers.append(None)
                continue
            key = request.key
            try:
                row = rows[key] if key in rows else read_row(self._db, key, self._session)
                after, answer = request.decide(row)
            except (InDoubt, CorruptStore) as error:
                answers.append(error)
                continue
            rows[key] = after
            answers.append(answer)
            if after is not row:
                stage_row(batch, key, after, self._session)
        if not batch.is_empty():
            self._failpoint("before_write")
            self._db.write(batch)
            self._failpoint("after_write")
            self._db.flush_wal(True)
            self._failpoint("after_sync")
        for at, request in enumerate(group):
            if isinstance(request, _Sweep):
                answers[at] = self._sweep(request.now_ms)
        return answers

    def _sweep_behind(self, group: list[_Request | _Sweep]) -> None:
        now_ms = max(request.now_ms for request in group)
        swept = any(isinstance(request, _Sweep) for request in group)
        if not swept and now_ms // MINUTE_MS > self._swept:
            try:
                self._sweep(now_ms, min(_SWEEP_BEHIND + _SWEEP_EACH * len(group), _SWEEP_ROWS))
            except Exception as error:  # if the error persists, the next request fails and the database is reopened
                log.warning("store of idempotency keys cannot expire: %r", error, extra={"action": "expire"})

    def _sweep(self, now_ms: int, most: int = _SWEEP_ROWS) -> tuple[int, bool]:
        """Remove expired rows. Returns their number, and whether more may be left. `most`: how many entries to
        check."""
        end = expiry_key(now_ms)
        batch, entry_count, row_count = WriteBatch(raw_mode=True), 0, 0
        first = last = b""
        entries = self._db.iter()
        entries.seek(b"x")
        while entries.valid() and (entry := bytes(entries.key())) < end and entry_count < most:
            first, last, entry_count = first or entry, entry, entry_count + 1
            key = entry[len(end) :]
            try:
                row = read_row(self._db, key, self._session)
                expired = row is not None and row.expires_ms <= now_ms  # the row may have been given a later expiry
            except CorruptStore:
                expired = True  # otherwise the sweep would stop at this row, and never remove a later one
            if expired:
                batch.delete(b"k" + key)
                row_count += 1
            entries.next()
        entries.status()
        if entry_count:
            batch.delete_range(first, last + b"\0")
            self._db.write(batch)
        more = entry_count == most
        if not more:
            self._swept = max(self._swept, now_ms // MINUTE_MS)
        return row_count, more
