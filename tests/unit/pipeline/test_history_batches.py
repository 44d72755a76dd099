"""Which folders of a history count, and which files are joined."""

from __future__ import annotations

import random

from duemq.pipeline.history.formats.committed import DataFile, groups
from duemq.pipeline.history.formats.parquet import Batches, holds, named, standing


def test_a_name_says_what_a_folder_holds() -> None:
    for one in (Batches(7, 7), Batches(0, 6), Batches(10**9, 10**10)):
        assert named(one.name) == one
    assert named("batch=0000000007") == Batches(7, 7) and named("batch=0000000000-0000000006") == Batches(0, 6)
    assert named("_staging") is None and named("batch=x") is None


def test_a_folder_counts_unless_another_one_holds_all_of_it() -> None:
    for seed in range(200):
        random_ = random.Random(seed)
        folders = {Batches(n, n) for n in range(40) if random_.random() < 0.6}
        for _ in range(random_.randrange(4)):  # merges of neighbours, some of whose sources are still there
            first = random_.randrange(40)
            folders.add(Batches(first, first + random_.randrange(1, 9)))
        wanted = [
            one
            for one in sorted(folders)
            if not any(other != one and other.first <= one.first and one.last <= other.last for other in folders)
        ]
        shuffled = random_.sample(sorted(folders), len(folders))
        assert standing(shuffled) == wanted, seed
        for number in range(50):
            assert holds(wanted, number) == any(one.first <= number <= one.last for one in folders), seed


def test_a_history_of_a_year_without_merging_is_listed() -> None:
    """A batch a minute. Comparing each with each does not end: that is 276,000,000,000 times."""
    folders = [Batches(n, n) for n in range(525_600)]
    assert len(standing(reversed(folders))) == len(folders)


def test_files_are_joined_by_day_up_to_a_size_and_days_together_up_to_it() -> None:
    for seed in range(200):
        random_ = random.Random(seed)
        files = [
            DataFile(f"f{n}", random_.choice((1, 5, 60, 100, 400)), 0, f"2028-01-{random_.randrange(1, 6):02d}")
            for n in range(random_.randrange(30))
        ]
        found = groups(random_.sample(files, len(files)), 100)
        joined = [file for group in found for file in group]
        assert len(joined) == len(set(joined)) and set(joined) <= set(files), seed
        for group in found:
            assert sum(file.size for file in group) <= 100, seed
            days = [file.date for file in group]
            assert all(days.count(day) > 1 for day in days), f"{seed}: a file that is alone of its day stays as it is"


def test_a_year_of_days_that_need_nothing_is_left_alone() -> None:
    assert groups([DataFile(f"f{n}", 10, 0, f"day {n}") for n in range(365)], 100) == []
    assert groups([], 100) == []
