"""The small values of a consumer: names, tags, the metadata of a commit, and what a message says of itself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from duemq.client.consumer.failures import verdict
from duemq.client.consumer.kafka.positions import is_of, metadata_of, pull_in, says_of, topics_in
from duemq.client.consumer.message import message_of
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.retry.headers import NULL, Headers, RetryOrigin, error_text, origin_in, returned
from duemq.client.consumer.retry.policy import DeadLetter, Delays, Reject
from duemq.client.consumer.work.tags import TagFilter
from duemq.model.errors import Rejected
from duemq.model.topics.group_topics import checked_group, dead_letter_topic, retry_topic


@dataclass
class Plain:
    headers: Headers = ()
    key: bytes | None = b"k"
    value: bytes | None = b'{"a": 1}'
    topic: str = "orders"
    partition: int = 3
    offset: int = 42
    timestamp: int = 0


@pytest.mark.parametrize("group", ["", "a b", "a" * 201, "ä", "a/b"])
def test_a_group_has_to_fit_into_the_name_of_a_topic(group: str) -> None:
    with pytest.raises(Rejected) as refused:
        checked_group(group)
    assert (refused.value.code, refused.value.field) == ("bad_group", "group")


def test_a_group_has_topics_of_its_own() -> None:
    assert (retry_topic("billing"), dead_letter_topic("billing")) == ("retry.billing", "dlq.billing")


@pytest.mark.parametrize("pull", [0, 7, 10**17])
def test_metadata_tells_the_pull_offset(pull: int) -> None:
    assert pull_in(metadata_of(pull)) == pull


@pytest.mark.parametrize(
    "other", [None, "", "duemq", "duemq pull=", "duemq pull=-1", "duemq pull=1 ", "x duemq pull=1"]
)
def test_metadata_of_others_tells_nothing(other: str | None) -> None:
    assert pull_in(other) is None


@pytest.mark.parametrize(
    ("text", "labels", "meant"),
    [
        ("*", None, True),
        ("*", b"paid", True),
        ("paid", None, False),
        ("paid", b"paid", True),
        ("paid", b"unpaid", False),
        ("paid || refunded", b"eu,refunded", True),
        (" paid||refunded ", b"eu", False),
    ],
)
@pytest.mark.parametrize("header", ["duemq-labels", "tags"])
def test_a_filter_looks_at_labels_and_tags(text: str, labels: bytes | None, meant: bool, header: str) -> None:
    headers = [("other", b"paid,refunded")] + ([] if labels is None else [(header, labels)])
    assert TagFilter.parse(text).matches(headers) is meant


@pytest.mark.parametrize("text", ["", "||", "a ||", "|| a", "a || *", "a,b", "a || || b"])
def test_a_filter_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Rejected, match="tag"):
        TagFilter.parse(text)


def test_a_filter_can_be_read_again() -> None:
    assert str(TagFilter.parse("b||a")) == "a || b"
    assert TagFilter.parse(str(TagFilter.parse("*"))) == TagFilter()


def test_filters_of_several_handlers_together() -> None:
    a_or_b, c = TagFilter.parse("a || b"), TagFilter.parse("c")
    assert str(TagFilter.any_of([a_or_b, c])) == "a || b || c"
    assert TagFilter.any_of([a_or_b, TagFilter()]) == TagFilter.any_of([]) == TagFilter()


def test_a_message_says_where_it_is_from() -> None:
    by_duemq = message_of(
        Plain([("duemq-id", b"ID"), ("duemq-due", b"5"), ("duemq-labels", b"a,b"), ("x", b"1")]), is_retry=False
    )
    assert (by_duemq.id, by_duemq.topic, by_duemq.attempt, by_duemq.due_ms) == ("ID", "orders", 1, 5)
    assert (by_duemq.labels, by_duemq.headers, by_duemq.json) == (("a", "b"), [("x", b"1")], {"a": 1})
    plain = message_of(Plain(), is_retry=False)
    assert (plain.id, plain.due_ms, plain.labels, plain.lateness_ms) == ("orders:3:42:0", None, (), None)
    later = message_of(Plain(timestamp=1_763_900_000_000), is_retry=False)
    assert later.id == "orders:3:42:1763900000000"  # the topic was made anew


@pytest.mark.parametrize("error", [Reject("over quota"), ValueError("boom")])
def test_what_a_handler_refuses_is_no_matter_for_an_operator(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    options = ConsumerOptions(retry=Delays([]))
    to, _ = verdict("g", options, message_of(Plain(), is_retry=False), error)
    assert isinstance(to, DeadLetter)
    (record,) = caplog.records
    assert (record.levelname, "goes to the dead letters" in record.getMessage()) == ("WARNING", True)


def test_a_message_that_comes_back_is_the_one_it_was() -> None:
    first = Plain([("duemq-id", b"ID"), ("duemq-labels", b"a,b"), ("x", b"1"), ("x-delay", b"5"), ("y", b"")])
    origin = message_of(first, is_retry=False).origin
    back = returned(first.headers, RetryOrigin(origin.topic, 3, 42, origin.id, 1), "failed", "boom " * 1_000)
    again = message_of(Plain([("duemq-id", b"OTHER"), *back], topic="retry.g", offset=7), is_retry=True)
    assert (again.id, again.topic, again.retried, again.attempt) == ("ID", "orders", 1, 2)
    assert (again.labels, again.headers) == (("a", "b"), [("x", b"1"), ("y", b"")])
    assert len(dict(back)["x-duemq-error"] or b"") == 1_000
    twice = returned(again.record.headers, RetryOrigin("orders", 3, 42, "ID", 2), "failed", "")
    assert len(twice) == len(back)


def test_null_comes_back_as_null() -> None:
    first = message_of(Plain(value=None), is_retry=False)
    assert (first.value, first.payload) == (None, b"")
    back = returned((), first.origin.again(), "failed", "", null=True)
    again = message_of(Plain(back, value=b"", topic="retry.g"), is_retry=True)
    assert (again.value, again.payload, again.headers) == (None, b"", [])
    assert message_of(Plain([pair for pair in back if pair[0] != NULL], value=None), is_retry=True).value is None
    kept = message_of(Plain(returned([("h", None), ("e", b"")], first.origin, "failed", "")), is_retry=True)
    assert kept.headers == [("h", None), ("e", b"")]
    assert message_of(Plain(value=b""), is_retry=False).value == b""


@pytest.mark.parametrize("name", ["duemq-id", "duemq-due", "duemq-labels", "tags", "x-duemq-id", "x-duemq-retried"])
@pytest.mark.parametrize("value", [None, b"", b"\xff\xfe", b"9" * 5_000, b"-5"])
@pytest.mark.parametrize("is_retry", [False, True])
def test_what_a_stranger_writes_into_our_headers_raises_nowhere(name: str, value: bytes, is_retry: bool) -> None:
    back = returned((), RetryOrigin("orders", 0, 0, "ID", 3), "failed", "")
    headers = [(name, value), *((known, found) for known, found in back if known != name and is_retry)]
    message = message_of(Plain(headers), is_retry)
    assert message.topic == "orders" and message.retried >= 0 and message.id
    assert message.due_ms is None and message.lateness_ms is None
    assert isinstance(message.labels, tuple) and repr(message)
    assert not TagFilter.parse("paid").matches(headers)
    assert message_of(Plain(returned(headers, message.origin, "failed", "")), True).id == message.id


class Odd(Exception):
    def __str__(self) -> str:
        raise IndexError


@pytest.mark.parametrize(
    ("error", "tell", "text"),
    [
        (ValueError("boom"), "text", "boom"),
        (ValueError(), "text", "ValueError()"),
        (ValueError("redis://:secret@host"), "class", "ValueError"),
        (Odd(), "text", "Odd, whose text is not readable"),
        (Odd(), "class", "Odd"),
    ],
)
def test_what_is_told_of_an_error(error: Exception, tell: str, text: str) -> None:
    assert error_text(error, tell) == text


def test_headers_that_claim_to_be_ours_count_on_the_retry_topic_only() -> None:
    headers = returned([], RetryOrigin("secret", 0, 0, "ID", 3), "failed", "")
    assert message_of(Plain(headers), is_retry=False).topic == "orders"
    assert origin_in([("x-duemq-topic", b"orders")]) is None


def test_metadata_tells_which_topics_a_group_knows() -> None:
    written = metadata_of(7, "0123456789abcdef", ["orders", "bills"])
    assert pull_in(written) == 7 and len(written) < 60
    assert topics_in([None, "duemq pull=5", "foreign", written], ["orders", "others"]) == {"orders"}
    many = metadata_of(10**17, None, [f"topic-{number:03d}" for number in range(1_000)])
    assert len(many) < 4_000 and pull_in(many) == 10**17
    assert topics_in([many], ["topic-000", "topic-999"]) == {"topic-000"}


def test_metadata_tells_a_topic_that_was_made_anew() -> None:
    written = metadata_of(7, "0123456789abcdef")
    assert pull_in(written) == 7 and is_of(written, "0123456789abcdef") and not is_of(written, "1123456789abcdef")
    assert is_of(written, None) and is_of(metadata_of(7), "0123456789abcdef") and is_of(None, "0123456789abcdef")
    assert says_of(metadata_of(7)) is says_of("of=01234567") is None


def test_the_first_and_the_latest_failed_attempts_travel_along() -> None:
    origin = RetryOrigin("orders", 3, 42, "ID", 30)
    for number in range(30):
        origin = origin.failed(1_000 + number, f"error {number} \udcff" + "x" * 1_000)
    headers = returned((), origin, "failed", "boom")
    assert sum(len(name) + len(value or b"") for name, value in headers) < 6_000
    again = message_of(Plain(headers), True).origin
    assert again.attempts == origin.attempts
    assert [at for at, _ in again.attempts] == [1_000, *range(1_011, 1_030)]
    assert all(error.startswith("error ") and len(error) == 200 for _, error in again.attempts)


@pytest.mark.parametrize("value", [b"", b"null", b"{}", b"[1]", b'[["a", "b"]]', b"[[1]]", b"\xff", b"[[1, 2, 3]]"])
def test_attempts_that_somebody_else_wrote_are_none(value: bytes) -> None:
    headers = [*returned((), RetryOrigin("orders", 3, 42, "ID", 1), "failed", ""), ("x-duemq-attempts", value)]
    assert message_of(Plain(headers), True).origin.attempts == ()
