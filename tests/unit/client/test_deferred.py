"""Messages held under names that follow from their ids."""

from __future__ import annotations

from typing import Any

import pytest

from duemq.client.deferred import REPEATS, RETRIES_ASKED, DeferredQueue, HeldMessage
from duemq.client.http.errors import NameConflict, RejectedError, Unavailable, Unreachable
from duemq.client.http.values import CancelReport
from tests.support.servers.fake_duemq import FakeDuemq

DELAY_FILE = 9_000_000


@pytest.fixture
def duemq() -> FakeDuemq:
    return FakeDuemq()


@pytest.fixture
def holder(duemq: FakeDuemq, monkeypatch: pytest.MonkeyPatch) -> DeferredQueue:
    monkeypatch.setattr(DeferredQueue, "client", property(lambda self: duemq))
    return DeferredQueue("http://duemq.test", None, 1.0, "jobs")


def test_a_lost_answer_is_repeated_and_held_once(duemq: FakeDuemq, holder: DeferredQueue) -> None:
    duemq.lost = 2
    holder.hold(HeldMessage("a", 0, DELAY_FILE, b"x", [0.0, 0.0]))
    assert duemq.of("jobs").pending == [b"x"] and duemq.calls == ["send"] * 3


@pytest.mark.parametrize("error", [Unreachable("no", outcome_unknown=False), Unavailable("no")])
def test_what_cannot_be_held_is_an_error_after_the_last_try(
    duemq: FakeDuemq, holder: DeferredQueue, error: Exception
) -> None:
    duemq.away["send"] = error
    with pytest.raises(type(error)):
        holder.hold(HeldMessage("a", 0, DELAY_FILE, b"x", [0.0, 0.0]))
    assert duemq.calls == ["send"] * 3


def test_a_refusal_is_not_repeated(duemq: FakeDuemq, holder: DeferredQueue) -> None:
    duemq.away["send"] = RejectedError("delay_too_long", "too far")
    with pytest.raises(RejectedError):
        holder.hold(HeldMessage("a", 0, DELAY_FILE, b"x", [0.0, 0.0]))
    assert duemq.calls == ["send"]


def test_one_id_with_other_contents_is_another_message_up_to_a_limit(duemq: FakeDuemq, holder: DeferredQueue) -> None:
    for n in range(REPEATS):
        holder.hold(HeldMessage("a", 0, DELAY_FILE, b"%d" % n))
        holder.hold(HeldMessage("a", 0, DELAY_FILE, b"%d" % n))
    assert duemq.of("jobs").pending == [b"%d" % n for n in range(REPEATS)]
    with pytest.raises(NameConflict):
        holder.hold(HeldMessage("a", 0, DELAY_FILE, b"one too many"))
    assert holder.cancel(["a"]) == {"a"} and duemq.of("jobs").pending == []


def test_a_cancel_asks_for_one_name_and_its_repeat_only(duemq: FakeDuemq, holder: DeferredQueue) -> None:
    holder.hold(HeldMessage("a", 0, DELAY_FILE, b"x"))
    asked: list[list[str]] = []
    real = duemq.cancel_many

    def cancel_many(ids: list[str]) -> CancelReport:
        asked.append(ids)
        return real(ids)

    duemq.cancel_many = cancel_many  # type: ignore[method-assign]
    assert holder.cancel(["a"]) == {"a"}
    assert asked == [["jobs:a:0"], ["jobs:a:0.1"]]


@pytest.mark.parametrize("retries", [1, 2, RETRIES_ASKED - 1, RETRIES_ASKED, 3 * RETRIES_ASKED])
def test_the_cancel_of_a_retry(duemq: FakeDuemq, holder: DeferredQueue, retries: int) -> None:
    for n in range(retries):
        holder.hold(HeldMessage("a", n, duemq.now, b"past"))
    holder.hold(HeldMessage("a", retries, DELAY_FILE, b"waiting"))
    holder.hold(HeldMessage("b", 0, DELAY_FILE, b"other"))
    assert holder.cancel(["a", "c"]) == {"a"}
    assert duemq.of("jobs").pending == [b"other"]


def test_the_cancel_of_a_retry_whose_first_runs_were_not_held(duemq: FakeDuemq, holder: DeferredQueue) -> None:
    holder.hold(HeldMessage("a", 3, DELAY_FILE, b"waiting"))
    assert holder.cancel(["a"]) == {"a"}


def test_a_cancel_that_comes_too_late_wins_nothing(duemq: FakeDuemq, holder: DeferredQueue) -> None:
    holder.hold(HeldMessage("a", 0, duemq.now, b"x"))
    assert holder.cancel(["a"]) == set()


def test_ids_that_are_no_names(duemq: FakeDuemq, holder: DeferredQueue) -> None:
    ids = ["with space", "ü", "x" * 300, "", "jobs:a", "x" * 299]
    for id_ in ids:
        holder.hold(HeldMessage(id_, 0, DELAY_FILE, id_.encode()))
    names = {message.name or "" for message in duemq.messages}
    assert len(names) == len(ids)
    assert all(len(name) <= 128 and name.isascii() and " " not in name for name in names)
    assert holder.cancel(ids) == set(ids)


def test_many_and_those_that_failed(duemq: FakeDuemq, holder: DeferredQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    real = duemq.send

    def send(topic: str, payload: bytes, **options: Any) -> Any:
        if payload == b"7":
            raise Unavailable("not now")
        return real(topic, payload, **options)

    monkeypatch.setattr(duemq, "send", send)
    failed = holder.hold_all([HeldMessage(str(n), 0, DELAY_FILE, b"%d" % n) for n in range(20)])
    assert [n for n, error in enumerate(failed) if error is not None] == [7] and isinstance(failed[7], Unavailable)
    assert len(duemq.of("jobs").pending) == 19


def test_a_url_that_is_none_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="not the URL"):
        DeferredQueue("ftp://x", None, 1.0, "jobs")
