"""Asking until each message has an answer: what is asked again, when, and what ends it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from duemq.client.http.errors import NaiveTimeError, Unauthorised, Unavailable, Unreachable
from duemq.client.http.values import CancelResult
from duemq.pipeline.bulk_change.requests import ChangeAnswer, Result, answers

Answer = Sequence[Result] | Exception


class Script:
    """A server that answers as it is told, and a clock that only sleeping moves."""

    def __init__(self, *said: Answer) -> None:
        self.said, self.asked = list(said), list[list[str]]()
        self.now, self.slept = 0.0, list[float]()

    def __call__(self, *ids: str, patience_s: float = 10.0) -> list[ChangeAnswer]:
        return answers(ids, self._ask, patience_s, lambda: self.now, self._sleep)

    def _ask(self, ids: Sequence[str]) -> Sequence[Result]:
        self.asked.append(list(ids))
        said = self.said.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def pending(id_: str) -> CancelResult:
    return CancelResult(id_, "pending")


def test_only_what_is_pending_is_asked_again() -> None:
    first = [CancelResult("a", "cancelled", 5), pending("b"), CancelResult("c", "unknown")]
    script = Script(first, [pending("b")], [CancelResult("b", "already_delivered", 7)])
    assert script("a", "b", "c") == [
        ChangeAnswer("cancelled", 5), ChangeAnswer("already_delivered", 7), ChangeAnswer("unknown"),
    ]  # fmt: skip
    assert script.asked == [["a", "b", "c"], ["b"], ["b"]]
    assert all(0 < pause < 1 for pause in script.slept)


def test_one_that_nobody_knows_of_is_asked_again() -> None:
    unknown = Unreachable("it may have been moved", outcome_unknown=True)
    script = Script([unknown, CancelResult("b", "cancelled", 5)], [CancelResult("a", "cancelled", 6)])
    assert script("a", "b") == [ChangeAnswer("cancelled", 6), ChangeAnswer("cancelled", 5)]
    assert script.asked == [["a", "b"], ["a"]]


def test_what_has_no_answer_is_asked_again_after_the_pause_the_server_asks_for() -> None:
    away = Unreachable("timed out", outcome_unknown=True)
    script = Script(Unavailable("busy", 3), away, away, [CancelResult("a", "cancelled", 5)])
    assert script("a") == [ChangeAnswer("cancelled", 5)]
    assert script.asked == [["a"]] * 4
    assert script.slept[0] == 3.0 and script.slept[1] < script.slept[2] < 1


def test_patience_ends_with_an_error_where_nothing_answers_and_with_pending_where_it_does() -> None:
    with pytest.raises(Unavailable, match="busy"):
        Script(*(Unavailable("busy", 4) for _ in range(9)))("a")
    with pytest.raises(Unreachable):
        Script(*(Unreachable("gone", outcome_unknown=False) for _ in range(99)))("a")
    script = Script(*([pending("a")] for _ in range(99)))
    (told,) = script("a")
    assert (told.status, told.detail) == ("pending", "not known yet: ask again") and 10 <= script.now < 13


def test_patience_begins_anew_with_each_answer() -> None:
    busy = Unavailable("busy", 6)
    said: list[Answer] = [busy, [CancelResult("a", "cancelled"), pending("b")], busy, busy]
    said.append([CancelResult("b", "cancelled")])
    assert [told.status for told in Script(*said)("a", "b", patience_s=10)] == ["cancelled"] * 2


def test_a_refusal_of_one_is_its_answer_and_a_refusal_of_all_an_error() -> None:
    refused = NaiveTimeError("naive_time", "no zone", "deliver_at")
    (told,) = Script([refused])("a")
    assert told.status == "refused" and told.detail is not None and "no zone" in told.detail
    with pytest.raises(Unauthorised):
        Script(Unauthorised("unauthorised", "no key"))("a")
    assert Script()() == []
