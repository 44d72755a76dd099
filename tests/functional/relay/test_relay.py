"""A relay on a log in memory: each destination by itself, retries, dead letters, pauses of the other side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from duemq.bus.topic_cursor import decode_cursor
from duemq.client.consumer.letter import letter_of
from duemq.client.consumer.message import Message, message_of
from duemq.client.consumer.retry.headers import origin_in
from duemq.client.consumer.retry.policy import DeadLetter, Wait
from duemq.model.messages.message import Draft
from duemq.model.messages.names import group_cursor, of_caller, of_client
from duemq.model.messages.record import unpack_record
from duemq.proxy.gateway.base import Receipt
from duemq.relay.base import Reply, Result
from duemq.relay.embedded.source import LogRecord
from tests.support.relay.relay_site import FAILED, Site, WatchingOutlet, lag, metric, payloads, until

pytestmark = pytest.mark.anyio


async def test_an_outlet_that_watches_is_told_what_comes_of_which_log_and_what_has_ended(site: Site) -> None:
    outlet = site.outlets["one"] = WatchingOutlet()
    site.declare("one", topics=["orders"])
    await site.deliver("orders", b"1", b"2", partition=1)
    async with site.relay():
        await until(lambda: len(outlet.told) == 3)
    assert outlet.told == [("orders", 1, "the log", [0, 1], 0), 0, 1]


async def test_what_is_delivered_is_handed_on_to_each_destination(site: Site) -> None:
    one, two = site.declare("one", topics=["orders"]), site.declare("two", topics=["orders", "mail"])
    await site.deliver("orders", b"1", b"2", partition=1, key=b"k")
    async with site.relay() as relay:
        await until(lambda: len(one.messages) == len(two.messages) == 2)
        await site.deliver("mail", b"3")
        await site.deliver("destination.one", b"4")
        await until(lambda: len(one.messages) == len(two.messages) == 3)
        shown = relay.measured()["one"].shown()
    assert payloads(one) == [b"1", b"2", b"4"]
    assert payloads(two) == [b"1", b"2", b"3"]
    (first, *_) = one.messages
    assert (first.id, first.key, first.headers) == ("id-1", b"k", [("h", b"1")])
    assert shown["results"]["accepted"] == 3


async def test_its_lag_is_what_it_has_not_got(site: Site) -> None:
    outlet = site.declare("one", topics=["orders"])
    outlet.answer = lambda message: Reply(Result.AWAY if message.payload == b"2" else Result.ACCEPTED, "")
    await site.deliver("orders", b"1", b"2", b"3")
    async with site.relay() as relay:
        await until(lambda: lag(relay) == 2)
        assert metric(relay, "lag_messages") == 2
        (oldest, *_) = await site.bus.read("orders", 0, 1, 1)
        assert relay.measured()["one"].oldest_at == oldest.timestamp
        assert metric(relay, "oldest_message_seconds") == max(1_000 - oldest.timestamp, 0) / 1_000
        outlet.answer = None
        await until(lambda: lag(relay) == 0)
        assert metric(relay, "oldest_message_seconds") == 0 and relay.measured()["one"].oldest_at is None
    assert sorted(payloads(outlet)) == [b"1", b"2", b"3"]


async def test_a_restart_goes_on_where_it_was(site: Site) -> None:
    outlet = site.declare("one", topics=["orders"])
    await site.deliver("orders", b"1", b"2")
    async with site.relay():
        await until(lambda: len(outlet.messages) == 2)
    await site.deliver("orders", b"3")
    async with site.relay():
        await until(lambda: len(outlet.messages) == 3)
        await asyncio.sleep(0.05)
    assert payloads(outlet) == [b"1", b"2", b"3"]
    cursor = await site.bus.get_consumer_cursor("orders", group_cursor("destination.one"))
    assert cursor is not None
    assert decode_cursor(cursor.decode(), "orders", await site.bus.topic("orders"), "cursor") == [3, 0]


async def test_a_failed_message_comes_back_and_is_a_dead_letter_at_last_with_every_attempt(site: Site) -> None:
    outlet = site.declare("one", topics=["orders"])
    outlet.answer = lambda message: FAILED if message.payload == b"bad" else Reply(Result.ACCEPTED, "200")
    await site.deliver("orders", b"bad", b"good")
    async with site.relay() as relay:
        await until(lambda: payloads(outlet) == [b"good"])
        await until(lambda: any(name.startswith(b"r:dead") for name in site.names))
        await site.deliver("orders", b"later")
        await until(lambda: payloads(outlet) == [b"good", b"later"])
        figures = relay.figures_of("one")
        assert metric(relay, "answers_total", status="500") == 4
        assert metric(relay, "attempts_total", result="failed") == 4
        assert metric(relay, "attempts_total", result="accepted") == 2
    (letter,) = await site.bus.read("dlq.destination.one", 0, 0, 10)
    record = unpack_record(letter.frame)
    origin = origin_in(record.headers)
    assert origin is not None
    assert (origin.topic, origin.id, origin.retried, record.value) == ("orders", "id-bad", 3, b"bad")
    assert [error for _, error in origin.attempts] == ["500 after 0 ms: no"] * 4
    assert figures is not None
    assert figures.statuses == {"500": 4, "200": 2}
    assert [attempt.attempt for attempt in figures.attempts] == [1, 2, 3, 4]


async def test_no_client_takes_the_name_of_a_retry_or_of_a_dead_letter(site: Site) -> None:
    outlet = site.declare("one", topics=["orders"])
    outlet.answer = lambda message: FAILED
    await site.deliver("orders", b"bad")
    (stored,) = await site.bus.read("orders", 0, 0, 10)
    first = unpack_record(stored.frame)
    record: Any = LogRecord("orders", 0, 0, stored.timestamp, first.key, first.value, first.headers)
    message = message_of(record, is_retry=False)
    for to in (Wait("after", 1), DeadLetter("retries")):
        text = letter_of("destination.one", message, to, "").name
        site.names |= {of_client(text): b"of a client", of_caller("key", text): b"of a client"}
    async with site.relay() as relay:
        await site.filled("dlq.destination.one", 1)
        assert metric(relay, "attempts_total", result="failed") == 4


async def test_what_cannot_go_back_for_its_name_is_taken_is_a_dead_letter(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """No door leads to this: see `model/messages/names.py`."""
    outlet = site.declare("one", topics=["orders"])
    outlet.answer = lambda message: FAILED
    schedule = site.schedule

    async def taken(drafts: Sequence[Draft]) -> list[Receipt]:
        site.names |= {draft.name: b"of another" for draft in drafts if draft.name.startswith(b"r:retry")}
        return await schedule(drafts)

    site.schedule = taken  # type: ignore[method-assign]
    await site.deliver("orders", b"bad")
    async with site.relay():
        await site.filled("dlq.destination.one", 1)
    (letter,) = await site.bus.read("dlq.destination.one", 0, 0, 10)
    assert dict(unpack_record(letter.frame).headers)["x-duemq-reason"] == b"name_conflict"
    assert "becomes a dead letter: name_conflict" in caplog.text


async def test_what_is_rejected_is_a_dead_letter_at_once(site: Site) -> None:
    outlet = site.declare("one", topics=["orders"])
    outlet.answer = lambda message: Reply(Result.REJECTED, "400", "bad request")
    await site.deliver("orders", b"bad")
    async with site.relay() as relay:
        await until(lambda: any(name.startswith(b"r:dead") for name in site.names))
        await until(lambda: relay.measured()["one"].dead)
        assert metric(relay, "dead_letters_total") == 1
    assert len(site.names) == 1


async def test_a_redriven_message_keeps_its_id_each_time(site: Site) -> None:
    outlet = site.declare("one", topics=["orders"])
    ids: list[str] = []

    def answer(message: Message) -> Reply:
        ids.append(message.id)
        return Reply(Result.ACCEPTED, "200") if len(ids) == 3 else Reply(Result.REJECTED, "400")

    outlet.answer = answer
    await site.deliver("orders", b"bad")
    async with site.relay():
        for times in (1, 2):
            await site.filled("dlq.destination.one", times)
            await site.redrive("one", times - 1)
        await until(lambda: outlet.messages)
    assert ids == ["id-bad"] * 3
    (message,) = outlet.messages
    assert message.topic == "orders"
    assert dict(message.headers)["x-duemq-redrives"] == b"2"


async def test_null_stays_null_in_retries_dead_letters_and_redrives(site: Site) -> None:
    outlet = site.declare("one", topics=["orders"])
    seen: list[bytes | None] = []
    answers = [FAILED, Reply(Result.REJECTED, "400"), Reply(Result.ACCEPTED, "200")]

    def answer(message: Message) -> Reply:
        seen.append(message.value)
        return answers[len(seen) - 1]

    outlet.answer = answer
    await site.deliver("orders", None)
    async with site.relay():
        await site.filled("dlq.destination.one", 1)
        (letter,) = await site.bus.read("dlq.destination.one", 0, 0, 10)
        assert unpack_record(letter.frame).value is None
        await site.redrive("one", 0)
        await until(lambda: outlet.messages)
    assert seen == [None] * 3


async def test_while_the_other_side_is_away_nothing_counts_as_a_retry(site: Site) -> None:
    outlet = site.declare("one", topics=["orders"])
    left = 2

    def answer(message: Message) -> Reply:
        nonlocal left
        left -= 1
        return Reply(Result.AWAY, "refused") if left >= 0 else Reply(Result.ACCEPTED, "200")

    outlet.answer = answer
    await site.deliver("orders", b"1", b"2")
    async with site.relay() as relay:
        await until(lambda: len(outlet.messages) == 2)
        figures = relay.figures_of("one")
    assert sorted(payloads(outlet)) == [b"1", b"2"]
    assert not site.names
    assert figures is not None
    assert figures.trouble == ""
