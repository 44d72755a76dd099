"""Commands and rows: what a producer said is what the store holds and what a consumer gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.model.callers.caller import MAX_CALLER_BYTES
from duemq.model.messages.ids import IdCodec
from duemq.model.messages.key import make_key
from duemq.model.messages.message import (
    CANCEL,
    COMMAND_BODY,
    DELIVER_NOW,
    MAX_HEADERS,
    MOVE,
    PURGE,
    REDRIVE,
    Change,
    Draft,
    Terms,
    are_headers,
    change_frame,
    is_topic,
    read_change,
    read_name,
    read_schedule,
    schedule_frame,
)
from duemq.model.messages.names import Name
from duemq.model.messages.record import Headers, pack_headers, pack_record, unpack_headers, unpack_record
from duemq.model.messages.row import (
    any_expires,
    attempt_of,
    change_row,
    dead_frame,
    direct_frame,
    expires_of,
    first_key_of,
    frame_in,
    id_of,
    message_key_in,
    name_of,
    read_row,
    row_of,
    topic_of,
    topics_of,
    without_payload,
)
from duemq.model.timing import LAST_MS

IDS = IdCodec(b"k" * 32)
OFFSET = 2**33 + 1

topics = st.from_regex(r"[A-Za-z0-9._-]{1,12}", fullmatch=True).filter(lambda topic: is_topic(topic.encode()))
words = st.text("abcäß", min_size=1, max_size=8)
header_lists = st.lists(st.tuples(words, st.none() | st.binary(max_size=9)), max_size=3)
# Years of 12, 13 and 14 digits of ms, and the very first one: the fast path is for 13 digits only.
dues = st.sampled_from([0, 10**12 - 1, 10**12, 1_700_000_000_000, 10**13 - 1, 10**13, 253_402_300_799_999])


@st.composite
def drafts(draw: st.DrawFn) -> tuple[Draft, Headers]:
    pairs = tuple(draw(header_lists))
    name = draw(st.just(b"") | st.binary(min_size=1, max_size=255))
    draft = Draft(
        draw(topics), draw(st.none() | st.binary(max_size=40)), draw(dues), draw(st.none() | st.binary(max_size=300)),
        *pack_headers(pairs), tuple(draw(st.lists(words, max_size=3))), draw(st.just(0) | st.integers(1, LAST_MS)),
        Name(name), b"f" * 16 if name else b"",
    )  # fmt: skip
    return draft, pairs


def row_from(draft: Draft) -> tuple[bytes, bytes]:
    """Row and id of a draft that was scheduled."""
    assert draft.due is not None
    id_ = IDS.issue_bytes(1, draft.due, OFFSET)
    return row_of(schedule_frame(draft, draft.due), id_), id_


@given(drafts())
def test_a_row_says_what_the_producer_said(given_: tuple[Draft, Headers]) -> None:
    draft, pairs = given_
    row, id_ = row_from(draft)
    assert read_row(row) == (
        id_.decode(), draft.topic, draft.payload, draft.due, draft.key, pairs, draft.labels, draft.expires,
        draft.name, 0, 0,
    )  # fmt: skip
    assert (name_of(row), topic_of(row), expires_of(row), attempt_of(row)) == (
        draft.name, draft.topic.encode(), draft.expires, 0,
    )  # fmt: skip
    assert (id_of(row), message_key_in(row)) == (id_, draft.key)
    assert draft.due is not None and first_key_of(row) == make_key(draft.due, OFFSET, 0)
    assert topics_of([(b"", row)]) == {draft.topic.encode()}
    assert any_expires([(b"", row)]) == bool(draft.expires)


@given(drafts())
def test_a_consumer_gets_the_system_headers_first(given_: tuple[Draft, Headers]) -> None:
    draft, pairs = given_
    row, id_ = row_from(draft)
    labels = (("duemq-labels", ",".join(draft.labels).encode()),) if draft.labels else ()
    system = (("duemq-id", id_), ("duemq-due", str(draft.due).encode()), ("duemq-attempt", b"1"))
    assert unpack_record(frame_in(row)) == (draft.key, system + labels + pairs, draft.payload)
    assert direct_frame(draft, id_, draft.due or 0) == frame_in(row)
    dead = unpack_record(dead_frame(row, "expired", 0))
    topic = draft.topic.encode()
    more = (
        ("duemq-topic", topic), ("duemq-reason", b"expired"), ("__dlq.errors.topic", topic),
        ("__dlq.errors.delivery.count", b"0"), ("__dlq.errors.message", b"expired"),
    )  # fmt: skip
    assert dead == (draft.key, system + more + labels + pairs, draft.payload)


@given(drafts(), st.none() | dues, st.none() | st.integers(0, 65_000))
def test_a_changed_row_keeps_everything_else(
    given_: tuple[Draft, Headers], due: int | None, attempt: int | None
) -> None:
    row, _ = row_from(given_[0])
    before, after = read_row(row), change_row(change_row(row, attempt=2), due=due, attempt=attempt)
    tried = 2 if attempt is None else attempt
    assert read_row(after) == before._replace(due=before.due if due is None else due, attempt=tried)
    assert unpack_record(frame_in(after)).header("duemq-attempt") == b"%d" % (tried + 1)


@given(drafts())
def test_an_ended_row_loses_only_its_payload(given_: tuple[Draft, Headers]) -> None:
    row, _ = row_from(given_[0])
    assert read_row(without_payload(row)) == read_row(row)._replace(payload=None if given_[0].payload is None else b"")


@given(drafts())
def test_a_schedule_is_a_command_with_its_name(given_: tuple[Draft, Headers]) -> None:
    draft, _ = given_
    frame = schedule_frame(draft, 5)
    fields = read_schedule(frame)
    assert fields is not None and fields.due == 5
    if draft.name:
        assert read_name(frame, fields) == (draft.name, draft.fingerprint)
    assert unpack_record(frame).value == (draft.payload or b"")
    assert read_change(frame) is None


def test_version_0_1_0_takes_an_envelope_with_nulls() -> None:
    """It knows no null marks: its headers fill the envelope to the byte, and those of a null are empty."""
    draft = Draft("orders", None, 5, b"k", *pack_headers([("a", None), ("b", b"x"), ("c", None)]))
    frame = schedule_frame(draft, 5)
    fields = read_schedule(frame)
    assert fields is not None
    end = COMMAND_BODY + fields.size
    start = end - fields.header_bytes
    assert are_headers(frame, start, end, fields.header_count)
    assert unpack_headers(frame, start, fields.header_count, end) == (
        ("duemq-null", b"\0\x02\0\0\xff\xfe\xff\xff"), ("a", b""), ("b", b"x"), ("c", b""),
    )  # fmt: skip
    row, _ = row_from(draft)
    assert (read_row(row).headers, read_row(row).payload) == ((("a", None), ("b", b"x"), ("c", None)), None)


@given(st.sampled_from([CANCEL, MOVE, DELIVER_NOW, REDRIVE]), st.binary(min_size=20, max_size=20), dues)
def test_changes_come_back(kind: int, first_key: bytes, due: int) -> None:
    frame = change_frame(kind, first_key, due)
    assert read_change(frame) == Change(kind, first_key, due)
    assert read_schedule(frame) is None


TERMS = st.builds(
    Terms, st.sampled_from(["", "ab/1"]), st.integers(0, 65_535), st.sampled_from(["", "orders", "x" * 249])
)


@given(
    st.sampled_from([CANCEL, MOVE, REDRIVE, PURGE]), st.none() | TERMS, st.sampled_from(["", "key:shop", "user:ü@x"])
)
def test_a_change_says_who_asked_for_it(kind: int, terms: Terms | None, by: str) -> None:
    terms = Terms() if kind == PURGE and terms is None else terms
    frame = change_frame(kind, bytes(20), 5, terms, by)
    assert read_change(frame) == Change(kind, bytes(20), 5, terms, by)
    assert unpack_record(frame).value == by.encode()


@pytest.mark.parametrize(
    "value", [b"shop", b"key:\n", b"key:\xff", b"job:a", b"user:" + b"x" * MAX_CALLER_BYTES, b"\x00", b"{}"]
)
def test_a_payload_that_names_no_caller_makes_a_change_of_nobody(value: bytes) -> None:
    for terms in (None, Terms("ab/1")):
        assert read_change(change_frame(CANCEL, bytes(20), 0, terms) + value) == Change(CANCEL, bytes(20), 0, terms)


def test_a_long_caller_is_cut_between_characters() -> None:
    change = read_change(change_frame(CANCEL, bytes(20), by="user:" + "ü" * 100))
    assert change is not None and change.by == "user:" + "ü" * 61
    change = read_change(change_frame(CANCEL, bytes(20), by="user:\ud800"))  # JSON of a provider can have such
    assert change is not None and change.by == "user:?"


@given(st.none() | st.binary(max_size=30), header_lists, st.binary(max_size=99))
def test_a_plain_record_is_no_command(key: bytes | None, pairs: list[tuple[str, bytes]], value: bytes) -> None:
    frame = pack_record(key, pairs, value)
    assert read_schedule(frame) is None and read_change(frame) is None


@given(drafts(), st.integers(0, 200), st.binary(min_size=1, max_size=8), st.integers(0, 400))
def test_what_is_read_of_a_damaged_envelope_can_be_worked_with(
    given_: tuple[Draft, Headers], at: int, damage: bytes, cut: int
) -> None:
    frame = schedule_frame(given_[0], 5)
    damaged = (frame[:at] + damage + frame[at + len(damage) :])[: len(frame) - cut if cut < len(frame) else None]
    fields = read_schedule(damaged)
    if fields is not None:
        row = row_of(damaged, IDS.issue_bytes(1, fields.due, OFFSET), fields)
        assert read_row(change_row(row, due=1, attempt=3)).due == 1
        unpack_record(dead_frame(row, "expired", 0))
    read_change(damaged)


@pytest.mark.parametrize(
    "draft",
    [
        Draft("duemq.ledger", b""), Draft("a b", b""), Draft("..", b""), Draft("", b""),
        Draft("one", b"", header_count=MAX_HEADERS + 1, headers=bytes(6) * (MAX_HEADERS + 1)),
        Draft("one", b"", header_count=1, headers=pack_headers([("h", b"")])[1][:-1]),
        Draft("one", b"", header_count=1, headers=b"\x00\x01\x00\x00\x00\x00\xff"),
        Draft("one", b"", expires=LAST_MS + 1),
    ],
    ids=["own topic", "no topic name", "two dots", "empty", "headers", "cut", "not text", "expires"],
)  # fmt: skip
def test_an_envelope_that_would_do_harm_is_none(draft: Draft) -> None:
    assert read_schedule(schedule_frame(draft._replace(topic="one", header_count=0, headers=b"", expires=0), 5))
    assert read_schedule(schedule_frame(draft, 5)) is None
    assert read_schedule(schedule_frame(Draft("one", b""), LAST_MS + 1)) is None


@pytest.mark.parametrize("name", [b".", b"..", b"__x", b"__consumer_offsets", b"duemq.ledger", b"", b"a b", b"x" * 250])
def test_nobody_can_send_to_what_is_no_topic_or_belongs_to_others(name: bytes) -> None:
    assert not is_topic(name)


@pytest.mark.parametrize("name", [b"_x", b"a__b", b"...", b"duemq", b"x" * 249])
def test_names_that_only_look_like_those_are_topics(name: bytes) -> None:
    assert is_topic(name)
