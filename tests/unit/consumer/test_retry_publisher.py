"""Sending back: what Kafka or duemq refuses is a dead letter, and what is merely away is tried again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)

from duemq.client.consumer.kafka.retry_publisher import RetryPublisher
from duemq.client.consumer.message import message_of
from duemq.client.consumer.options import ConsumerOptions
from duemq.client.consumer.retry.headers import RetryOrigin, returned
from duemq.client.consumer.retry.policy import DeadLetter, Wait
from tests.support.patience import WITHIN_S
from tests.unit.consumer.test_consumer_values import Plain

pytestmark = pytest.mark.anyio

SOON = Wait("after", 5)


class Producer:
    """Raises these errors, one a time, and takes nothing larger than `most`."""

    _txn_manager = None

    def __init__(self, *errors: BaseException, most: int = 1 << 30) -> None:
        self.errors, self.most = list(errors), most
        self.sent: list[tuple[str, bytes | None, bytes | None, dict[str, Any]]] = []
        self.stopped = 0

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: list[tuple[str, bytes | None]],
    ) -> None:
        assert value is not None or key is not None  # as aiokafka wants it
        if self.errors:
            raise self.errors.pop(0)
        if sum(len(each or b"") for each in (value, key, *(content for _, content in headers))) > self.most:
            raise MessageSizeTooLargeError
        for name, _ in headers:
            name.encode()
        self.sent.append((topic, key, value, dict(headers)))

    async def start(self) -> None: ...

    async def stop(self) -> None:
        self.stopped += 1


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.client.consumer.kafka.retry_publisher._FIRST_S", 0.0)
    monkeypatch.setattr("duemq.client.consumer.kafka.retry_publisher._LONGEST_S", 0.0)


async def publisher_to(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> RetryPublisher:
    monkeypatch.setattr("duemq.client.consumer.kafka.retry_publisher.new_producer", lambda **settings: producer)
    publisher = RetryPublisher("g", "", ConsumerOptions())
    await publisher.start(4)
    return publisher


@pytest.mark.parametrize("error", [MessageSizeTooLargeError(), RecordListTooLargeError()])
async def test_what_is_too_large_is_a_dead_letter_without_its_value(
    error: KafkaError, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(error)
    message = message_of(Plain([("trace", b"t")], value=b"x" * 900), is_retry=False)
    assert await (await publisher_to(producer, monkeypatch)).send(message, SOON, "boom") == DeadLetter("too_large")
    ((topic, key, value, headers),) = producer.sent
    assert (topic, key, value, headers["trace"]) == ("dlq.g", b"k", b"", b"t")
    assert headers["x-duemq-reason"] == b"too_large" and headers["x-duemq-size"] == b"900"
    where = [headers[f"x-duemq-{name}"] for name in ("topic", "partition", "offset", "id", "error")]
    assert where == [b"orders", b"3", b"42", b"orders:3:42:0", b"boom"]
    assert not producer.stopped  # others use it


async def test_a_key_and_headers_that_are_too_large_stay_behind_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(most=1_000)
    message = message_of(Plain([("trace", b"t" * 2_000)], b"k", b"x" * 900), is_retry=False)
    assert await (await publisher_to(producer, monkeypatch)).send(message, DeadLetter("retries"), "boom") == DeadLetter(
        "too_large"
    )
    ((topic, key, value, headers),) = producer.sent
    assert (topic, key, value, headers["x-duemq-offset"]) == ("dlq.g", None, b"", b"42") and "trace" not in headers


async def test_who_may_not_write_dead_letters_sends_them_through_duemq(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = TopicAuthorizationFailedError("dlq.g")
    producer = Producer(MessageSizeTooLargeError(), denied, denied)
    message = message_of(Plain([("trace", b"t")], value=b"x" * 900), is_retry=False)
    assert await (await publisher_to(producer, monkeypatch)).send(message, SOON, "boom") == DeadLetter("too_large")
    ((topic, key, value, headers),) = producer.sent
    assert (topic, key, value, headers["duemq-topic"], headers["DELAY"]) == ("duemq.buffer", None, b"", b"dlq.g", b"0")
    assert (headers["x-duemq-reason"], headers["x-duemq-size"]) == (b"too_large", b"900")


async def test_a_right_that_is_missing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(TopicAuthorizationFailedError("duemq.buffer"))
    publisher = await publisher_to(producer, monkeypatch)
    assert await publisher.send(message_of(Plain(), is_retry=False), SOON, "boom") == SOON
    assert [topic for topic, *_ in producer.sent] == ["duemq.buffer"] and not producer.stopped


@pytest.mark.parametrize(
    ("record", "kept"),
    [
        (Plain(key=b"k" * 65_535), True),
        (Plain([(f"h{n}", b"") for n in range(65_001)]), True),
        (Plain([("h" * 65_536, b"")]), True),
        (Plain([("\ud800", b"")]), False),
    ],
    ids=["key", "headers", "name", "no text"],
)
async def test_what_duemq_would_take_for_malformed_is_a_dead_letter(
    record: Plain, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer()
    became = await (await publisher_to(producer, monkeypatch)).send(message_of(record, is_retry=False), SOON, "boom")
    ((topic, key, value, headers),) = producer.sent
    assert became == DeadLetter("malformed") and headers["x-duemq-reason"] == b"malformed" and topic == "dlq.g"
    assert (key, value) == ((record.key, record.value) if kept else (None, b""))


@pytest.mark.parametrize(
    ("error", "closes"),
    [
        (KafkaConnectionError(), 0),
        (NotEnoughReplicasError(), 0),
        (TimeoutError(), 1),
        (KafkaError("Unexpected error during batch delivery"), 1),
        (asyncio.CancelledError(), 1),
    ],
)
async def test_what_is_away_is_tried_again(error: BaseException, closes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a future of the producer's was cancelled by itself: nobody told us to end."""
    producer = Producer(error, error)
    publisher = await publisher_to(producer, monkeypatch)
    assert await publisher.send(message_of(Plain(), is_retry=False), SOON, "boom") == SOON
    assert [topic for topic, *_ in producer.sent] == ["duemq.buffer"]
    assert producer.stopped == 2 * closes


async def test_a_cancel_of_ours_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.client.consumer.kafka.retry_publisher._FIRST_S", 3_600.0)
    monkeypatch.setattr("duemq.client.consumer.kafka.retry_publisher._LONGEST_S", 3_600.0)
    producer = Producer(*[KafkaConnectionError()] * 10)
    publisher = await publisher_to(producer, monkeypatch)
    sending = asyncio.create_task(publisher.send(message_of(Plain(), is_retry=False), SOON, "boom"))
    while len(producer.errors) == 10:  # noqa: ASYNC110
        await asyncio.sleep(0)
    sending.cancel()
    async with asyncio.timeout(WITHIN_S):
        await asyncio.wait([sending])
    assert sending.cancelled()


async def names(records: list[Plain], to: Wait | DeadLetter, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    producer = Producer()
    publisher = await publisher_to(producer, monkeypatch)
    for each in records:
        await publisher.send(message_of(each, each.topic == "retry.g"), to, "boom")
    return [headers["duemq-name"] for *_, headers in producer.sent]


@pytest.mark.parametrize("to", [SOON, DeadLetter("retries")])
async def test_a_name_is_of_one_record_and_no_other(to: Wait | DeadLetter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash sends the same record back again; a topic that was made anew has the same offsets at other times; and
    what comes back without being counted is another record of the retry topic, with the same headers."""
    again = returned((), RetryOrigin("orders", 3, 42, "ID", 1), "failed", "boom")
    records = [
        Plain(), Plain(timestamp=1), Plain(offset=43), Plain(partition=4), Plain(topic="others"),
        Plain(again, topic="retry.g"), Plain(again, topic="retry.g", offset=43),
    ]  # fmt: skip
    once = await names(records, to, monkeypatch)
    assert len(set(once)) == len(records) and await names(records, to, monkeypatch) == once


async def test_what_does_not_count_keeps_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    producer, again = Producer(), returned((), RetryOrigin("orders", 3, 42, "ID", 1), "failed", "boom")
    publisher = await publisher_to(producer, monkeypatch)
    for counts in (True, False):
        await publisher.send(message_of(Plain(again, topic="retry.g"), is_retry=True), Wait("after", 5, counts), "boom")
    assert [headers["x-duemq-retried"] for *_, headers in producer.sent] == [b"2", b"1"]


async def test_null_goes_back_as_null(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header says so to nodes of version 0.1.0, and in a record without a key."""
    producer = Producer()
    publisher = await publisher_to(producer, monkeypatch)
    for key in (b"k", None):
        await publisher.send(message_of(Plain(key=key, value=None), is_retry=False), SOON, "boom")
    assert [(value, headers["x-duemq-null"]) for _, _, value, headers in producer.sent] == [(None, b"1"), (b"", b"1")]
