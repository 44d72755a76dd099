"""What rows note beside their messages: tags, failed attempts, and the history of changes."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.model.messages.ended import CANCELLED, DEAD, EndedMessage
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.message import CANCEL, DELIVER_NOW, MOVE, Draft, schedule_frame
from duemq.model.messages.names import of_client
from duemq.model.messages.row import (
    ROW,
    change_row,
    name_of,
    read_row,
    redriven_row,
    row_of,
    shown_due,
    without_payload,
)
from duemq.model.messages.row_notes import (
    MAX_ATTEMPTS,
    MAX_CHANGES,
    MAX_TAGS,
    Attempt,
    ChangeHistory,
    Notes,
    PastChange,
    earlier_step,
    notes_of,
    with_attempt,
    with_change,
)

IDS = IdCodec(b"s" * 32)
DRAFT = Draft("orders", b"payload", 5, b"key", labels=("a", "b"), name=of_client("order-42"), fingerprint=bytes(16))
MOVED = PastChange(MOVE, 1, 5, 9, "key:shop")


def row_due(due: int) -> bytes:
    return row_of(schedule_frame(DRAFT, due), IDS.issue_bytes(1, due, 7))


def noted(raw: bytes) -> bytes:
    """A row with these notes."""
    row = row_due(5)
    attempt, frame_at, *others = ROW.unpack_from(row)
    at = frame_at - len(DRAFT.name)
    return ROW.pack(attempt, frame_at + len(raw), *others) + row[ROW.size : at] + raw + row[at:]


@given(st.lists(st.integers(0, 2**43), max_size=40))
def test_a_message_tells_of_its_first_and_last_changes_and_stays_what_it_is(times: list[int]) -> None:
    row, changes = row_due(5), [PastChange(MOVE, at, at + 1, at + 2, "user:ü") for at in times]
    for change in changes:
        row = with_change(row, change, "")
    expected = changes if len(changes) <= MAX_CHANGES else changes[:1] + changes[-MAX_CHANGES + 1 :]
    assert notes_of(row).history == ChangeHistory(tuple(expected), len(changes) - len(expected))
    assert read_row(row) == read_row(row_due(5)) and name_of(row) == DRAFT.name


def test_changes_attempts_and_tags_are_kept_beside_one_another() -> None:
    row = with_attempt(with_change(row_due(5), MOVED, "ab/1"), Attempt(2, "unknown_topic"))
    row = with_change(change_row(row, due=9), MOVED._replace(at=3), "")
    expected = Notes(("ab/1",), (Attempt(2, "unknown_topic"),), ChangeHistory((MOVED, MOVED._replace(at=3))))
    assert notes_of(row) == notes_of(redriven_row(row)) == notes_of(without_payload(row)) == expected


@pytest.mark.parametrize("due", [0, 5, 999_999_999_999, 10**12, 10**13 - 1, 10**13])
def test_the_due_time_that_is_shown_is_read_from_any_row(due: int) -> None:
    assert shown_due(row_due(due)) == shown_due(without_payload(row_due(due))) == due


def test_notes_of_an_older_version_are_read_and_a_row_without_changes_stays_as_short() -> None:
    old = noted(b'["ab/1",[[5,"expired"]]]')
    assert notes_of(old) == Notes(("ab/1",), (Attempt(5, "expired"),))
    assert orjson.dumps(["ab/1", [[5, "expired"], [6, "x"]]]) in with_attempt(old, Attempt(6, "x"))
    assert notes_of(with_change(old, MOVED, "")).attempts == (Attempt(5, "expired"),)
    newer = with_change(old, MOVED, "cd/2")
    assert notes_of(newer).tags == ("cd/2", "ab/1")
    assert b'["cd/2 ab/1",[[5,"expired"]],[[' in newer, "a text, which the last release takes for one tag, and reads on"


def test_the_longest_notes_have_a_bound() -> None:
    row = row_due(5)
    for job in range(100):
        tag = f"{job:032}/{10**9}"
        row = with_change(row, PastChange(DELIVER_NOW, 10**13, 10**13, 10**13, "x" * 128), tag)
        row = with_attempt(row, Attempt(10**13, "r" * 500))
    assert len(row) - len(row_due(5)) < MAX_CHANGES * 185 + MAX_ATTEMPTS * 85 + MAX_TAGS * 44


def test_what_a_job_has_done_to_a_message_is_known_whatever_jobs_come_after_it() -> None:
    row, tags = row_due(5), [f"{job:03}/{job}" for job in range(100)]
    for number, tag in enumerate(tags):
        assert earlier_step(notes_of(row).tags, tag) is None
        row = with_change(row, MOVED, tag)
        for earlier in tags[: number + 1]:
            step = earlier_step(notes_of(row).tags, earlier)
            assert step == earlier if number - tags.index(earlier) < MAX_TAGS else step == ""
        assert earlier_step(notes_of(row).tags, f"{number:03}/7777") == tag


def test_who_cancelled_a_message_is_told_from_the_job_that_did() -> None:
    row = with_change(row_due(5), MOVED, "ab/1")
    by_key, by_job = EndedMessage(CANCELLED, 9, "key:a/b", row), EndedMessage(CANCELLED, 9, "cd/2", b"")
    unknown = EndedMessage(CANCELLED, 9, "", row)
    assert (by_key.cancelled_by, by_key.tags) == ("key:a/b", ())
    assert (by_job.cancelled_by, by_job.tags) == ("job:cd", ("cd/2",))
    assert (unknown.cancelled_by, unknown.tags) == ("", ())
    assert EndedMessage(DEAD, 9, "expired", row).tags == ("ab/1",)
    assert EndedMessage.decode(by_key.encode()) == by_key
    assert PastChange(CANCEL, 9) == PastChange(CANCEL, 9, 0, 0, "")
