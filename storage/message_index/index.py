"""The index of one store. It leads from a message key or a label to the keys of rows.

An entry is written in the batch that places its row, and contains the row's key. It does not change when the row moves
into a delay file or back, or when the message ends, because the key then stays the same. A message that is placed again
(moved, deferred, redriven) gets another key and a new entry; lookups by the old entry find no row.

Each cycle writes its entries, unsorted, as one chunk. A worker merges chunks into sorted runs, and runs into longer
ones. Each of these changes is one batch, so a crash leaves either the old or the new state. A group of runs is dropped
as a whole, once none of its rows can be left.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from typing import Any, NamedTuple, Protocol

from rocksdict import WriteBatch

from duemq.model.log.ledger import Entry
from duemq.model.messages.key import LOWEST
from duemq.model.messages.place import PLACE_BYTES, key_at, place_of
from duemq.storage.keyspace import INDEX_CHUNK, INDEX_FILE, INDEX_RUN, INDEX_STATE, U32, U64
from duemq.storage.message_index.runs import (
    Entries,
    RunGroup,
    count_in,
    entries_in,
    first_kept_bucket,
    in_page,
    in_written,
    written_entries,
)
from duemq.storage.message_index.state import BuildStage, IndexState
from duemq.storage.message_index.terms import ENTRY_BYTES, HASH_BYTES, IndexedTopics

_MAX_CHUNKS, _MAX_CHUNK_ENTRIES = 128, 1 << 16  # chunks are merged once there are this many of them, or of entries
_MAX_MERGED = 1 << 18  # about this many entries are merged at once; a run with half of them is not merged again
_FAN_IN = 10
_RUNS_TOGETHER = 64  # runs that are read before other tasks run

Puts = list[tuple[bytes, bytes]]


class _Store(Protocol):
    """What the index needs from its store."""

    def each(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]: ...
    def range(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]: ...
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...
    def cursor(self) -> Any: ...
    def drop(self, prefix: bytes, start: bytes, end: bytes) -> None: ...
    def change(self, batch: WriteBatch) -> None: ...


class Run(NamedTuple):
    """A sorted run with `size` entries. `number` is unique in the store."""

    group: RunGroup
    number: int
    size: int

    @property
    def prefix(self) -> bytes:
        """The prefix of the keys of the run's pages."""
        return _prefix(self.group, self.number)


def _prefix(group: RunGroup, number: int = 0) -> bytes:
    return INDEX_RUN + bytes([group.wait_class]) + U32.pack(group.bucket) + U64.pack(number)


class Merge(NamedTuple):
    """Chunks (number and entry count of each) or runs to merge."""

    chunks: tuple[tuple[int, int], ...] = ()
    runs: tuple[Run, ...] = ()


class MessageIndex:
    """Not thread-safe, like its store."""

    def __init__(self, store: _Store) -> None:
        self._store = store
        self.version = 0
        """Changes with the set of runs: a search that began earlier would miss some."""
        self.added = 0
        """The number of cycles that added entries."""
        self.state: IndexState | None = None
        for _, raw in store.each(INDEX_STATE):
            self.state = IndexState.decode(raw)
        self._topics = IndexedTopics(self.state.topics if self.state else ())
        self.files = {U64.unpack(key)[0]: U64.unpack(at)[0] for key, at in store.each(INDEX_FILE)}
        """Import times (ms) of files that are not indexed yet, by the offset of their command."""
        self.chunks: dict[int, int] = {}
        self.runs: list[Run] = []
        if self.state is not None:
            sizes = ((U64.unpack(key)[0], len(raw) // ENTRY_BYTES) for key, raw in store.each(INDEX_CHUNK))
            self.chunks = dict(sizes)
            self.runs = list(self._stored_runs())
        self._next = max([*self.chunks, *(run.number for run in self.runs)], default=0) + 1

    def _stored_runs(self) -> Iterator[Run]:
        rows, start = self._store.cursor(), INDEX_RUN
        rows.seek(start)
        while rows.valid() and (key := rows.key())[:1] == INDEX_RUN:
            group = RunGroup(key[1], U32.unpack_from(key, 2)[0])
            run = Run(group, U64.unpack_from(key, 6)[0], count_in(rows.value()))
            yield run
            rows.seek(_prefix(run.group, run.number + 1))
        rows.status()

    def __bool__(self) -> bool:
        """Whether messages of any topic are indexed."""
        return self.state is not None

    @property
    def built(self) -> bool:
        """Whether all messages of the indexed topics are in the index."""
        return self.state is not None and self.state.stage is BuildStage.DONE and not self.files

    def covers(self, topic: str | None) -> bool:
        """Whether the index has all messages of this topic, or of all topics (None)."""
        return self.built and (self._topics.has_all() if topic is None else self._topics.has(topic))

    def is_on(self, topic: str | None) -> bool:
        """Whether messages of this topic, or of all topics (None), are indexed, even if the index is not built yet."""
        return self._topics.has_all() if topic is None else self._topics.has(topic)

    def switch(self, topics: Sequence[str], entry: Entry) -> None:
        """Index the messages of these topics from now on, that is, after ledger entry `entry`. If the topics differ
        from the previous ones, a new index is started."""
        patterns = tuple(topics)
        if patterns == (self.state.topics if self.state else ()):
            return
        stage = BuildStage.ROWS if entry.number >= 0 else BuildStage.DONE
        since = max(entry.at, 0)
        self.state = IndexState(patterns, entry.number, entry.applied, since, stage, LOWEST) if patterns else None
        self._topics = IndexedTopics(patterns)
        batch = WriteBatch(raw_mode=True)
        for prefix in (INDEX_CHUNK, INDEX_RUN, INDEX_FILE):
            batch.delete_range(prefix, bytes([prefix[0] + 1]))
        if self.state is None:
            batch.delete(INDEX_STATE)
        else:
            batch.put(INDEX_STATE, self.state.encode())
        self._store.change(batch)
        self.chunks, self.runs = {}, []
        self.files.clear()
        self.version += 1

    # --- writing --------------------------------------------------------------------------------------------------

    def add(self, rows: Iterable[tuple[bytes, bytes]], placed_ms: int, files: Iterable[int] = ()) -> Puts:
        """Index messages that a cycle placed, given as keys and rows. Returns rows for the same batch.

        `files`: offsets of import commands whose messages became pending in the cycle.
        """
        puts: Puts = []
        if entries := self._topics.entries(rows):
            puts.append((INDEX_CHUNK + U64.pack(self._next), U64.pack(placed_ms) + b"".join(entries)))
            self.chunks[self._next] = len(entries)
            self._next += 1
            self.added += 1
        for offset in files:
            puts.append((INDEX_FILE + U64.pack(offset), U64.pack(placed_ms)))
            self.files[offset] = placed_ms
        return puts

    def build(self, rows: Iterable[tuple[bytes, bytes]], placed_ms: int, state: IndexState) -> None:
        """Index earlier messages, and record the progress."""
        self._write(self.add(rows, placed_ms), state)

    def end_file(self, offset: int) -> None:
        """Record that all messages in an imported file are indexed."""
        batch = WriteBatch(raw_mode=True)
        batch.delete(INDEX_FILE + U64.pack(offset))
        self._store.change(batch)
        del self.files[offset]

    def _write(self, puts: Puts, state: IndexState) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in puts:
            batch.put(key, value)
        batch.put(INDEX_STATE, state.encode())
        self._store.change(batch)
        self.state = state

    # --- merging --------------------------------------------------------------------------------------------------

    def to_merge(self, now: int) -> Merge | None:
        """The next merge; None if there is nothing worth merging. `now`: the ledger's time (ms)."""
        chunks = self.chunks
        if len(chunks) >= _MAX_CHUNKS or sum(chunks.values()) >= _MAX_CHUNK_ENTRIES:
            some = list(_up_to(chunks.items(), [count for _, count in chunks.items()]))
            return Merge(chunks=tuple(some))
        groups: defaultdict[RunGroup, list[Run]] = defaultdict(list)
        for run in self.runs:
            if run.size < _MAX_MERGED // 2:
                groups[run.group].append(run)
        for group, runs in groups.items():
            if len(runs) >= _FAN_IN or (len(runs) > 1 and group.end_ms <= now):
                runs = sorted(runs, key=lambda run: run.size)[:_FAN_IN]
                return Merge(runs=tuple(_up_to(runs, [run.size for run in runs])))
        return None

    def read_chunks(self, numbers: Iterable[int]) -> list[Entries]:
        raws = self._store.get_many([INDEX_CHUNK + U64.pack(number) for number in numbers])
        return [written_entries(raw[U64.size :], U64.unpack_from(raw)[0]) for raw in raws if raw is not None]

    def read_run(self, run: Run) -> list[Entries]:
        pages = self._store.range(run.prefix, _prefix(run.group, run.number + 1))
        return [entries_in(page) for _, page in pages]

    def replace(self, merge: Merge, merged: Sequence[tuple[RunGroup, int, Sequence[tuple[bytes, bytes]]]]) -> None:
        """Replace the merged chunks or runs by new runs (group, number of entries, pages as from `pages_of`), if all of
        them still exist."""
        runs = set(self.runs)
        if not self.chunks.keys() >= dict(merge.chunks).keys() or not runs.issuperset(merge.runs):
            return
        batch = WriteBatch(raw_mode=True)
        for number, _ in merge.chunks:
            batch.delete(INDEX_CHUNK + U64.pack(number))
            del self.chunks[number]
        for run in merge.runs:
            batch.delete_range(run.prefix, _prefix(run.group, run.number + 1))
        runs.difference_update(merge.runs)
        for group, count, pages in merged:
            run = Run(group, self._next, count)
            self._next += 1
            for end, page in pages:
                batch.put(run.prefix + end, page)
            runs.add(run)
        self._store.change(batch)
        self.runs = sorted(runs)
        self.version += 1

    def purge(self, horizon: int) -> None:
        """Drop the groups whose rows were all due before this time (ms)."""
        for wait_class in {run.group.wait_class for run in self.runs}:
            first = RunGroup(wait_class, first_kept_bucket(wait_class, horizon))
            if any(run.group.wait_class == wait_class and run.group < first for run in self.runs):
                self._store.drop(b"", _prefix(RunGroup(wait_class, 0)), _prefix(first))
                self.runs = [run for run in self.runs if run.group.wait_class != wait_class or run.group >= first]
                self.version += 1

    # --- searching ------------------------------------------------------------------------------------------------

    def search(self, hash_: bytes, after: bytes, most: int) -> Iterator[list[bytes]]:
        """Places with this hash above `after`, in parts. The first `most` of them are certainly returned.

        Other tasks may run between two parts. If `version` has changed, start again.
        """
        yield nsmallest(most, set(self._in_chunks(hash_, after)))
        runs = self.runs
        for start in range(0, len(runs), _RUNS_TOGETHER):
            rows = self._store.cursor()
            places = [
                place
                for run in runs[start : start + _RUNS_TOGETHER]
                for place in _in_run(rows, run.prefix, hash_, after, most)
            ]
            rows.status()
            del rows  # the database cannot be closed while an iterator is open
            yield places

    def has(self, key: bytes, row: bytes) -> bool:
        """Whether this row is indexed, at any placement time."""
        for entry in self._topics.entries([(key, row)])[:1]:
            hash_, after = entry[:HASH_BYTES], bytes(PLACE_BYTES)
            return any(key_at(place) == key for part in self.search(hash_, after, sys.maxsize) for place in part)
        return False

    def _in_chunks(self, hash_: bytes, after: bytes) -> Iterator[bytes]:
        if not self.chunks:
            return
        for _, raw in self._store.each(INDEX_CHUNK):
            placed_ms = U64.unpack_from(raw)[0]
            for key in in_written(raw[U64.size :], hash_):
                place = place_of(placed_ms, key)
                if place > after:
                    yield place


def _in_run(rows: Any, prefix: bytes, hash_: bytes, after: bytes, most: int) -> list[bytes]:
    """Up to `most` places above `after`. Starts one page early: the hash may begin before the first page that starts
    with it."""
    places: list[bytes] = []
    rows.seek_for_prev(prefix + hash_ + bytes(U32.size))
    last = prefix + hash_ + b"\xff" * U32.size
    while rows.valid() and prefix <= rows.key() <= last:
        some = in_page(rows.value(), hash_)
        places += some[bisect_right(some, after) :]
        if len(places) >= most:
            return places[:most]
        rows.next()
    return places


def _up_to(items: Iterable[Any], counts: Sequence[int]) -> Iterator[Any]:
    """The first items with at most `_MAX_MERGED` entries in total, but at least two items."""
    total = 0
    for number, (item, count) in enumerate(zip(items, counts, strict=True)):
        total += count
        if number >= 2 and total > _MAX_MERGED:
            return
        yield item
