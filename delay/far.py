"""Sealing far windows of a shard into delay files, and loading those that near, while the shard goes on.

Every replica does this for itself: what is pending does not change by it, so the ledger does not speak of it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from duemq.delay.replica import Replica
from duemq.delay.threads import in_thread
from duemq.model.errors import CorruptStore, StoreFailed, Unavailable
from duemq.model.fault import Fault, no_fault
from duemq.storage.checkpoint import make_checkpoint
from duemq.storage.delay_file import About
from duemq.storage.far import FOLDER, FarFiles, Sealed, remove_empty
from duemq.storage.far_process import CORRUPT
from duemq.storage.rows import DROPPED, ROW, WINDOW_MS, window_of
from duemq.storage.sealing import begin_load, bounds, commit_load, commit_seal
from duemq.storage.store import ShardStore

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_GROWN = 1.01  # a window that has so many times the messages it had still grows
_AGAIN_S = 30.0  # after a failure that is none of the data's
_PROGRAM = (sys.executable, "-m", "duemq.storage.far_process")


Work = Callable[..., Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class FarPolicy:
    """What is sealed, and when it comes back.

    `rows`: windows with fewer messages in RocksDB stay there. `windows`: how many windows ahead of now are never
    sealed. `ahead_ms`: how long before its start a window is loaded. `settle_ms`: how long hardly any messages have to
    have come for a window before it is sealed.
    """

    rows: int = 50_000
    windows: int = 2
    ahead_ms: int = 600_000
    settle_ms: int = 10_000

    def worth_it(self, far: FarFiles, totals: Mapping[int, int], now: int) -> dict[int, int]:
        """The far windows with messages enough out of files, and how many. `totals`: pending per window."""
        nearest = window_of(now) + (self.windows + 1) * WINDOW_MS
        counts = {window: count - far.pending(window) for window, count in totals.items() if window >= nearest}
        # A small file beside a large one would cost each look-up in the window.
        return {window: count for window, count in counts.items() if count >= max(self.rows, far.pending(window) // 4)}

    def to_load(self, far: FarFiles, now: int) -> int | None:
        """The earliest window that nears."""
        return far.first if far.first is not None and far.first - self.ahead_ms <= now else None


class FarKeeper:
    """Works on one window at a time. `turn`: shared by the shards of a node, for each such work takes a core.

    `replica` gives the shard's replica, `at_rest` is held while that is flushed, replaced or closed.
    """

    def __init__(
        self,
        shard: int,
        replica: Callable[[], Replica],
        at_rest: asyncio.Lock,
        policy: FarPolicy,
        clock: Callable[[], int],
        turn: asyncio.Lock,
        fault: Fault = no_fault,
        work: Work | None = None,
    ) -> None:
        """`work`: what does the work in place of another process."""
        self._shard, self._replica, self._at_rest, self._policy = shard, replica, at_rest, policy
        self._clock, self._turn, self._fault, self._work = clock, turn, fault, work or _in_process
        self._loaded = asyncio.Event()  # set, and made anew, with every window that was loaded
        self._wanted = asyncio.Event()
        self._seen: dict[int, tuple[int, int]] = {}  # windows that may be sealed: their messages, and since when

    async def run(self) -> None:
        """Until cancelled. Raises CorruptStore for a damaged file: what it held must not be passed over."""
        while True:
            try:
                while await self.step():
                    pass
                pause = _LOOK_S
            except Unavailable as error:
                log.warning("shard %d: %s", self._shard, error, extra={"action": "far", "shard": self._shard})
                pause = _AGAIN_S
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), pause)
            self._wanted.clear()

    async def loaded(self) -> None:
        """Wait until one more window was loaded."""
        self._wanted.set()
        await self._loaded.wait()

    async def step(self) -> bool:
        """Load or seal one window, if one is to be; False if not."""
        async with self._turn:
            replica, now = self._replica(), self._clock()
            store = replica.store
            window = self._policy.to_load(store.far, now)
            if window is not None:
                await self._load(store, window)
                return True
            window = self._settled(self._policy.worth_it(store.far, replica.wheel.all_totals(), now), now)
            if window is not None:
                await self._seal(store, window)
            return window is not None

    def _settled(self, counts: Mapping[int, int], now: int) -> int | None:
        """The fullest of these windows that does not grow."""
        self._seen = {window: self._seen.get(window, (0, now)) for window in counts}
        for window, count in counts.items():
            if count > self._seen[window][0] * _GROWN:
                self._seen[window] = (count, now)
        still = [window for window, (_, since) in self._seen.items() if now - since >= self._policy.settle_ms]
        return max(still, key=counts.__getitem__, default=None)

    async def _seal(self, store: ShardStore, window: int) -> None:
        number = max((sealed.number for sealed in store.far.of(window)), default=0) + 1
        file = store.path / Sealed.name_of(window, number)
        checkpoint = store.path.with_name(f"{store.path.name}.sealing")
        journal = store.watch(window)
        kept = False
        try:
            await in_thread(shutil.rmtree, checkpoint, ignore_errors=True)
            async with self._at_rest:
                self._same(store)
                await in_thread(make_checkpoint, store, checkpoint)
            self._fault("checkpoint")
            said = await self._work("seal", checkpoint, self._shard, window, file)
            self._fault("written")
            if journal.overflown:
                self._seen.pop(window, None)
                return
            async with self._at_rest:
                self._same(store)
                about = About.decode(said)
                commit_seal(store, Sealed(about, number), journal)
                kept = True
                self._fault("committed")
                await in_thread(store.flush)
            self._fault("flushed")
        finally:
            store.end(journal)
            if not kept:
                file.unlink(missing_ok=True)
                remove_empty([file.parent])
            await in_thread(shutil.rmtree, checkpoint, ignore_errors=True)
        await in_thread(store.compact, *bounds(ROW, window))
        log.info(
            "shard %d sealed %d messages of the window at %d", self._shard, about.rows, window,
            extra={"action": "seal", "shard": self._shard},
        )  # fmt: skip

    async def _load(self, store: ShardStore, window: int) -> None:
        again = window in store.far.loading
        work = store.path / FOLDER / f"load-{secrets.token_hex(4)}"
        dropped, sst = work.with_suffix(".dropped"), work.with_suffix(".sst")
        journal = store.watch(window)
        try:
            keys = [key for key, _ in store.range(*bounds(DROPPED, window))]
            await in_thread(dropped.write_bytes, b"".join(keys))
            async with self._at_rest:
                self._same(store)
                begin_load(store, window)
                await in_thread(store.flush)
            self._fault("begun")
            files = [store.path / sealed.name for sealed in store.far.of(window)]
            count = int(await self._work("load", dropped, sst, *files))
            self._fault("sst")
            async with self._at_rest:
                self._same(store)
                if count:
                    await in_thread(store.ingest, sst)
                self._fault("ingested")
                gone = commit_load(store, window, journal, again=again)
                self._fault("loaded")
                await in_thread(store.flush)
            for file in gone:
                file.unlink(missing_ok=True)
            remove_empty({file.parent for file in gone})
            self._fault("unlinked")
        finally:
            store.end(journal)
            for path in (dropped, sst):
                path.unlink(missing_ok=True)
        self._loaded.set()
        self._loaded = asyncio.Event()

    def _same(self, store: ShardStore) -> None:
        if self._replica().store is not store:
            raise Unavailable(f"shard {self._shard} was replaced by a peer's replica meanwhile")


async def _in_process(*arguments: object) -> bytes:
    """What the process printed. Raises CorruptStore or StoreFailed with what it said instead."""
    process = await asyncio.create_subprocess_exec(
        *_PROGRAM, *map(str, arguments), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        said, wrong = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode == 0:
        return said
    text = wrong.decode(errors="replace").strip() or f"{arguments[0]} ended with exit code {process.returncode}"
    raise CorruptStore(text) if process.returncode == CORRUPT else StoreFailed(text)
