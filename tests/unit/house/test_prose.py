"""No folder and no page reads more like a translation than it did."""

from __future__ import annotations

import pytest

from tests.support.house.prose import TURNS, Prose, measured, recorded

pytestmark = pytest.mark.heavy

NEW = 2.0  # turns per 1,000 words that a new folder or page may have


def _rises(place: str, now: Prose, before: dict[str, Prose]) -> bool:
    if place not in before:
        return now.density > NEW
    return now.turns > before[place].turns and now.density > before[place].density


def test_no_folder_or_page_has_more_turns_that_read_as_translated() -> None:
    before = recorded()
    risen = {
        place: f"{before.get(place, Prose(0, 0)).density:.1f} -> {now.density:.1f}"
        for place, now in measured().items()
        if _rises(place, now, before)
    }
    assert risen == {}, "say it as a native engineer would (`make prose` shows the counts)"


def test_a_rise_is_found() -> None:
    before = {"page": Prose(1, 1_000)}
    assert _rises("page", Prose(2, 1_000), before)
    assert not _rises("page", Prose(1, 900), before)
    assert not _rises("page", Prose(2, 2_000), before)
    assert _rises("new page", Prose(3, 1_000), before) and not _rises("new page", Prose(2, 1_000), before)


def test_the_list_finds_such_turns() -> None:
    assert TURNS.findall("Whoever holds it waits for so long that nobody asks what became of it.") == [
        "Whoever holds", "for so long", "nobody", "what became of",
    ]  # fmt: skip
