"""Sealing and loading windows, mixed with arrivals, cancels and crashes: a plain dictionary says what is pending."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from duemq.model.key import HIGHEST, LOWEST, make_key
from duemq.model.ledger import START
from duemq.model.record import pack_record
from duemq.model.row import ROW as ROW_HEAD
from duemq.storage.checkpoint import make_checkpoint
from duemq.storage.far import Sealed
from duemq.storage.far_process import load, seal
from duemq.storage.journal import Journal
from duemq.storage.rocks import Memory
from duemq.storage.rows import DROPPED, ROW, WINDOW_MS, Position
from duemq.storage.sealing import begin_load, bounds, commit_load, commit_seal
from duemq.storage.store import ShardStore

WINDOWS = [number * WINDOW_MS for number in (1_000, 1_001, 1_005)]


def row(number: int) -> bytes:
    frame = pack_record(b"key" if number % 3 else None, (("duemq-id", b"%032d" % number),), b"payload %d" % number)
    return ROW_HEAD.pack(0, ROW_HEAD.size + 6, 0, 6, 0, 0) + b"orders" + frame


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
        self.journal: Journal | None = None
        self.sealed: Sealed | None = None
        self.loading: tuple[int, Journal, Path, bool] | None = None

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
        self.store.write([(ROW + key, value) for key, value in placed.items()], [], Position(START), {})

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(st.sampled_from(sorted(self.pending)), min_size=1, max_size=5, unique=True))
        assert self.store.rows(keys) == [self.pending.pop(key) for key in keys]
        self.store.write([], [ROW + key for key in keys], Position(START), {})

    @rule()
    def flush(self) -> None:
        self.store.flush()
        self.flushed = dict(self.pending)

    @rule()
    def crash(self) -> None:
        """What was not flushed is lost; the logs would bring it again."""
        copy = self.folder / "copy"
        shutil.copytree(self.folder / "000", copy)
        self.store.close()
        shutil.rmtree(self.folder / "000")
        copy.rename(self.folder / "000")
        self.open()
        self.pending = dict(self.flushed)

    # --- sealing and loading ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.journal is None and self.loading is None)
    @rule(window=st.sampled_from(WINDOWS))
    def begin_sealing(self, window: int) -> None:
        self.journal = self.store.watch(window)

    @precondition(lambda self: self.journal is not None and self.sealed is None)
    @rule()
    def write_file(self) -> None:
        assert self.journal is not None
        window, checkpoint = self.journal.window, self.folder / "checkpoint"
        make_checkpoint(self.store, checkpoint)
        self.flushed = dict(self.pending)
        number = max((sealed.number for sealed in self.store.far.of(window)), default=0) + 1
        self.sealed = Sealed(seal(checkpoint, 0, window, self.folder / "000" / Sealed.name_of(window, number)), number)
        shutil.rmtree(checkpoint)

    @precondition(lambda self: self.sealed is not None)
    @rule()
    def end_sealing(self) -> None:
        assert self.journal is not None and self.sealed is not None
        commit_seal(self.store, self.sealed, self.journal)
        self.store.end(self.journal)
        self.journal = self.sealed = None

    @precondition(lambda self: self.journal is None and self.loading is None and self.store.far)
    @rule(data=st.data())
    def begin_loading(self, data: st.DataObject) -> None:
        window = data.draw(st.sampled_from(self.store.far.windows()))
        again = window in self.store.far.loading
        journal = self.store.watch(window)
        dropped, sst = self.folder / "dropped", self.folder / "load.sst"
        dropped.write_bytes(b"".join(key for key, _ in self.store.range(*bounds(DROPPED, window))))
        begin_load(self.store, window)
        self.flush()
        count = load(dropped, sst, [self.folder / "000" / sealed.name for sealed in self.store.far.of(window)])
        self.loading = window, journal, sst if count else Path(), again

    @precondition(lambda self: self.loading is not None)
    @rule(crashes=st.booleans())
    def end_loading(self, crashes: bool) -> None:
        assert self.loading is not None
        window, journal, sst, again = self.loading
        if sst != Path():
            self.store.ingest(sst)
            self.flushed = dict(self.pending)  # RocksDB flushes what overlaps; what does not is flushed here
            self.store.flush()
        if crashes:
            self.crash()
            return
        gone = commit_load(self.store, window, journal, again=again)
        self.store.end(journal)
        self.flush()
        for file in gone:
            file.unlink()
        self.loading = None

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
        if self.loading is None and not self.store.far.loading:
            near = {key for key, _ in self.store.each(ROW)}
            assert not near & self.store.far.rows(sorted(near)).keys()


TestWindows = Windows.TestCase
TestWindows.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
