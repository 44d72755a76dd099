"""Administrative state: the first change wins, and a snapshot stands for what was dropped."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.cluster.admin.state import MAX_ITEM_BYTES, MAX_REMOVED, AdminState, Item, ItemChange
from duemq.model.errors import CorruptStore, Rejected
from duemq.model.messages.record import StoredRecord, pack_record


def change(item: str, version: int, value: Any = None) -> bytes:
    return ItemChange(item, version, value, 0, "test").frame()


def read(log: list[bytes], start: int = 0, until: int | None = None) -> AdminState:
    state = AdminState(start)
    for offset, frame in list(enumerate(log))[start:until]:
        state.apply(StoredRecord(offset, 0, frame))
    return state


def test_the_first_of_two_changes_wins() -> None:
    state = read([change("keys/a", 1, {"x": 1}), change("keys/a", 2, {"x": 2}), change("keys/a", 2, {"x": 3})])
    assert state.items == {"keys/a": Item(2, {"x": 2})}


def test_what_was_removed_is_not_listed_and_keeps_its_version() -> None:
    state = read([change("keys/a", 1, {}), change("keys/b", 1, {}), change("keys/a", 2, None)])
    assert [name for name, _ in state.of_kind("keys")] == ["b"]
    assert state.version_of("keys/a") == 2


def test_of_what_was_removed_so_many_are_known_and_no_version_comes_again() -> None:
    names = [f"destinations/{number}" for number in range(MAX_REMOVED + 1)]
    log = [change("keys/a", 1, {}), change(names[0], 1, {}), change(names[0], 2, {}), change(names[0], 3, None)]
    for name in names[1:]:
        log += [change(name, 1, {}), change(name, 2, None)]
    state = read(log)
    assert list(state.items) == ["keys/a", *names[1:]], "the one that was removed first is forgotten"
    assert state.version_of(names[0]) == state.version_of("destinations/new") == 3
    late = change(names[0], 3, {"by": "somebody who read the second version, and slept"})
    assert not state.apply(StoredRecord(len(log), 0, late))
    assert state.apply(StoredRecord(len(log) + 1, 0, change(names[0], 4, {})))
    size, sizes = state.size_bytes, {name: len(orjson.dumps(item.value)) for name, item in state.items.items()}
    assert size == sum(sizes.values()) + sum(map(len, sizes))


def test_a_snapshot_tells_what_was_removed_first_and_the_highest_version_that_is_forgotten() -> None:
    with patch("duemq.cluster.admin.state.MAX_REMOVED", 2):
        log = [change(name, 1, {}) for name in "abcd"]
        log += [change("a", 2, {}), change("a", 3, None), change("c", 2, None), change("b", 2, None)]
        everything = read(log)
        late = AdminState(len(log))
        late.apply(StoredRecord(len(log), 0, everything.snapshot()))
        for state in (everything, late):
            assert state.version_of("a") == 3
            state.apply(StoredRecord(len(log) + 1, 0, change("d", 2, None)))
            assert list(state.items) == ["b", "d"], "c was removed before b"
            assert state.version_of("a") == state.version_of("c") == 3, "it never goes back"


def test_an_item_has_a_bound() -> None:
    with pytest.raises(Rejected, match=f"may have {MAX_ITEM_BYTES}"):
        AdminState(0).check_room(ItemChange("keys/a", 1, {"x": "y" * MAX_ITEM_BYTES}, 0, "test"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":2}',
        b'{"format":1,"item":"a"}',
        b"\xff",
        b"2",
        b'{"format":1,"through":"a","items":{}}',
        b'{"format":1,"through":7,"items":5}',
        b'{"format":1,"through":7,"items":{"a":5}}',
        b'{"format":1,"item":5,"version":"x","value":1,"at":0,"by":""}',
        b'{"format":1,"item":"a","version":1,"value":7,"at":0,"by":""}',
    ],
)
def test_a_record_that_is_none_stops_the_reader(content: bytes) -> None:
    with pytest.raises(CorruptStore, match="record 7 of the administrative log"):
        AdminState(7 if b"through" in content else 0).apply(StoredRecord(7, 0, pack_record(None, (), content)))


writes = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(-1, 1), st.booleans(), st.booleans()), max_size=40)


@given(writes=writes, slow=st.integers(0, 5), removed=st.integers(1, 3))
@pytest.mark.heavy
def test_who_begins_behind_a_snapshot_knows_the_same_as_who_read_all(writes: Any, slow: int, removed: int) -> None:
    """Changes with versions that lost, snapshots that were appended late, trims of any that is in the log, and removed
    items that are forgotten."""
    with patch("duemq.cluster.admin.state.MAX_REMOVED", removed):
        check_readers(writes, slow, removed)


def check_readers(writes: Any, slow: int, removed: int) -> None:
    log: list[bytes] = []
    everything = AdminState(0)
    versions: dict[str, list[int]] = {}  # that counted
    waiting: list[tuple[int, bytes, int]] = []  # snapshots under way: when they are appended, and what they go through
    starts = [0]

    def append(frame: bytes) -> bool:
        log.append(frame)
        return everything.apply(StoredRecord(len(log) - 1, 0, frame))

    for turn, (item, off, removes, snapshots) in enumerate(writes):
        version = max(everything.version_of(item) + 1 + off, 1)
        if append(change(item, version, None if removes else {"turn": turn})):
            versions.setdefault(item, []).append(version)
        assert sum(one.value is None for one in everything.items.values()) <= removed
        if snapshots:
            waiting.append((turn + slow, everything.snapshot(), everything.next_offset))
        for one in [one for one in waiting if one[0] <= turn]:
            waiting.remove(one)
            append(one[1])
            starts.append(max(starts[-1], one[2]))
    late = read(log, starts[-1])
    assert late.is_complete and late.items == everything.items
    assert late.size_bytes == everything.size_bytes
    assert all(late.version_of(item) == everything.version_of(item) for item in "abcdef")
    assert all(counted == sorted(set(counted)) for counted in versions.values()), "no version counts twice"
