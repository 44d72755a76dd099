"""The draws of the hour, and its report."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import orjson
import pytest

from tests.chaos.hour.account import Account
from tests.chaos.hour.audit import Audits
from tests.chaos.hour.draw import BREAKAGES, draw


def test_each_kind_comes_before_any_comes_again() -> None:
    drawn = [breakage.name for breakage in islice(draw(Random(1)), 2 * len(BREAKAGES))]
    assert set(Counter(drawn).values()) == {2}
    assert set(drawn[: len(BREAKAGES)]) == set(drawn[len(BREAKAGES) :])
    assert drawn == [breakage.name for breakage in islice(draw(Random(1)), 2 * len(BREAKAGES))]
    assert drawn != [breakage.name for breakage in islice(draw(Random(2)), 2 * len(BREAKAGES))]


def test_what_takes_three_servers_is_not_drawn_where_there_is_one() -> None:
    drawn = {breakage.name for breakage in islice(draw(Random(1), servers=1), len(BREAKAGES))}
    assert {breakage.name for breakage in BREAKAGES} - drawn == {
        "ZooKeeper's leader killed", "ZooKeeper's quorum lost", "a broker killed", "a leader deposed",
        "a broker cut off from the brokers", "bad topic: too few replicas in sync", "bad topic: no leader",
        "administrative topics without a leader",
    }  # fmt: skip


def test_slices_of_the_audit_add_up(tmp_path: Path) -> None:
    audits = Audits("", tmp_path)
    audits.slices = [
        {"accepted": 3, "outcomes": {"delivered": 2, "cancelled": 1}, "violations": {}},
        {"accepted": 4, "outcomes": {"delivered": 4}, "violations": {"twice": 1}},
    ]
    assert (audits.accepted, audits.outcomes, audits.violations) == (7, {"delivered": 6, "cancelled": 1}, {"twice": 1})


@pytest.mark.parametrize("wrong", [{"failure": "AssertionError: delivered twice"}, {"violations": {"lost": 1}}])
def test_what_is_wrong_is_not_clean(wrong: dict[str, object], tmp_path: Path) -> None:
    assert Account(1, 60).clean
    account = Account(1, 60, **wrong)  # type: ignore[arg-type]
    account.breakages["a broker killed"] += 2
    account.write(tmp_path / "hour.json")
    assert not orjson.loads((tmp_path / "hour.json").read_bytes())["clean"]
    text = (tmp_path / "hour.md").read_text()
    assert "| a broker killed | 2 |" in text
    assert "| wrong by the senders' own records | 1 |" in text or "| wrong by the Spark audit | 1 |" in text
