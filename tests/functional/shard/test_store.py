"""The store of a shard on a real disk: order, bounds, atomic writes, and what a flush promises."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from duemq.model.errors import FolderRefused
from duemq.model.log.ledger import START, Answer, DeferredMessage, Entry, OutcomeCounts
from duemq.model.messages.ended import DEAD, EndedMessage
from duemq.model.messages.key import HIGHEST, LOWEST, last_key_at, make_key
from duemq.model.timing import WINDOW_MS, window_of
from duemq.storage.keyspace import APPLIED, CURSOR, ENDED, ROW, U64, WHEN, LedgerPosition
from duemq.storage.rocksdb import Memory
from duemq.storage.shard.store import Puts, ShardStore
from tests.support.patience import WITHIN_S

KEYS = [make_key(1_000 + number // 2, number, 0) for number in range(10)]
MEMORY = Memory(1 << 20, 1 << 20)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ShardStore]:
    opened = ShardStore(tmp_path / "store", MEMORY)
    yield opened
    opened.close()


def write(store: ShardStore, puts: Puts, windows: dict[int, int] | None = None) -> None:
    store.write(puts, [], store.position, windows or {})


def test_scan_gives_rows_above_a_key_in_order_within_its_bounds(store: ShardStore) -> None:
    write(store, [(ROW + key, b"r" * 10) for key in reversed(KEYS)] + [(ENDED + KEYS[3], b"e")])
    assert store.scan(LOWEST, HIGHEST, 99, 1 << 20)[0] == KEYS
    assert store.scan(KEYS[2], KEYS[6], 99, 1 << 20) == (KEYS[3:7], [b"r" * 10] * 4)
    assert store.scan(KEYS[2], last_key_at(1_003), 2, 1 << 20)[0] == KEYS[3:5]
    assert store.scan(KEYS[2], HIGHEST, 99, 11)[0] == KEYS[3:5]
    assert store.scan(LOWEST, HIGHEST, 99, 1)[0] == KEYS[:1], "one row always comes, however large"
    assert store.scan(KEYS[9], HIGHEST, 99, 1 << 20) == ([], [])
    assert store.scan(LOWEST, HIGHEST, 99, 1 << 20, ENDED)[0] == [KEYS[3]]


def test_a_scan_of_keys_does_not_see_later_writes(store: ShardStore) -> None:
    write(store, [(ROW + key, b"") for key in KEYS])
    scan = store.scan_keys(KEYS[0], 1_004)
    store.delete([ROW + KEYS[5]])
    write(store, [(ROW + make_key(1_003, 99, 0), b"")])
    dues: list[int] = []
    while not scan.done:
        dues += scan.part(3).tolist()
    assert dues == [1_000, 1_001, 1_001, 1_002, 1_002, 1_003, 1_003]


def test_look_ups_answer_in_the_order_asked(store: ShardStore) -> None:
    ended = EndedMessage(DEAD, 77, "expired", b"row")
    write(store, [(ROW + KEYS[0], b"a"), (ROW + KEYS[1], b"b"), (ENDED + KEYS[2], ended.encode())])
    assert store.rows([KEYS[1], KEYS[7], KEYS[0]]) == [b"b", None, b"a"]
    assert store.endings([KEYS[0], KEYS[2]]) == [None, ended]
    assert store.rows([]) == store.names([]) == []


def test_delivered_at_is_the_later_of_cursor_and_apply(store: ShardStore) -> None:
    write(store, [
        (CURSOR + last_key_at(1_001), WHEN.pack(1, 5_001)), (CURSOR + last_key_at(1_003), WHEN.pack(3, 5_003)),
        (APPLIED + U64.pack(5), WHEN.pack(1, 5_001)), (APPLIED + U64.pack(9), WHEN.pack(2, 5_002)),
    ])  # fmt: skip
    assert store.delivered_at(make_key(1_000, 2, 0), 2) == 5_001
    assert store.delivered_at(make_key(1_000, 5, 0), 5) == 5_002, "it came late"
    assert store.delivered_at(make_key(1_002, 3, 0), 3) == 5_003
    assert store.delivered_at(make_key(1_004, 3, 0), 3) == 0, "the cursor is not there yet"
    assert store.delivered_at(make_key(1_000, 9, 0), 9) == 0, "not applied yet"


def test_position_and_windows_come_with_the_same_write(tmp_path: Path) -> None:
    store = ShardStore(tmp_path / "store", MEMORY)
    answers = {5: Answer.OK, 6: Answer.OK, 9: Answer.UNKNOWN}
    deferred = (DeferredMessage(KEYS[0], KEYS[4], 2, "unknown_topic"), DeferredMessage(KEYS[1], None, 3, "expired"))
    entry = Entry(7, 10, KEYS[3], 123, answers, deferred, 3, 2**64 - 1, OutcomeCounts(9, 4, 1, 1))
    first, second = window_of(10 * WINDOW_MS + 5), window_of(99 * WINDOW_MS)
    store.write([(ROW + KEYS[0], b"a")], [], LedgerPosition(START, 0), {first: 2, second: 1})
    store.write([(ROW + KEYS[1], b"b")], [ROW + KEYS[0]], LedgerPosition(entry, 31), {second: 0})
    store.close()
    with_all = ShardStore(tmp_path / "store", MEMORY)
    assert with_all.position == LedgerPosition(entry, 31)
    assert with_all.windows() == {first: 2}
    assert with_all.rows(KEYS[:2]) == [None, b"b"]
    with_all.close()


def test_only_what_was_flushed_survives_a_kill(store: ShardStore, tmp_path: Path) -> None:
    write(store, [(ROW + KEYS[0], b"a")])
    assert store.unflushed_bytes > 0
    store.flush()
    assert store.unflushed_bytes == 0
    write(store, [(ROW + KEYS[1], b"b")])
    shutil.copytree(store.path, tmp_path / "killed")
    left = ShardStore(tmp_path / "killed", MEMORY)
    assert left.rows(KEYS[:2]) == [b"a", None]
    left.close()


def test_dropping_a_range_spares_other_kinds_and_the_end(store: ShardStore) -> None:
    write(store, [(kind + key, b"") for key in KEYS for kind in (ROW, ENDED)])
    store.drop(ROW, b"", KEYS[4])
    store.compact()
    assert [key for key, _ in store.each(ROW)] == KEYS[4:]
    assert [key for key, _ in store.each(ENDED)] == KEYS


def test_a_store_in_use_is_refused(store: ShardStore) -> None:
    with pytest.raises(FolderRefused):
        ShardStore(store.path, MEMORY)


def test_a_store_is_closed_while_it_is_compacted(tmp_path: Path) -> None:
    store = ShardStore(tmp_path / "compacted", MEMORY)
    keys = [make_key(1_000, number, 0) for number in range(20_000)]
    for start in range(0, len(keys), 1_000):
        write(store, [(ROW + key, os.urandom(500)) for key in keys[start : start + 1_000]])
        store.flush()
    begun = threading.Event()
    inner = store.db

    class Noting:
        """Says when RocksDB is asked to compact, and so when it is about to be in use."""

        def compact_range(self, *arguments: bytes | None) -> None:
            begun.set()
            inner.compact_range(*arguments)

        def __getattr__(self, name: str) -> object:
            return getattr(inner, name)

    store.db = Noting()
    compacting = threading.Thread(target=store.compact)
    compacting.start()
    assert begun.wait(WITHIN_S)
    store.close()
    compacting.join(300)
    assert not compacting.is_alive()
    store.compact()  # who comes too late finds it closed, and that is all
    again = ShardStore(tmp_path / "compacted", MEMORY)
    assert again.scan(LOWEST, HIGHEST, 99_999, 1 << 30)[0] == keys
    again.close()
