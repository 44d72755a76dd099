"""Which windows are sealed, loaded and rewritten, and together with which others."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.delay.tiering import tiering_policy
from duemq.delay.tiering.tiering_policy import QuietWindows, TieringPolicy, runs_of
from duemq.model.messages.key import make_key
from duemq.model.timing import WINDOW_MS
from duemq.storage.delay_files.about import About
from duemq.storage.delay_files.catalog import CatalogFile, DelayFileCatalog

NOW = 1_000 * WINDOW_MS + 7
POLICY = TieringPolicy(rows=100, windows=2, rewrite_rows=10)


def start(number: int) -> int:
    """Of the window so many after the current one."""
    return (1_000 + number) * WINDOW_MS


def table(rows: dict[int, int], dropped: dict[int, int] | None = None) -> DelayFileCatalog:
    delay_files = DelayFileCatalog(Path("nowhere"), (), (), ())
    for number, count in rows.items():
        delay_files.add(CatalogFile(About(0, start(number), count, "", "", ""), 1), (dropped or {}).get(number, 0))
    return delay_files


def test_windows_that_are_far_and_full_are_worth_it() -> None:
    totals = {start(number): 100 for number in range(-1, 6)} | {start(6): 99}
    assert POLICY.worth_it(table({}), totals, NOW) == {start(3): 100, start(4): 100, start(5): 100}


def test_a_window_with_files_needs_many_more_messages() -> None:
    delay_files = table({3: 1_000, 4: 1_000, 5: 1_000}, {5: 900})
    totals = {start(3): 1_249, start(4): 1_250, start(5): 200}
    assert POLICY.worth_it(delay_files, totals, NOW) == {start(4): 250, start(5): 100}


def test_a_window_whose_load_was_cut_short_is_left_alone() -> None:
    delay_files = table({3: 100}, {3: 100})
    delay_files.loading.add(start(3))
    assert POLICY.worth_it(delay_files, {start(3): 500}, NOW) == {}
    assert POLICY.to_rewrite(delay_files, NOW) == []


def test_windows_are_loaded_so_long_before_their_start() -> None:
    delay_files = table({3: 1, 4: 1, 9: 1})
    before = start(4) - POLICY.ahead_ms
    assert POLICY.to_load(delay_files, before - WINDOW_MS - 1) == []
    assert POLICY.to_load(delay_files, before - 1) == [start(3)]
    assert POLICY.to_load(delay_files, before) == [start(3), start(4)]


def test_windows_with_a_share_of_dead_messages_are_rewritten_and_empty_ones_before() -> None:
    rows, dropped = {3: 100, 4: 100, 5: 8, 6: 100, 2: 100}, {3: 49, 4: 50, 5: 7, 6: 99, 2: 80}
    assert POLICY.to_rewrite(table(rows, dropped), NOW) == [start(4), start(6)]
    assert POLICY.to_rewrite(table(rows, dropped | {5: 8}), NOW) == [start(5)]


def files_of(sizes: list[int]) -> list[tuple[int, CatalogFile]]:
    return [(size, CatalogFile(About(0, start(3), 1, "", "", "", offset=at))) for at, size in enumerate(sizes)]


def test_small_files_of_a_far_window_are_joined_some_at_a_time() -> None:
    files = files_of([1_000] * 130 + [2 << 20])
    groups = POLICY.joins(files, crowded=False)
    assert [len(group) for group in groups] == [43, 43, 44], "no group has more files than are open at a time"
    assert [file for group in groups for file in group] == [file for _, file in files[:130]], "nor the large one"
    assert POLICY.joins(files[:15], crowded=False) == []
    delay_files = table({3: 1, 9: 1})
    for _, file in files:
        delay_files.add(file)
    assert POLICY.worth_joining(delay_files, NOW) == {start(3): 132}
    assert POLICY.worth_joining(delay_files, NOW + WINDOW_MS) == {}, "it is near"


def test_a_message_is_written_few_times_by_joins() -> None:
    sizes, written = list[int](), 0
    for _ in range(1_000):
        sizes.append(500_000)
        while groups := POLICY.joins(files_of(sizes), crowded=False):
            for group in groups:
                joined = [sizes[file.about.offset or 0] for file in group]
                written += sum(joined)
                for size in joined:
                    sizes.remove(size)
                sizes.append(sum(joined))
    assert written <= 6 * 1_000 * 500_000
    assert len(sizes) < 40


def test_a_crowded_window_loses_as_many_files_as_are_too_many() -> None:
    policy = TieringPolicy(merge_files=100)
    for count in (101, 200, 4_000):
        files = files_of([1 << 30] * count)
        left = count - sum(len(group) - 1 for group in policy.joins(files, crowded=True))
        assert 96 * policy.merge_files // 100 - count // 32 <= left <= policy.merge_files
    delay_files = table({3: 1})
    for _, file in files[:100]:
        delay_files.add(file)
    assert policy.crowded(delay_files, [start(3), start(4)]) == [start(3)]


def test_a_dropped_message_counts_once_and_is_forgotten_with_its_window() -> None:
    delay_files = table({3: 2, 4: 2})
    delay_files.drop([make_key(start(3), 1, 0), make_key(start(4), 2, 0), make_key(start(4), 3, 0)])
    assert (delay_files.messages, delay_files.pending(start(3)), delay_files.pending(start(4))) == (1, 1, 0)
    delay_files.forget(start(4))
    assert (delay_files.messages, delay_files.drop_count(start(4)), delay_files.first) == (1, 0, start(3))


def test_windows_settle_once_they_hardly_grow() -> None:
    tracker = QuietWindows(10)
    assert tracker.among({1: 1_000, 2: 1_000}, 0) == []
    assert tracker.among({1: 1_010, 2: 1_011}, 9) == []
    assert tracker.among({1: 1_010, 2: 1_011}, 10) == [1]
    assert tracker.among({1: 1_010, 2: 1_011}, 19) == [1, 2]
    tracker.forget(1)
    assert tracker.among({1: 1_010, 2: 1_011}, 19) == [2]
    assert tracker.among({}, 20) == []
    assert tracker.among({2: 1_011}, 21) == [], "it was away meanwhile"


def test_one_run_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering_policy, "_MAX_WINDOWS", 2)
    monkeypatch.setattr(tiering_policy, "_MAX_ROWS", 100)
    tracker = QuietWindows(0)
    assert tracker.among({3: 10, 1: 10, 2: 10}, 0) == [1, 2]
    assert tracker.among({1: 60, 2: 41}, 0) == [1]
    assert tracker.among({1: 1_000, 2: 1}, 0) == [1]


def test_neighbours_are_one_run() -> None:
    assert runs_of([start(5), start(1), start(2)]) == [(start(1), start(3)), (start(5), start(6))]
    assert runs_of([]) == []


@pytest.mark.parametrize("key", [0, 1, 2, 3])
def test_the_next_window_with_keys_above_a_key(key: int) -> None:
    delay_files = table({1: 1, 3: 1})
    last = make_key(start(key + 1) - 1, (1 << 64) - 1, (1 << 32) - 1)
    expected = {0: start(1), 1: start(3), 2: start(3), 3: None}[key]
    assert delay_files.next_after(last) == expected
    inside = make_key(start(key), 5, 0)
    assert delay_files.next_after(inside) == {0: start(1), 1: start(1), 2: start(3), 3: start(3)}[key]
