"""Sealing and loading windows, mixed with arrivals, cancels and crashes: a plain dictionary says what is pending."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import orjson
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from duemq.model.log.ledger import START
from duemq.model.messages.key import HIGHEST, LOWEST, due_of, make_key
from duemq.model.messages.record import pack_record
from duemq.model.messages.row import ROW as ROW_HEAD
from duemq.model.timing import WINDOW_MS, window_of
from duemq.storage.checkpoint.checkpoint import make_checkpoint
from duemq.storage.delay_files.about import About
from duemq.storage.delay_files.catalog import CatalogFile, remove
from duemq.storage.delay_files.sealed_file import DelayFile
from duemq.storage.jobs.jobs import JobFile, LoadJob, RewriteJob, SealJob, TieringJob, encode, job_file, tiering_job
from duemq.storage.keyspace import DROPPED, ROW, LedgerPosition
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.change_journal import Journal
from duemq.storage.shard.store import ShardStore
from duemq.storage.tiering.tiering_process import perform
from duemq.storage.tiering.transitions import begin_load, bounds, commit_load, commit_rewrite, commit_seal

WINDOWS = [number * WINDOW_MS for number in (1_000, 1_001, 1_005)]
some_windows = st.lists(st.sampled_from(WINDOWS), min_size=1, unique=True).map(sorted)


def row(number: int) -> bytes:
    payload = (b"payload %d" % number, b"", None)[number % 4 % 3]
    headers = (("duemq-id", b"%032d" % number), ("null", None if number % 5 else b""))
    frame = pack_record(b"key" if number % 3 else None, headers, payload)
    return ROW_HEAD.pack(0, ROW_HEAD.size + 6, 0, 6, 0, 0) + b"orders" + frame


SECRET = "00" * 16


class Windows(RuleBasedStateMachine):
    """Every step of sealing and loading is a rule of its own, so that anything may come between two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(prefix="duemq-far-"))
        self.memory = Memory(1 << 20, 1 << 20)
        self.pending: dict[bytes, bytes] = {}
        self.flushed: dict[bytes, bytes] = {}
        self.number = 0
        self.open()

    def open(self) -> None:
        self.store = ShardStore(self.folder / "000", self.memory)
        self.journal: Journal | None = None  # of the work that is being done
        self.work = ""
        self.windows: list[int] = []
        self.written: list[CatalogFile] | None = None
        self.marked = False
        self.sst: Path | None = None
        self.again: set[int] = set()

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    # --- what a shard does --------------------------------------------------------------------------------------------

    @rule(window=st.sampled_from(WINDOWS), dues=st.lists(st.integers(0, 50), min_size=1, max_size=5))
    def place(self, window: int, dues: list[int]) -> None:
        placed = {}
        for due in dues:
            self.number += 1
            placed[make_key(window + due, self.number, 0)] = row(self.number)
        self.pending |= placed
        self.store.write([(ROW + key, value) for key, value in placed.items()], [], LedgerPosition(START), {})

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(st.sampled_from(sorted(self.pending)), min_size=1, max_size=5, unique=True))
        assert self.store.rows(keys) == [self.pending.pop(key) for key in keys]
        self.store.write([], [ROW + key for key in keys], LedgerPosition(START), {})

    @rule()
    def flush(self) -> None:
        self.store.flush()
        self.flushed = dict(self.pending)

    @rule()
    def crash(self) -> None:
        """What was not flushed is lost; the logs would bring it again."""
        copy = self.folder / "copy"
        while True:
            try:
                shutil.copytree(self.folder / "000", copy)
                break
            except shutil.Error:  # a compaction ended meanwhile, and RocksDB dropped what it was made of
                shutil.rmtree(copy)
        self.store.close()
        shutil.rmtree(self.folder / "000")
        copy.rename(self.folder / "000")
        self.open()
        self.pending = dict(self.flushed)

    # --- sealing, loading and rewriting -------------------------------------------------------------------------------

    def idle(self) -> bool:
        return self.journal is None

    def perform(self, job: TieringJob) -> list[Any]:
        return list(perform(tiering_job(orjson.loads(encode(job)))))

    def paths(self, windows: list[int]) -> list[tuple[int, str]]:
        delay_files, folder = self.store.delay_files, self.store.path
        return [
            (window, str(folder / CatalogFile.name_of(window, delay_files.next_number(window)))) for window in windows
        ]

    def files(self, windows: list[int]) -> list[JobFile]:
        return [job_file(self.store.path, sealed) for window in windows for sealed in self.store.delay_files.of(window)]

    def list_dropped(self, windows: list[int]) -> Path:
        path = self.folder / "dropped"
        path.write_bytes(b"".join(key for window in windows for key, _ in self.store.range(*bounds(DROPPED, window))))
        return path

    def keep(self, abouts: list[About | None]) -> None:
        """What a process wrote."""
        number_of = self.store.delay_files.next_number
        self.written = [CatalogFile(about, number_of(about.window)) for about in abouts if about is not None]

    def found(self, sealed: CatalogFile) -> frozenset[bytes]:
        assert self.journal is not None
        early = self.journal.windows[sealed.about.window].early
        return frozenset(DelayFile(self.store.path / sealed.name).rows(early))

    def end(self) -> None:
        assert self.journal is not None
        self.store.end(self.journal)
        self.journal, self.written, self.sst, self.marked = None, None, None, False

    @precondition(lambda self: self.idle())
    @rule(windows=some_windows)
    def begin_sealing(self, windows: list[int]) -> None:
        windows = [window for window in windows if window not in self.store.delay_files.loading]
        if windows:
            self.work, self.windows = "seal", windows
            self.journal = self.store.watch(windows)

    @precondition(lambda self: self.work == "seal" and self.journal is not None and self.written is None)
    @rule()
    def take_checkpoint(self) -> None:
        assert self.journal is not None
        checkpoint = self.folder / "checkpoint"
        make_checkpoint(self.store, checkpoint, delay_files=False)
        self.flushed = dict(self.pending)
        self.keep(self.perform(SealJob(str(checkpoint), 0, self.paths(self.windows))))
        shutil.rmtree(checkpoint)

    @precondition(lambda self: self.written is not None and self.work != "load" and not self.marked)
    @rule()
    def mark(self) -> None:
        """Some of what is done comes before it although it was done after the process had looked."""
        assert self.journal is not None
        self.journal.mark()
        self.marked = True

    @precondition(lambda self: self.work == "seal" and self.marked)
    @rule()
    def end_sealing(self) -> None:
        assert self.journal is not None and self.written is not None
        for sealed in self.written:
            commit_seal(self.store, sealed, self.journal.windows[sealed.about.window], self.found(sealed))
        self.end()

    @precondition(lambda self: self.idle() and self.store.delay_files)
    @rule(data=st.data())
    def begin_rewriting(self, data: st.DataObject) -> None:
        known = [window for window in self.store.delay_files.windows() if window not in self.store.delay_files.loading]
        if known:
            self.work = "rewrite"
            self.windows = sorted(data.draw(st.lists(st.sampled_from(known), min_size=1, unique=True)))
            self.journal = self.store.watch(self.windows)

    @precondition(lambda self: self.work == "rewrite" and self.journal is not None and self.written is None)
    @rule()
    def rewrite(self) -> None:
        left = [window for window in self.windows if self.store.delay_files.pending(window)]
        jobs = [(window, path, self.files([window])) for window, path in self.paths(left)]
        self.keep(self.perform(RewriteJob(0, SECRET, str(self.list_dropped(left)), jobs)))
        assert self.written is not None
        assert [sealed.about.window for sealed in self.written] == left, "the count of dropped keys is exact"

    @precondition(lambda self: self.work == "rewrite" and self.marked)
    @rule()
    def end_rewriting(self) -> None:
        assert self.journal is not None and self.written is not None
        fresh, gone = {sealed.about.window: sealed for sealed in self.written}, []
        for window in self.windows:
            sealed = fresh.get(window)
            found = self.found(sealed) if sealed else ()
            gone += commit_rewrite(self.store, window, sealed, self.journal.windows[window], found)
        self.end()
        self.flush()
        remove(gone)

    @precondition(lambda self: self.idle() and self.store.delay_files)
    @rule(data=st.data())
    def begin_loading(self, data: st.DataObject) -> None:
        known = list(self.store.delay_files.windows())
        self.windows = sorted(data.draw(st.lists(st.sampled_from(known), min_size=1, unique=True)))
        self.work, self.again = "load", self.store.delay_files.loading.intersection(self.windows)
        self.journal = self.store.watch(self.windows)
        dropped, self.sst = self.list_dropped(self.windows), self.folder / "load.sst"
        begin_load(self.store, self.windows)
        self.flush()
        (count,) = self.perform(LoadJob(self.files(self.windows), SECRET, str(dropped), str(self.sst)))
        if not count:
            self.sst = Path()

    @precondition(lambda self: self.work == "load" and self.journal is not None)
    @rule(breaks=st.sampled_from(["no", "no", "crash", "retry"]))
    def end_loading(self, breaks: str) -> None:
        assert self.journal is not None and self.sst is not None
        if self.sst.name:
            self.store.ingest(self.sst)
            self.flushed = dict(self.pending)  # RocksDB flushes what overlaps; what does not is flushed here
            self.store.flush()
        if breaks == "crash":
            self.crash()
            return
        if breaks == "retry":  # the keeper meets a failing disk and begins again, in the same process
            self.end()
            return
        gone: list[Path] = []
        for window in self.windows:
            watched = self.journal.windows[window]
            gone += commit_load(self.store, window, watched, again=window in self.again)
        self.end()
        self.flush()
        remove(gone)

    # --- what must be so ----------------------------------------------------------------------------------------------

    @invariant()
    def every_message_is_there_once(self) -> None:
        keys, rows, after = [], [], LOWEST
        while True:
            some, values = self.store.scan_all(after, HIGHEST, 3, 1 << 20)
            if not some:
                break
            keys += some
            rows += values
            after = some[-1]
        assert dict(zip(keys, rows, strict=True)) == self.pending
        assert keys == sorted(self.pending)

    @invariant()
    def none_is_in_both_places(self) -> None:
        delay_files, near = self.store.delay_files, {key for key, _ in self.store.each(ROW)}
        near = {key for key in near if window_of(due_of(key)) not in delay_files.loading}
        assert not near & delay_files.reader.rows(delay_files.by_file(sorted(near))).keys()

    @invariant()
    def dropped_keys_are_in_files_and_counted(self) -> None:
        delay_files = self.store.delay_files
        keys = [key for key, _ in self.store.each(DROPPED) if window_of(due_of(key)) not in delay_files.loading]
        assert delay_files.reader.rows(delay_files.by_file(keys)).keys() == set(keys)
        assert {window: delay_files.drop_count(window) for window in WINDOWS if window not in delay_files.loading} == {
            window: sum(window_of(due_of(key)) == window for key in keys)
            for window in WINDOWS
            if window not in delay_files.loading
        }


TestWindows = Windows.TestCase
TestWindows.settings = settings(max_examples=60, stateful_step_count=45, deadline=None)
