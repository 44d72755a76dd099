"""The index of messages: entries of rows, pages of runs, merges, and what is forgotten together."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from duemq.model.log.ledger import Entry
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import LOWEST, due_of, make_key
from duemq.model.messages.message import Draft, schedule_frame
from duemq.model.messages.names import of_client
from duemq.model.messages.place import PLACE_BYTES, key_at, place_of
from duemq.model.messages.row import row_of, shows_due
from duemq.model.timing import WINDOW_MS, window_of
from duemq.storage.checkpoint.checkpoint import make_checkpoint
from duemq.storage.keyspace import INDEX_RUN, ROW, LedgerPosition
from duemq.storage.message_index import index as index_module
from duemq.storage.message_index import runs
from duemq.storage.message_index.index import MessageIndex
from duemq.storage.message_index.terms import ENTRY_BYTES, IndexedTopics, key_hash, label_hash
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.store import ShardStore

NOW = 1_700_000_000_000
IDS = IdCodec(b"s" * 32)
START = Entry(-1, 0, LOWEST, 0)


def row(draft: Draft, offset: int) -> tuple[bytes, bytes]:
    due = draft.due or 0
    return make_key(due, offset, 0), row_of(schedule_frame(draft, due), IDS.issue_bytes(0, due, offset))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ShardStore]:
    store = ShardStore(tmp_path / "store", Memory(1 << 20, 4 << 20), IDS)
    yield store
    store.close()


def add(store: ShardStore, rows: list[tuple[bytes, bytes]], at: int) -> None:
    puts = [(ROW + key, value) for key, value in rows] + store.index.add(rows, at)
    store.write(puts, [], LedgerPosition(Entry(0, 0, LOWEST, at)), {})


def merge_all(store: ShardStore, now: int) -> None:
    index = store.index
    while (merge := index.to_merge(now)) is not None:
        parts = index.read_chunks(number for number, _ in merge.chunks)
        parts += [part for run in merge.runs for part in index.read_run(run)]
        some = runs.groups_of(runs.merge(parts))
        index.replace(merge, [(group, len(part), list(runs.pages_of(part))) for group, part in some])


def search(index: MessageIndex, hash_: bytes, after: bytes = bytes(PLACE_BYTES), most: int = 1_000) -> list[bytes]:
    return sorted({place for part in index.search(hash_, after, most) for place in part})[:most]


def test_a_message_has_an_entry_for_its_key_and_one_for_each_label() -> None:
    draft = Draft("orders", b"p", NOW, b"k" * 300, labels=("eu", "vip"), name=of_client("1"), fingerprint=b"f" * 16)
    key, value = row(draft, 7)
    entries = IndexedTopics(["ord*"]).entries([(key, value)])
    assert entries == [key_hash(b"k" * 300) + key, label_hash(b"eu") + key, label_hash(b"vip") + key]
    assert {len(entry) for entry in entries} == {ENTRY_BYTES}
    assert IndexedTopics(["ord*"]).entries([row(draft._replace(key=None, labels=()), 7)]) == []
    assert IndexedTopics(["ord*"]).entries([row(draft._replace(key=b"", labels=()), 7)]) == [key_hash(b"") + key]
    assert IndexedTopics(["other"]).entries([(key, value)]) == []
    assert key_hash(b"eu") != label_hash(b"eu")


def test_many_topics_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.storage.message_index.terms._MAX_KNOWN", 3)
    topics = IndexedTopics(["t1*"])
    rows = [row(Draft(f"t{number}", b"", NOW, b"k"), number) for number in range(20)]
    assert len(topics.entries(rows)) == 11
    assert len(topics.known) <= 3


def test_a_row_tells_whether_it_shows_the_time_of_its_key() -> None:
    key, value = row(Draft("orders", b"p", NOW, b"key", labels=("eu",)), 7)
    assert shows_due(value, due_of(key)) and not shows_due(value, due_of(key) + 1)
    _, early = row(Draft("orders", b"p", 5), 7)
    assert not shows_due(early, 6)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_found_is_what_was_added(store: ShardStore, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a list, through chunks, merges and a new start; in order, page by page."""
    rng = random.Random(seed)
    monkeypatch.setattr(index_module, "_MAX_CHUNKS", rng.randint(1, 6))
    monkeypatch.setattr(index_module, "_FAN_IN", rng.randint(2, 5))
    monkeypatch.setattr(index_module, "_MAX_MERGED", rng.choice((8, 1 << 18)))
    monkeypatch.setattr(runs, "PAGE_ENTRIES", rng.choice((1, 2, 256)))
    store.index.switch(["*"], START)
    expected: dict[bytes, set[bytes]] = {}
    for number in range(60):
        at = NOW + number * rng.choice((1, WINDOW_MS))
        rows = []
        for offset in range(rng.randint(0, 4)):
            message_key = b"k%d" % rng.randint(0, 3)
            due = at + rng.randint(0, 100) * WINDOW_MS
            rows.append(row(Draft("t", b"", due, message_key), 10 * number + offset))
            expected.setdefault(message_key, set()).add(place_of(at, rows[-1][0]))
        add(store, rows, at)
        if rng.random() < 0.5:
            merge_all(store, at)
        for message_key, places in expected.items():
            assert search(store.index, key_hash(message_key)) == sorted(places)
    again = MessageIndex(store)
    assert [*again.runs] == store.index.runs and again.chunks == store.index.chunks
    for message_key, places in expected.items():
        after, paged = bytes(PLACE_BYTES), []
        while page := search(again, key_hash(message_key), after, 3):
            paged += page
            after = page[-1]
        assert paged == sorted(places)
    assert search(again, key_hash(b"nobody")) == []


def test_pages_give_back_what_they_were_made_of() -> None:
    rng = np.random.default_rng(1)
    keys = [make_key(NOW + int(rng.integers(1 << 40)), int(rng.integers(1 << 50)), int(rng.integers(1 << 31)))
            for _ in range(1_000)]  # fmt: skip
    raw = b"".join(key_hash(b"%d" % (number % 300)) + key for number, key in enumerate(keys))
    entries = runs.merge([runs.written_entries(raw, NOW), runs.written_entries(raw[: 28 * 10], NOW)])
    assert len(entries) == 1_000, "each entry once"
    pages = list(runs.pages_of(entries))
    assert [len(runs.entries_in(page)) for _, page in pages] == [256, 256, 256, 232]
    assert {runs.count_in(page) for _, page in pages} == {1_000}
    assert np.concatenate([runs.entries_in(page) for _, page in pages]).tolist() == entries.tolist()
    for number in range(300):
        hash_ = key_hash(b"%d" % number)
        places = [place for _, page in pages for place in runs.in_page(page, hash_)]
        assert places == sorted(place_of(NOW, key) for key in keys[number::300])
        assert sorted(runs.in_written(raw, hash_)) == sorted(keys[number::300])


def test_a_group_is_forgotten_when_none_of_its_rows_is_known_and_soon_after() -> None:
    rng = random.Random(2)
    for _ in range(3_000):
        placed = NOW + rng.randint(0, 1 << 40)
        wait = rng.choice((0, rng.randint(0, 1 << rng.randint(10, 42))))
        key = make_key(placed + wait, 1, 0)
        ((group, _),) = runs.groups_of(runs.written_entries(b"h" * 8 + key, placed))
        window = window_of(placed + wait)
        assert window <= group.last_window
        assert group.bucket >= runs.first_kept_bucket(group.wait_class, window), "forgotten while its window is known"
        latest = placed + 2.5 * wait + 10 * WINDOW_MS
        assert group.last_window <= latest
        assert group.bucket < runs.first_kept_bucket(group.wait_class, group.last_window + WINDOW_MS)
    late = runs.written_entries(b"h" * 8 + make_key(NOW - (1 << 40), 1, 0), NOW)
    ((group, _),) = runs.groups_of(late)
    assert group.last_window <= NOW + 10 * WINDOW_MS


def test_a_purge_drops_whole_groups(store: ShardStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_MAX_CHUNKS", 1)
    store.index.switch(["*"], START)
    near = row(Draft("t", b"", NOW + WINDOW_MS, b"k"), 1)
    far = row(Draft("t", b"", NOW + 4_000 * WINDOW_MS, b"k"), 2)
    add(store, [near, far], NOW)
    merge_all(store, NOW)
    store.index.purge(window_of(NOW + WINDOW_MS))
    assert len(search(store.index, key_hash(b"k"))) == 2
    version = store.index.version
    store.index.purge(window_of(NOW) + 12 * WINDOW_MS)
    assert [key_at(place) for place in search(store.index, key_hash(b"k"))] == [far[0]]
    assert store.index.version > version, "a search that is under way has to begin anew"
    assert len(MessageIndex(store).runs) == 1


def test_a_merge_is_given_up_where_its_runs_are_gone(store: ShardStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_MAX_CHUNKS", 1)
    store.index.switch(["*"], START)
    add(store, [row(Draft("t", b"", NOW + WINDOW_MS, b"k"), 1)], NOW)
    merge = store.index.to_merge(NOW)
    assert merge is not None
    store.index.switch(["t"], START)
    store.index.replace(merge, [(runs.RunGroup(3, 1), 1, [(bytes(12), b"page")])])
    assert not list(store.each(INDEX_RUN))


def test_a_checkpoint_has_the_index(store: ShardStore, tmp_path: Path) -> None:
    store.index.switch(["*"], START)
    add(store, [row(Draft("t", b"", NOW, b"k"), 1)], NOW)
    make_checkpoint(store, tmp_path / "copy")
    copy = ShardStore(tmp_path / "copy", Memory(1 << 20, 4 << 20), IDS)
    assert search(copy.index, key_hash(b"k")) == search(store.index, key_hash(b"k")) != []
    copy.close()


def test_other_topics_begin_anew_and_none_leave_nothing(store: ShardStore) -> None:
    store.index.switch(["*"], START)
    assert store.index.covers(None) and store.index.built
    add(store, [row(Draft("t", b"", NOW, b"k"), 1)], NOW)
    store.index.switch(["*"], Entry(5, 9, LOWEST, NOW))
    assert search(store.index, key_hash(b"k")), "the same setting changes nothing"
    store.index.switch(["t*"], Entry(5, 9, LOWEST, NOW))
    assert not search(store.index, key_hash(b"k"))
    assert not store.index.built and not store.index.covers("t1")
    again = MessageIndex(store)
    assert again.state == store.index.state and again.is_on("t1") and not again.is_on("x") and not again.is_on(None)
    store.index.switch([], Entry(5, 9, LOWEST, NOW))
    assert not store.index and not MessageIndex(store)
    assert store.index.add([row(Draft("t", b"", NOW, b"k"), 1)], NOW) == []
