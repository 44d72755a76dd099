"""How the data source asks a server that does not answer, or answers in part: in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from duemq.client import Client, Draft, EpochMs, Message, Unavailable, Unreachable
from duemq.client.http.errors import BatchInterrupted, NameConflict, UnexpectedAnswer
from duemq.client.http.values import MessageState
from duemq.pipeline.logs.server import patiently
from duemq.pipeline.spark_source.posting import ACCEPTED, REFUSED, REPEATED, posted


class Time:
    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def message(name: str, duplicate: bool = False) -> Message:
    return Message(cast(Client, None), MessageState(name, "scheduled", "t", EpochMs(1), duplicate))


DRAFTS = [Draft("t", name=name) for name in "abcd"]
CONFLICT = NameConflict("name_conflict", "another message has it")
LOST = Unreachable("no answer", outcome_unknown=True)
FULL = Unavailable("full", 7)


class Server:
    """Answers with what is next, and notes which names it was asked for."""

    def __init__(self, *answers: Any) -> None:
        self._answers, self.asked = list(answers), list[str]()

    def __call__(self, drafts: Sequence[Draft]) -> Sequence[Any]:
        self.asked.append("".join(str(draft.name or "?") for draft in drafts))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return cast(Sequence[Any], answer)


def interrupted(*results: Any, by: Exception) -> BatchInterrupted:
    error = BatchInterrupted("after some", results)
    error.__cause__ = by
    return error


def test_only_what_has_no_answer_is_sent_again() -> None:
    time = Time()
    server = Server(
        LOST, [message("a"), FULL, CONFLICT, LOST], interrupted(message("b", True), by=FULL), [message("d")]
    )
    answers = posted(DRAFTS, server, 60, time.clock, time.sleep)
    assert [one.status for one in answers] == [ACCEPTED, REPEATED, REFUSED, ACCEPTED]
    assert answers[2].detail == "name_conflict: another message has it" or "another message" in (
        answers[2].detail or ""
    )
    assert server.asked == ["abcd", "abcd", "bd", "d"]
    assert time.slept[-1] == 7, "a server that says when is asked again then"


def test_patience_ends_where_nothing_is_answered_and_begins_anew_where_something_is() -> None:
    time = Time()
    slow = Server(*[LOST] * 10, [message("a"), LOST], *[LOST] * 10, [message("b")])
    assert len(posted(DRAFTS[:2], slow, 18, time.clock, time.sleep)) == 2
    with pytest.raises(Unreachable, match="no answer"):
        posted(DRAFTS, Server(*[LOST] * 100), 18, time.clock, time.sleep)
    with pytest.raises(Unavailable, match="full"):
        posted(DRAFTS, Server(*[[FULL] * 4] * 100), 18, time.clock, time.sleep)
    with pytest.raises(Unavailable, match="full"):
        posted(DRAFTS, Server(*[FULL] * 100), 0, time.clock, time.sleep)


def test_what_refuses_a_whole_request_is_raised() -> None:
    time = Time()
    for error in (UnexpectedAnswer("a page"), interrupted(by=UnexpectedAnswer("a page"))):
        with pytest.raises((UnexpectedAnswer, BatchInterrupted)):
            posted(DRAFTS, Server(error), 60, time.clock, time.sleep)
    assert time.slept == [] and posted([], Server(), 60, time.clock, time.sleep) == []


def test_a_call_is_repeated_until_it_is_answered() -> None:
    time = Time()
    answers: Iterator[Exception | int] = iter([LOST, FULL, 5])

    def call() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(call, 60, time.clock, time.sleep) == 5
    assert time.slept == [0.05, 7]

    def never() -> int:
        raise LOST

    with pytest.raises(Unreachable):
        patiently(never, 10, time.clock, time.sleep)
