"""What tells messages apart, and keeps repeats of one together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pika import spec

from duemq.client.consumer.letter import letter_of
from duemq.client.consumer.message import Message, message_of
from duemq.client.consumer.retry.headers import Headers
from duemq.client.consumer.retry.policy import DeadLetter, Wait
from duemq.client.idempotency.memory import MemoryStore
from duemq.client.idempotency.once import once
from duemq.model.destinations.rabbitmq import RabbitMqOptions
from duemq.model.messages.dead_letters import REDRIVEN_ID, REDRIVEN_ORIGIN, first_place, home_of, id_of, own_headers
from duemq.relay.base import Result
from duemq.relay.rabbitmq.connection import Publisher
from duemq.relay.rabbitmq.mapping import Mapping
from tests.support.outlets.site import OutRecord

ID = b"0123456789abcdef0123456789abcdef"
BY_DUEMQ = [("duemq-id", ID), ("duemq-due", b"1795000000000")]


def record(topic: str = "orders", offset: int = 7, headers: Headers = BY_DUEMQ, partition: int = 0) -> OutRecord:
    return OutRecord(topic=topic, partition=partition, offset=offset, value=b"x", headers=list(headers))


def redriven(letter_headers: Headers, to: str, offset: int = 99) -> OutRecord:
    """As `proxy/jobs/topic_work.py` makes it of a dead letter."""
    more = [(REDRIVEN_ID, id_of(letter_headers).encode()), (REDRIVEN_ORIGIN, first_place(letter_headers).encode())]
    return record(to, offset, [("duemq-id", b"f" * 32), *own_headers(letter_headers), *more])


def test_records_that_have_one_id_in_common_are_not_repeats_of_one_another() -> None:
    copies = [record(), record(offset=8), record("order-lines"), record(partition=1)]
    messages = [Message(each) for each in copies]
    assert {each.id for each in messages} == {ID.decode()}
    assert len({each.identity for each in messages}) == len(messages)


@pytest.mark.parametrize("headers", [BY_DUEMQ, []])
def test_a_message_has_one_identity_over_retries_and_redrives(headers: Headers) -> None:
    first = Message(record(headers=headers))
    retry = letter_of("destination.mail", first, Wait("level", 3), "no")
    again = message_of(record("retry.destination.mail", 3, [*BY_DUEMQ, *retry.headers]), True)
    dead = letter_of("destination.mail", again, DeadLetter("retries"), "no")
    back = Message(redriven(dead.headers, "destination.mail"))
    second = letter_of("destination.mail", back, Wait("level", 3), "no")
    later = message_of(record("retry.destination.mail", 9, [*BY_DUEMQ, *second.headers]), True)
    dead_again = letter_of("destination.mail", later, DeadLetter("retries"), "no")
    elsewhere = Message(redriven(dead_again.headers, "repaired", 4))
    for each in (again, back, later, elsewhere):
        assert (each.id, each.identity) == (first.id, first.identity)
    assert (back.topic, later.topic, elsewhere.topic) == ("orders", "orders", "repaired")


def test_only_what_was_redriven_has_the_topic_of_another_record() -> None:
    """Whoever may send to one destination must not choose where it hands on."""
    forged = Message(record("destination.mail", headers=[*BY_DUEMQ, (REDRIVEN_ORIGIN, b"secret/0/1")]))
    assert forged.topic == "destination.mail"


def test_dead_letters_of_a_destination_go_back_to_it_alone() -> None:
    assert home_of("dlq.destination.mail") == "destination.mail"
    assert home_of("dlq.billing") == home_of("duemq.dlq") == home_of("") == ""


@pytest.mark.anyio
async def test_once_does_the_work_of_each_record() -> None:
    done: list[int] = []

    @once(MemoryStore(), scope="s")
    async def handle(message: Message) -> None:
        done.append(message.record.offset)

    for each in (record(), record(offset=8), record()):
        await handle(Message(each))
    assert done == [7, 8]


@pytest.mark.anyio
async def test_rabbitmq_gets_each_record_and_tells_which_came_back() -> None:
    class Channel:
        is_open = True

        def __init__(self) -> None:
            self.published: list[Any] = []

        def add_on_close_callback(self, _: Any) -> None: ...

        def add_on_return_callback(self, _: Any) -> None: ...

        def basic_publish(self, exchange: str, routing_key: str, body: bytes, properties: Any, mandatory: bool) -> None:
            self.published.append(properties)

    channel, mapping = Channel(), Mapping(RabbitMqOptions())
    publisher = Publisher(channel, True, lambda _: None)
    answers: list[asyncio.Future[Any]] = []
    for message in (Message(record()), Message(record(offset=8)), Message(record())):
        answers.append(publisher.publish(message.identity, mapping.publication(message)))
    assert len(channel.published) == 2  # the third is a repeat of the first
    publisher._on_return(None, spec.Basic.Return(312, "NO_ROUTE", "", "orders"), channel.published[1], b"x")
    frame: Any = type("Frame", (), {"method": spec.Basic.Ack(2, True)})
    publisher._on_answer(frame)
    assert [each.result().result for each in answers] == [Result.ACCEPTED, Result.FAILED, Result.ACCEPTED]
