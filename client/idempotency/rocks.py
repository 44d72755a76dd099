"""A store in RocksDB, for one process at once: what a call returned outlasts kill -9 and a power cut.

Everything that waits goes into one write and one sync in a thread; while it syncs the next ones gather. Decisions are
made in that thread too, in the order of the calls, so that the event loop never waits for the disk.

    b"k" key                            -> session (u64), since, until, expires (u64, ms), length of owner (u32),
                                           whether done (u8), owner, result
    b"x" minute of expiry (u64) key     -> nothing
    b"v"                                -> version of this layout (u16), session (u64)

Every row has an entry `x` of the minute in which it expires; entries of minutes that are over are removed as one range.
The session counts how often the store was opened. RocksDB lets one process have it at a time: so work that another
session began, and did not finish, is nobody's any more, however long its lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from struct import Struct
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options, Rdict, WriteBatch

from duemq.client.idempotency.base import Begun, InDoubt
from duemq.client.idempotency.states import Row, begin, finish, release
from duemq.model.errors import FolderRefused, StoreFailed, Unavailable
from duemq.model.fault import Fault, no_fault
from duemq.model.foreign import translate, translated

log = logging.getLogger(__name__)

VERSION = 1
_VERSION_KEY = b"v"
_HEAD = Struct(">HQ")
_ROW = Struct(">QQQQIB")
_MINUTE = Struct(">Q")
_MINUTE_MS = 60_000
_SWEEP_ROWS = 1_000  # at once
_SWEEP_BEHIND, _SWEEP_EACH = 20, 4  # behind a group, and for each of its requests, which adds one at most
_GROUP_REQUESTS = 4_000

T = TypeVar("T")


class _Request(NamedTuple):
    key: bytes
    decide: Callable[[Row | None], tuple[Row | None, Any]]
    answer: asyncio.Future[Any]
    now_ms: int


class _Sweep(NamedTuple):
    now_ms: int
    answer: asyncio.Future[Any]


class RocksStore:
    """Opened with `open`. `fault` is the seam for tests: called with the name of each step, in the store's thread."""

    def __init__(self, db: Rdict, session: int, fault: Fault) -> None:
        self._db, self._session, self._fault = db, session, fault
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Request | _Sweep] = []
        self._busy, self._idle = False, asyncio.Event()
        self._idle.set()
        self._failure, self._closed = "", False
        self._swept = 0  # all minutes before this one
        self._work: SimpleQueue[list[_Request | _Sweep] | None] = SimpleQueue()
        self._worker = Thread(target=self._run, name="duemq-idempotency", daemon=True)
        self._worker.start()

    @classmethod
    async def open(cls, folder: Path | str, fault: Fault = no_fault) -> RocksStore:
        """Raises FolderRefused (in use, foreign or of another version), CorruptStore, DiskFull or StoreFailed."""
        db, session = await asyncio.to_thread(_open, Path(folder))
        return cls(db, session, fault)

    async def begin(
        self, key: bytes, owner: str, now_ms: int, lease_ms: int, keep_ms: int, at_most_once: bool = False
    ) -> Begun:
        decide = partial(
            begin, key=key, owner=owner, now_ms=now_ms, lease_ms=lease_ms, keep_ms=keep_ms, at_most_once=at_most_once
        )
        return await self._submit(key, decide, now_ms)

    async def finish(self, key: bytes, owner: str, result: bytes, now_ms: int, keep_ms: int) -> bool:
        decide = partial(finish, owner=owner, result=result, now_ms=now_ms, keep_ms=keep_ms)
        return await self._submit(key, decide, now_ms)

    async def release(self, key: bytes, owner: str) -> bool:
        return await self._submit(key, partial(release, owner=owner), 0)

    async def expire(self, now_ms: int) -> int:
        """Of minutes that are over."""
        gone, more = 0, True
        while more:
            self._check()
            answer: asyncio.Future[tuple[int, bool]] = self._loop.create_future()
            self._enqueue(_Sweep(now_ms, answer))
            swept, more = await answer
            gone += swept
        return gone

    async def close(self) -> None:
        """Refuse what comes, finish what waits."""
        if self._closed:
            return
        self._closed = True
        await self._idle.wait()
        self._work.put(None)
        await asyncio.to_thread(self._worker.join)
        self._db.close()

    # --- in the event loop ----------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise Unavailable("the store of idempotency keys is closed")
        if self._failure:
            raise StoreFailed(f"the store of idempotency keys takes nothing until it is opened anew: {self._failure}")

    async def _submit(self, key: bytes, decide: Callable[[Row | None], tuple[Row | None, T]], now_ms: int) -> T:
        self._check()
        answer: asyncio.Future[T] = self._loop.create_future()
        self._enqueue(_Request(key, decide, answer, now_ms))
        return await answer

    def _enqueue(self, request: _Request | _Sweep) -> None:
        self._waiting.append(request)
        if not self._busy:
            self._busy = True
            self._idle.clear()
            self._loop.call_soon(self._go)  # others of this turn of the loop share the sync

    def _go(self) -> None:
        group, self._waiting = self._waiting[:_GROUP_REQUESTS], self._waiting[_GROUP_REQUESTS:]
        self._work.put(group)

    def _answered(self, group: list[_Request | _Sweep], answers: list[Any], failure: Exception | None) -> None:
        if failure is not None:
            error = translate("writing idempotency keys", failure)
            self._failure = str(error)
            log.error("store of idempotency keys failed: %s", error, extra={"action": "store"})
            answers = [type(error)(self._failure) for _ in group + self._waiting]
            group, self._waiting = group + self._waiting, []
        for request, answer in zip(group, answers, strict=True):
            if request.answer.done():
                continue  # the caller was cancelled
            if isinstance(answer, Exception):
                answer.__cause__ = failure
                request.answer.set_exception(answer)
            else:
                request.answer.set_result(answer)
        if self._waiting:
            self._loop.call_soon(self._go)
        else:
            self._busy = False
            self._idle.set()

    # --- in the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (group := self._work.get()) is not None:
            answers: list[Any] = []
            failure: Exception | None = None
            try:
                answers = self._carry_out(group)
            except Exception as error:
                failure = error
            with suppress(RuntimeError):  # the loop was closed without closing the store: nobody waits any more
                self._loop.call_soon_threadsafe(self._answered, group, answers, failure)
            if failure is None:
                self._sweep_behind(group)

    def _carry_out(self, group: list[_Request | _Sweep]) -> list[Any]:
        rows: dict[bytes, Row | None] = {}
        answers: list[Any] = []
        batch = WriteBatch(raw_mode=True)
        for request in group:
            if isinstance(request, _Sweep):
                answers.append(None)
                continue
            key = request.key
            row = rows[key] if key in rows else self._read(key)
            try:
                rows[key], answer = request.decide(row)
            except InDoubt as error:
                rows[key], answer = row, error
            answers.append(answer)
            if rows[key] is not row:
                self._stage(batch, key, rows[key])
        if not batch.is_empty():
            self._fault("before_write")
            self._db.write(batch)
            self._fault("after_write")
            self._db.flush_wal(True)
            self._fault("after_sync")
        for at, request in enumerate(group):
            if isinstance(request, _Sweep):
                answers[at] = self._sweep(request.now_ms)
        return answers

    def _read(self, key: bytes) -> Row | None:
        stored = self._db.get(b"k" + key)
        if stored is None:
            return None
        session, since, until, expires, length, done = _ROW.unpack_from(stored)
        at = _ROW.size + length
        row = Row(stored[_ROW.size : at].decode(), since, until, expires, stored[at:] if done else None)
        return row if session == self._session else replace(row, until_ms=since)

    def _stage(self, batch: WriteBatch, key: bytes, row: Row | None) -> None:
        if row is None:
            batch.delete(b"k" + key)
            return
        owner, done = row.owner.encode(), row.result is not None
        head = _ROW.pack(self._session, row.since_ms, row.until_ms, row.expires_ms, len(owner), done)
        batch.put(b"k" + key, head + owner + (row.result or b""))
        batch.put(_expiry_key(row.expires_ms // _MINUTE_MS) + key, b"")

    def _sweep_behind(self, group: list[_Request | _Sweep]) -> None:
        now_ms = max(request.now_ms for request in group)
        swept = any(isinstance(request, _Sweep) for request in group)
        if not swept and now_ms // _MINUTE_MS > self._swept:
            try:
                self._sweep(now_ms, min(_SWEEP_BEHIND + _SWEEP_EACH * len(group), _SWEEP_ROWS))
            except Exception as error:  # the next request meets it as well, if it is more than bad luck
                log.warning("store of idempotency keys cannot expire: %r", error, extra={"action": "expire"})

    def _sweep(self, now_ms: int, most: int = _SWEEP_ROWS) -> tuple[int, bool]:
        """How many rows are gone, and whether there is more. `most`: entries to look at."""
        end = _expiry_key(now_ms // _MINUTE_MS)
        batch, seen, gone = WriteBatch(raw_mode=True), 0, 0
        first = last = b""
        entries = self._db.iter()
        entries.seek(b"x")
        while entries.valid() and (entry := bytes(entries.key())) < end and seen < most:
            first, last, seen = first or entry, entry, seen + 1
            key = entry[len(end) :]
            row = self._read(key)
            if row is not None and row.expires_ms <= now_ms:  # it may have been written again, to expire later
                batch.delete(b"k" + key)
                gone += 1
            entries.next()
        entries.status()
        if seen:
            batch.delete_range(first, last + b"\0")
            self._db.write(batch)
        more = seen == most
        if not more:
            self._swept = max(self._swept, now_ms // _MINUTE_MS)
        return gone, more


def _expiry_key(minute: int) -> bytes:
    return b"x" + _MINUTE.pack(minute)


def _open(folder: Path) -> tuple[Rdict, int]:
    with translated(f"opening the store of idempotency keys in {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        db = Rdict(str(folder), _options())
        try:
            session = _next_session(db, folder)
        except BaseException:
            db.close()
            raise
        return db, session


def _next_session(db: Rdict, folder: Path) -> int:
    head, session = db.get(_VERSION_KEY), 0
    if head is None or len(head) != _HEAD.size:
        rows = db.iter()
        rows.seek_to_first()
        if rows.valid():
            raise FolderRefused(f"{folder} holds something else than idempotency keys; name another folder")
    else:
        version, session = _HEAD.unpack(head)
        if version != VERSION:
            raise FolderRefused(
                f"the store of idempotency keys in {folder} has layout {version}, this duemq reads layout {VERSION}: "
                "start the version that wrote it"
            )
    db.put(_VERSION_KEY, _HEAD.pack(VERSION, session + 1))
    db.flush_wal(True)
    return session + 1


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_paranoid_checks(True)
    # The default stops at the first bad record of the WAL and forgets what was acknowledged behind it, without a word.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(16 << 20)
    options.set_max_total_wal_size(64 << 20)
    options.set_max_background_jobs(2)
    options.set_max_open_files(128)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_level_compaction_dynamic_level_bytes(True)
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)  # most keys that are looked up are new
    table.set_block_cache(Cache(16 << 20))
    options.set_block_based_table_factory(table)
    return options
