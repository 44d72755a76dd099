"""How a channel's confirms, returns and ends become answers: a broker that says what each test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from pika import BasicProperties, exceptions, spec

from duemq.relay.base import Reply, Result
from duemq.relay.network.resolver import Resolver
from duemq.relay.rabbitmq.connection import Publisher, RabbitMqConnection
from duemq.relay.rabbitmq.mapping import Publication

pytestmark = pytest.mark.anyio


class Channel:
    """As much of pika's as a publisher uses."""

    def __init__(self) -> None:
        self.published: list[str] = []
        self.close_callbacks: list[Callable[..., None]] = []
        self.returned: Callable[..., None]
        self.answered: Callable[..., None]

    def add_on_close_callback(self, callback: Callable[..., None]) -> None:
        self.close_callbacks.append(callback)

    def add_on_return_callback(self, callback: Callable[..., None]) -> None:
        self.returned = callback

    def confirm_delivery(self, answered: Callable[..., None], ready: Callable[..., None]) -> None:
        self.answered = answered
        ready(None)

    def basic_publish(self, exchange: str, key: str, body: bytes, properties: BasicProperties, mandatory: bool) -> None:
        self.published.append(properties.message_id)

    # --- what the broker says -------------------------------------------------------------------------------------

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.answered(SimpleNamespace(method=spec.Basic.Ack(tag, multiple)))

    def nack(self, tag: int, *, multiple: bool = False) -> None:
        self.answered(SimpleNamespace(method=spec.Basic.Nack(tag, multiple)))

    def give_back(self, id_: str) -> None:
        method = spec.Basic.Return(312, "NO_ROUTE", "shop", "orders")
        self.returned(self, method, BasicProperties(message_id=id_), b"")

    def end(self, reason: BaseException) -> None:
        for callback in self.close_callbacks:
            callback(self, reason)


class Site:
    """A publisher, the channel it has, and what was accepted late."""

    def __init__(self) -> None:
        self.channel = Channel()
        self.late: list[str] = []
        self.publisher = Publisher(self.channel, True, self.late.append)

    def publish(self, *ids: str) -> list[asyncio.Future[Reply]]:
        return [
            self.publisher.publish(id_, Publication("shop", "orders", BasicProperties(message_id=id_), 0, b""))
            for id_ in ids
        ]


@pytest.fixture
async def site() -> Site:
    site = Site()
    await site.publisher.start()
    return site


def answers(futures: list[asyncio.Future[Reply]]) -> list[str]:
    return [future.result().status if future.done() else "-" for future in futures]


async def test_confirms_of_one_and_of_many(site: Site) -> None:
    futures = site.publish(*"abcdefgh")
    site.channel.ack(3)
    assert answers(futures) == ["-", "-", "ack", *"-----"]
    site.channel.nack(4, multiple=True)
    assert answers(futures) == ["nack", "nack", "ack", "nack", *"----"]
    site.channel.ack(6)
    site.channel.ack(5)
    site.channel.ack(7, multiple=True)
    assert answers(futures)[4:] == ["ack", "ack", "ack", "-"]
    site.channel.ack(0, multiple=True)  # all that there are
    futures += site.publish("i")
    assert answers(futures)[7:] == ["ack", "-"]
    site.channel.ack(9)
    assert answers(futures)[8:] == ["ack"]


async def test_a_confirm_of_what_was_given_back_is_no_success(site: Site) -> None:
    futures = site.publish(*"abc")
    site.channel.give_back("b")
    assert answers(futures) == ["-", "-", "-"]
    site.channel.ack(3, multiple=True)
    assert answers(futures) == ["ack", "NO_ROUTE", "ack"]
    again = site.publish("b")
    site.channel.ack(4)
    assert answers(again) == ["ack"]


async def test_a_repeat_waits_for_the_first(site: Site) -> None:
    futures = site.publish("a", "a", "b")
    assert site.channel.published == ["a", "b"]
    futures[0].cancel()
    site.channel.ack(1)
    assert not site.late and futures[1].result().result is Result.ACCEPTED
    site.publish("a")
    assert site.channel.published == ["a", "b", "a"]


async def test_messages_accepted_after_their_callers_gave_up_are_reported(site: Site) -> None:
    futures = site.publish(*"abc")
    for future in futures:
        future.cancel()
    site.channel.ack(1)
    site.channel.nack(2)
    site.channel.give_back("c")
    site.channel.ack(3)
    assert site.late == ["a"]


async def test_an_answer_in_between_leaves_it_under_way(site: Site) -> None:
    futures = site.publish("a")
    site.publisher.answer_all(Reply(Result.AWAY, "blocked"))
    assert answers(futures) == ["blocked"]
    futures = site.publish("a")
    assert site.channel.published == ["a"] and answers(futures) == ["-"]
    site.channel.ack(1)
    assert answers(futures) == ["ack"] and not site.late


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (exceptions.ChannelClosedByBroker(404, "NOT_FOUND - no exchange"), (Result.AWAY, "NOT_FOUND")),
        (exceptions.ChannelClosedByBroker(403, "ACCESS_REFUSED"), (Result.AWAY, "ACCESS_REFUSED")),
        (exceptions.ChannelClosedByBroker(406, "too big"), (Result.FAILED, "PRECONDITION_FAILED")),
        (exceptions.ConnectionClosedByBroker(320, "shutdown"), (Result.AWAY, "CONNECTION_FORCED")),
        (exceptions.ConnectionClosedByBroker(541, "bug"), (Result.FAILED, "INTERNAL_ERROR")),
        (exceptions.ConnectionClosedByBroker(599, "?"), (Result.FAILED, "599")),
        (exceptions.AMQPHeartbeatTimeout("silent"), (Result.AWAY, "heartbeat")),
        (exceptions.StreamLostError("reset"), (Result.AWAY, "connection lost")),
    ],
)
async def test_the_end_of_a_channel_answers_all(
    site: Site, reason: BaseException, expected: tuple[Result, str]
) -> None:
    futures = site.publish("a", "b")
    site.channel.ack(1)
    site.channel.end(reason)
    assert not site.publisher.open
    reply = futures[1].result()
    assert (reply.result, reply.status) == expected
    assert futures[0].result().result is Result.ACCEPTED


class Quiet:
    """IO on which nothing is heard after `heard_at`."""

    def __init__(self, heard_at: float) -> None:
        self.heard_at = heard_at
        self.aborted = ""

    def abort(self, why: str = "") -> None:
        self.aborted = why


async def test_a_link_on_which_nothing_is_heard_is_lost_and_its_messages_wait(site: Site) -> None:
    loop = asyncio.get_running_loop()
    connection, quiet = RabbitMqConnection(Resolver([]), 0.2), Quiet(loop.time())
    connection._connection, connection._publishers = SimpleNamespace(is_open=True), [site.publisher]
    connection._io = quiet  # type: ignore[assignment]
    (future,) = site.publish("a")
    connection._watch()
    quiet.heard_at = loop.time() + 0.1  # a heartbeat
    await asyncio.sleep(0.22)
    assert not quiet.aborted and not future.done()
    async with asyncio.timeout(10):
        reply = await future
    assert (reply.result, reply.status) == (Result.AWAY, "heartbeat") and quiet.aborted
