"""The account of an abused server: it must find each thing that is wrong, or the long test shows nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from duemq.bench.clients.reader import ReceivedRecords
from duemq.bench.clients.send import ACCEPTED, OPEN, SentMessages
from tests.abuse.account import Account
from tests.abuse.base import Sizes
from tests.abuse.honest import Kept

DUES = np.arange(1_000, 2_000)
ABUSED_FROM = 1_500.0


def account() -> Account:
    """Of a run in which all went well: committed 2 ms late, read 5 ms late, and ten times that under abuse."""
    late = np.where(DUES >= ABUSED_FROM, 10, 1)
    seq = np.arange(len(DUES))
    made = Account(1.0, 1_000.0, 1, Sizes(), ["idle"], ABUSED_FROM, 2_100.0)
    made.rss, made.peak_rss_bytes = [(1_000.0, 100 << 20), (1_900.0, 200 << 20)], 250 << 20
    made.visits = [(1_000.0, 2.0, True), (1_600.0, 3.0, True), (1_700.0, 5_000.0, False)]
    made.counts, made.exit_code = {"idle": {"tried": 5_000}}, 0
    made.sent = SentMessages(
        DUES, np.full(len(DUES), ACCEPTED, np.int8), [], (DUES - 1_000).astype(np.float64), np.full(len(DUES), 4.0),
        np.ones(len(DUES), int), 0.0, 1_000.0, 0, 0, None,
    )  # fmt: skip
    made.received = ReceivedRecords(seq, DUES, DUES + 5.0 * late, np.zeros(len(DUES), int), [], 1, 0)
    made.kept = Kept(seq, DUES, DUES + 2 * late)
    return made


def test_a_good_run_holds_and_its_figures_are_told_apart(tmp_path: Path) -> None:
    good = account()
    assert good.holds, good.table()
    without, under = good.phase(abused=False), good.phase(abused=True)
    assert without is not None and under is not None
    assert (without.messages, under.accepted) == (500, 500)
    assert (without.committed.p99, without.read.p99, under.committed.p99, under.read.p99) == (2, 5, 20, 50)
    assert (without.turned_away, under.turned_away, under.visits) == (0, 1, 2)
    assert (without.most_rss_bytes, under.most_rss_bytes) == (100 << 20, 200 << 20)
    good.write(tmp_path / "abuse.json")
    written = orjson.loads((tmp_path / "abuse.json").read_bytes())
    assert written["holds"] and written["phases"]["with"]["read"]["p99"] == 50


def outcome(made: Account, seq: int, what: int) -> None:
    assert made.sent is not None
    made.sent.outcome[seq] = what


def unread(made: Account) -> None:
    assert made.received is not None
    one = made.received
    made.received = replace(one, seq=one.seq[1:], due=one.due[1:], at=one.at[1:], partition=one.partition[1:])


def doubled(made: Account) -> None:
    assert made.kept is not None
    made.kept = Kept(*(np.append(column, column[0]) for column in (made.kept.seq, made.kept.due, made.kept.at)))


def late(made: Account) -> None:
    assert made.kept is not None
    made.kept.at[-10:] += 200


def late_without(made: Account) -> None:
    assert made.kept is not None
    made.kept.at[:10] += 200


WRONG: dict[str, Callable[[Account], None]] = {
    "each honest message is accepted": lambda made: outcome(made, 7, OPEN),
    "each is read once, and not early": unread,
    "each is in its topic once": doubled,
    "p99 lateness below 100 ms, by the records' times": late,
    "memory below 1 GiB": lambda made: setattr(made, "peak_rss_bytes", 1 << 30),
    "the server lived, and stopped when told to": lambda made: setattr(made, "exit_code", -9),
    "the run came to its end": lambda made: setattr(made, "failure", "TimeoutError"),
    "idle: 5,000 at least": lambda made: setattr(made, "counts", {}),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_found(text: str) -> None:
    bad = account()
    WRONG[text](bad)
    assert [check.text for check in bad.checks() if not check.holds] == [text]
    assert not bad.holds and f"NOT  {text}" in bad.table()


def test_lateness_without_abuse_is_shown_beside_and_not_judged() -> None:
    slow = account()
    late_without(slow)
    phase = slow.phase(abused=False)
    assert slow.holds and phase is not None and phase.committed.p99 == 202


def test_a_run_that_was_cut_short_says_so() -> None:
    cut = Account(1.0, 1_000.0, 1, Sizes(), ["idle"], failure="ServerDied: exit code -9\nand more")
    assert not cut.holds and "NOT  the run came to its end: ServerDied: exit code -9\n" in cut.table()
