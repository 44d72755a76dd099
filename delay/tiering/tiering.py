"""Seals far windows of a shard into delay files, joins files, and loads near windows, while the shard runs.

Every replica does this independently. It does not change which messages are pending, so it is not in the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from duemq.background.loop import Loop
from duemq.delay.metrics import TieringCounts
from duemq.delay.replica.replica import Replica
from duemq.delay.threads import in_thread
from duemq.delay.tiering.completion import CompletionPass, CompletionTimer, complete_recorded, complete_windows
from duemq.delay.tiering.tiering_policy import QuietWindows, TieringPolicy, runs_of
from duemq.model.errors import DamagedFile, Rejected, Unavailable
from duemq.model.failpoint import Failpoint, no_failpoint
from duemq.model.messages.import_command import cut
from duemq.model.rocksdb_errors import translate_errors
from duemq.storage.checkpoint.checkpoint import make_checkpoint
from duemq.storage.delay_files.catalog import FOLDER, CatalogFile, remove
from duemq.storage.jobs.jobs import LoadJob, RewriteJob, SealJob, abouts_of, job_file
from duemq.storage.keyspace import DROPPED, ROW
from duemq.storage.shard.change_journal import Journal
from duemq.storage.shard.store import ShardStore
from duemq.storage.tiering.tiering_job import Work, in_process
from duemq.storage.tiering.transitions import begin_load, bounds, commit_join, commit_load, commit_rewrite, commit_seal

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_AGAIN_S, _LONGEST_S = 30.0, 300.0  # pauses after failures that the data did not cause
_JOIN_GROUPS = 16  # files that one run writes: it takes about 3 s for a thousand files of one row each
_PART = 5_000  # dropped keys written before other tasks run


class TieringWorker:
    """Works on some windows at a time. `turn`: a lock that the shards of a node share, because a run takes a whole
    core.

    The shard must keep this `replica` while this runs. While it flushes, replaces or closes the replica, it takes the
    lock `at_rest`. If a file is imported for a window that is being loaded or rewritten, that window stays
    unchanged, and the work is repeated including the new file.
    """

    def __init__(
        self,
        shard: int,
        replica: Replica,
        at_rest: asyncio.Lock,
        policy: TieringPolicy,
        clock: Callable[[], int],
        turn: asyncio.Lock,
        failpoint: Failpoint = no_failpoint,
        work: Work = in_process,
        counts: TieringCounts | None = None,
    ) -> None:
        """`work`: does the work; by default in a child process."""
        self._shard, self._replica, self._at_rest, self._policy = shard, replica, at_rest, policy
        self._clock, self._order, self.failpoint, self.work = clock, turn, failpoint, work
        self._counts = counts or TieringCounts()
        self._load_event = asyncio.Event()  # set and replaced whenever a window was loaded
        self._quiet_windows = QuietWindows(policy.quiet_ms)
        self._join_tracker = QuietWindows(policy.join_ms)
        self._completion_timer = CompletionTimer(policy.quiet_ms)
        self._completion: CompletionPass | None = None
        self._loop = Loop(
            "far", self._turn, f"shard {shard}", expected=(Unavailable, Rejected), first_s=_AGAIN_S,
            longest_s=_LONGEST_S, on_failure=lambda error: self._counts.count_failure(),
        )  # fmt: skip

    async def run(self) -> None:
        """Work until cancelled. Raises Fatal, such as DamagedFile, because the messages in a file must not be skipped.

        After other errors the work is retried: the shard continues, but stops at a due window that is not loaded.
        """
        await self._loop.run()

    async def _turn(self) -> float:
        while await self.step() or await self.complete_some():
            pass
        return _LOOK_S

    @property
    def trouble(self) -> str | None:
        """Why no window is sealed or loaded now; None if the work succeeds."""
        return self._loop.trouble and cut(f"shard {self._shard}: far fails: {self._loop.trouble}")

    async def wait_for_load(self) -> None:
        """Wait until another window is loaded."""
        self._loop.wake(urgent=True)
        await self._load_event.wait()

    async def step(self) -> bool:
        """Load, seal, rewrite or join some windows. False if no window needs it."""
        async with self._order:
            now, policy, store = self._clock(), self._policy, self._replica.store
            if windows := policy.to_load(store.delay_files, now):
                await self._with_few_files(store, windows, self._load)
            elif windows := self._quiet_windows.among(
                policy.worth_it(store.delay_files, self._replica.wheel.all_totals(), now), now
            ):
                await self._seal(store, windows)
            elif windows := policy.to_rewrite(store.delay_files, now):
                await self._with_few_files(store, windows, self._rewrite)
            elif windows := self._join_tracker.among(policy.worth_joining(store.delay_files, now), now):
                return await self._join(store, windows)
            return bool(windows)

    async def _with_few_files(
        self, store: ShardStore, windows: Sequence[int], work: Callable[[ShardStore, Sequence[int]], Awaitable[None]]
    ) -> None:
        """Do work that reads all files of a window at once. If there are too many files, join some instead; the next
        step continues."""
        if crowded := self._policy.crowded(store.delay_files, windows):
            await self._join(store, crowded, crowded=True)
        else:
            await work(store, windows)

    async def complete_some(self) -> bool:
        """Read the rows of some messages that were cancelled in files. False if there are none, or if it is too
        early."""
        if self._completion is None:
            store = self._replica.store
            counts = store.delay_files.rowless_counts()
            if not self._completion_timer.is_time(counts.total(), self._clock()):
                return False
            self._completion = CompletionPass(store, sorted(counts))
        if await self._completion.step():
            return True
        self._completion, self._completion_timer = None, CompletionTimer(self._policy.quiet_ms)
        return False

    # --- sealing --------------------------------------------------------------------------------------------------

    async def _seal(self, store: ShardStore, windows: Sequence[int]) -> None:
        numbers = {window: store.delay_files.next_number(window) for window in windows}
        paths = {window: store.path / CatalogFile.name_of(window, number) for window, number in numbers.items()}
        checkpoint = store.path.with_name(f"{store.path.name}.sealing")
        sealed_files: list[CatalogFile] = []
        async with self._watch(store, windows) as journal:
            try:
                await in_thread(shutil.rmtree, checkpoint, ignore_errors=True)
                async with self._at_rest:
                    await in_thread(make_checkpoint, store, checkpoint, delay_files=False)
                journal.mark()
                self.failpoint("checkpoint")
                files = [(window, str(path)) for window, path in paths.items()]
                job = SealJob(str(checkpoint), self._shard, files)
                new_files = _files_of(await self.work(job), numbers)
                self.failpoint("written")
                present_keys = await _present_keys(store, new_files, journal)
                async with self._at_rest:
                    for file in new_files:
                        changes = journal.end(file.about.window)
                        if changes.overflown:
                            self._quiet_windows.forget(file.about.window)
                            continue
                        commit_seal(store, file, changes, present_keys[file])
                        sealed_files.append(file)
                        self.failpoint("committed")
                        await asyncio.sleep(0)
                    await in_thread(store.flush)
                self.failpoint("flushed")
            finally:
                sealed_windows = {file.about.window for file in sealed_files}
                remove(path for window, path in paths.items() if window not in sealed_windows)
                await in_thread(shutil.rmtree, checkpoint, ignore_errors=True)
        await in_thread(_compact, store, sealed_windows)
        self._counts.sealed += len(sealed_files)
        self._tell("sealed", sealed_windows, sum(file.about.rows for file in sealed_files))

    # --- loading --------------------------------------------------------------------------------------------------

    async def _load(self, store: ShardStore, windows: Sequence[int]) -> None:
        await complete_windows(store, windows)  # completes most endings before flushes are blocked
        again = store.delay_files.loading.intersection(windows)
        old_paths: list[Path] = []
        async with self._watch(store, windows) as journal, self._dropped_keys(store, windows) as dropped_path:
            sst = dropped_path.with_suffix(".sst")
            try:
                async with self._at_rest:
                    begin_load(store, windows)
                    await in_thread(store.flush)
                self.failpoint("begun")
                before = {window: list(store.delay_files.of(window)) for window in windows}
                files = [job_file(store.path, file) for window in windows for file in before[window]]
                (count,) = await self.work(LoadJob(files, self._secret, str(dropped_path), str(sst)))
                self.failpoint("sst")
                async with self._at_rest:
                    if count:
                        await in_thread(store.ingest, sst)
                    self.failpoint("ingested")
                    for window in windows:
                        await complete_recorded(store, journal, [window])
                        if store.delay_files.of(window) == before[window]:
                            old_paths += commit_load(store, window, journal.end(window), again=window in again)
                            self.failpoint("loaded")
                    await in_thread(store.flush)
                remove(old_paths)
                self.failpoint("unlinked")
            finally:
                sst.unlink(missing_ok=True)
        self._load_event.set()
        self._load_event = asyncio.Event()
        self._counts.loaded += len(windows)
        self._tell("loaded", windows, count)

    # --- rewriting ------------------------------------------------------------------------------------------------

    async def _rewrite(self, store: ShardStore, windows: Sequence[int]) -> None:
        """Drop the files of windows without pending rows. For each other window, merge the pending rows into one
        file."""
        delay_files = store.delay_files
        await complete_windows(store, windows)  # completes most endings before flushes are blocked
        live_windows = [window for window in windows if delay_files.pending(window)]
        numbers = {window: delay_files.next_number(window) for window in live_windows}
        paths = {window: store.path / CatalogFile.name_of(window, number) for window, number in numbers.items()}
        old_paths: list[Path] = []
        done: set[int] = set()
        async with self._watch(store, windows) as journal, self._dropped_keys(store, live_windows) as dropped_path:
            try:
                journal.mark()
                self.failpoint("listed")
                before = {window: list(delay_files.of(window)) for window in windows}
                jobs = [
                    (window, str(path), [job_file(store.path, file) for file in before[window]])
                    for window, path in paths.items()
                ]
                job = RewriteJob(self._shard, self._secret, str(dropped_path), jobs)
                new_files = _files_of(await self.work(job) if live_windows else [], numbers)
                self.failpoint("rewritten")
                present_keys = await _present_keys(store, new_files, journal)
                files_by_window = {file.about.window: file for file in new_files}
                async with self._at_rest:
                    for window in windows:
                        await complete_recorded(store, journal, [window])
                        if delay_files.of(window) != before[window]:
                            continue
                        file, changes = files_by_window.get(window), journal.end(window)
                        old_paths += commit_rewrite(store, window, file, changes, present_keys[file] if file else ())
                        done.add(window)
                        self.failpoint("replaced")
                        await asyncio.sleep(0)
                    await in_thread(store.flush)
                self.failpoint("settled")
                remove(old_paths)
                self.failpoint("removed")
            finally:
                remove(path for window, path in paths.items() if window not in done)
        self._counts.rewritten += len(windows)
        self._tell("rewrote", windows, sum(file.about.rows for file in new_files))

    # --- joining --------------------------------------------------------------------------------------------------

    async def _join(self, store: ShardStore, windows: Sequence[int], *, crowded: bool = False) -> bool:
        """In the first window with many files, merge them into a few. False if no window has many.

        The new file also contains the dropped messages, so that the store's dropped keys stay valid and the messages of
        an import keep their ids.
        """
        for window in windows:
            files = await in_thread(_with_sizes, store.path, list(store.delay_files.of(window)))
            if groups := self._policy.joins(files, crowded=crowded):
                await self._join_groups(store, window, groups[:_JOIN_GROUPS])
                return True
            self._join_tracker.forget(window)
        return False

    async def _join_groups(self, store: ShardStore, window: int, groups: Sequence[Sequence[CatalogFile]]) -> None:
        numbers = range(number := store.delay_files.next_number(window), number + len(groups))
        paths = [store.path / CatalogFile.name_of(window, number) for number in numbers]
        done: list[CatalogFile] = []
        old_paths: list[Path] = []
        try:
            async with self._dropped_keys(store, ()) as nothing_dropped:
                jobs = [
                    (window, str(path), [job_file(store.path, file) for file in group])
                    for path, group in zip(paths, groups, strict=True)
                ]
                answers = await self.work(RewriteJob(self._shard, self._secret, str(nothing_dropped), jobs))
            self.failpoint("joined")
            async with self._at_rest:
                for about, number, group in zip(abouts_of(answers), numbers, groups, strict=True):
                    assert about is not None
                    file = CatalogFile(about, number)
                    old_paths += commit_join(store, group, file)
                    done.append(file)
                    self.failpoint("replaced")
                    await asyncio.sleep(0)
                await in_thread(store.flush)
            self.failpoint("settled")
            await in_thread(remove, old_paths)
            self.failpoint("removed")
        finally:
            remove(paths[len(done) :])
        self._counts.joined += 1
        self._tell(f"joined {len(old_paths)} files, with", [window], sum(file.about.rows for file in done))

    # --- common parts ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _watch(self, store: ShardStore, windows: Collection[int]) -> AsyncIterator[Journal]:
        journal = store.watch(windows)
        try:
            yield journal
        finally:
            store.end(journal)

    @asynccontextmanager
    async def _dropped_keys(self, store: ShardStore, windows: Collection[int]) -> AsyncIterator[Path]:
        """A temporary file with the keys that are dropped in these windows at the moment."""
        path = store.path / FOLDER / f"work-{secrets.token_hex(4)}.dropped"
        try:
            with translate_errors(path):
                path.parent.mkdir(exist_ok=True)
                with path.open("wb") as file:
                    for window in windows:
                        keys = (key for key, _ in store.range(*bounds(DROPPED, window)))
                        while part := list(islice(keys, _PART)):
                            file.write(b"".join(part))
                            await asyncio.sleep(0)
            yield path
        finally:
            path.unlink(missing_ok=True)

    @property
    def _secret(self) -> str:
        """The secret for the ids of imported messages, in hex."""
        return self._replica.ids.secret.hex()

    def _tell(self, what: str, windows: Collection[int], rows: int) -> None:
        if windows:
            log.info(
                "shard %d %s %d messages of %d windows from %d on", self._shard, what, rows, len(windows), min(windows),
                extra={"action": "tiering", "shard": self._shard},
            )  # fmt: skip


def _files_of(answers: Sequence[Any], numbers: dict[int, int]) -> list[CatalogFile]:
    """The files that a child process wrote. `numbers`: the file's number, by window."""
    return [CatalogFile(about, numbers[about.window]) for about in abouts_of(answers) if about is not None]


def _with_sizes(folder: Path, files: Sequence[CatalogFile]) -> list[tuple[int, CatalogFile]]:
    """Files with their sizes in bytes. Blocks. Raises DamagedFile."""
    sizes: list[tuple[int, CatalogFile]] = []
    for file in files:
        path = folder / file.name
        try:
            sizes.append((path.stat().st_size, file))
        except OSError as error:
            raise DamagedFile(f"delay file {path} is missing: {error}", str(path)) from error
    return sizes


async def _present_keys(
    store: ShardStore, files: Sequence[CatalogFile], journal: Journal
) -> dict[CatalogFile, frozenset[bytes]]:
    """For each file, those of the journal's early keys that are in the file."""
    early_keys = {file: journal.windows[file.about.window].early for file in files}

    def look_up() -> dict[CatalogFile, frozenset[bytes]]:
        from duemq.storage.delay_files.sealed_file import DelayFile  # pyarrow: see about.py

        return {
            file: DelayFile(store.path / file.name).holds(keys) if keys else frozenset()
            for file, keys in early_keys.items()
        }

    return await in_thread(look_up)


def _compact(store: ShardStore, windows: Collection[int]) -> None:
    """Free the space of rows that are now in files. Blocks."""
    for start, end in runs_of(windows):
        store.compact(*bounds(ROW, start, end))
