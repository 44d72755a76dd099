"""Which messages go to RocketMQ in one request, and what becomes of those whose request is refused."""

from __future__ import annotations

import asyncio
import threading

import pytest

from duemq.dev.servers.process import wait_for
from duemq.relay.base import Result
from duemq.relay.rocketmq.client import Code, MessageType
from duemq.relay.rocketmq.mapping import Publication
from duemq.relay.rocketmq.requests import PendingSend, SendQueue, send_request
from tests.support.outlets.rocketmq_site import rocketmq_outlet
from tests.support.outlets.site import out_message
from tests.support.rocketmq.fake_proxy import FakeProxy

pytestmark = pytest.mark.anyio


def sending(number: int, topic: str = "orders", *, body: bytes = b"x", group: str | None = None) -> PendingSend:
    publication = Publication(str(number), topic, body, {}, [str(number)], message_group=group)
    return PendingSend(publication, asyncio.get_running_loop().create_future())


def taken(*sendings: PendingSend) -> list[list[int]]:
    """The numbers of each request."""
    batches = SendQueue()
    for one in sendings:
        batches.add(one)
    found = []
    while batch := batches.next():
        assert len({one.publication.topic for one in batch}) == 1
        found.append([int(one.publication.message_id) for one in batch])
    return found


async def test_topics_take_turns() -> None:
    both = [sending(number, topic) for number in range(100) for topic in ("a", "b")]
    assert taken(*both) == [[*range(64)], [*range(64)], [*range(64, 100)], [*range(64, 100)]]


async def test_a_request_has_a_mebibyte_or_one_message() -> None:
    sizes = [400_000, 600_000, 100_000, 4_000_000, 10, 1 << 20]
    assert taken(*(sending(n, body=b"x" * size) for n, size in enumerate(sizes))) == [[0, 1], [2], [3], [4], [5]]


async def test_a_message_with_a_group_goes_alone() -> None:
    assert taken(*(sending(number, group="g") for number in range(3))) == [[0], [1], [2]]


async def test_what_was_cancelled_is_not_sent() -> None:
    three = [sending(number) for number in range(3)]
    three[1].reply.cancel()
    assert taken(*three) == [[0, 2]]
    for one in three:
        one.reply.cancel()
    assert taken(*three) == []


async def test_what_a_request_says_of_a_message() -> None:
    plain = Publication("7", "orders", b"body", {"name": "value"}, ["7", "key"], tag="paid")
    grouped = Publication("8", "orders", b"x", {}, ["8"], message_group="g")
    first, second = send_request([plain, grouped]).messages
    assert (first.topic.name, first.body, dict(first.user_properties)) == ("orders", b"body", {"name": "value"})
    system = first.system_properties
    assert (system.message_id, list(system.keys), system.tag, system.message_group) == ("7", ["7", "key"], "paid", "")
    assert system.message_type == MessageType.NORMAL
    assert (second.system_properties.message_type, second.system_properties.message_group) == (MessageType.FIFO, "g")


async def test_many_go_in_few_requests(proxy: FakeProxy) -> None:
    outlet = rocketmq_outlet(proxy.endpoint)
    messages = [out_message(number) for number in range(500)]
    replies = await asyncio.gather(*map(outlet.send, messages))
    await outlet.close()
    assert {reply.result for reply in replies} == {Result.ACCEPTED}
    assert sorted(id_ for request in proxy.requests for id_ in request) == [message.identity for message in messages]
    assert len(proxy.requests) < 20


async def test_what_comes_while_eight_are_under_way_waits_for_a_full_request(proxy: FakeProxy) -> None:
    outlet, answered = rocketmq_outlet(proxy.endpoint), threading.Event()
    assert (await outlet.send(out_message(0))).result is Result.ACCEPTED
    proxy.answer = lambda context: int(Code.OK if answered.wait(30) else Code.BAD_REQUEST)
    sending = []
    for number in range(1, 101):
        sending.append(asyncio.create_task(outlet.send(out_message(number))))
        await asyncio.sleep(0)
    await asyncio.to_thread(wait_for, lambda: len(proxy.requests) == 9, "eight requests", 30)
    answered.set()
    assert {reply.result for reply in await asyncio.gather(*sending)} == {Result.ACCEPTED}
    await outlet.close()
    assert len(proxy.requests) <= 9 + 2


async def test_a_message_that_is_refused_takes_no_other_with_it(proxy: FakeProxy) -> None:
    outlet = rocketmq_outlet(proxy.endpoint)
    messages = [out_message(number) for number in range(20)]
    proxy.bad = {messages[7].identity}
    replies = await asyncio.gather(*map(outlet.send, messages))
    await outlet.close()
    assert [reply.status for reply in replies] == ["OK"] * 7 + ["ILLEGAL_MESSAGE_KEY"] + ["OK"] * 12
    assert replies[7].result is Result.REJECTED
    accepted = [request for request in proxy.requests if messages[7].identity not in request]
    assert sorted(id_ for request in accepted for id_ in request) == [
        m.identity for m in messages if m is not messages[7]
    ]


async def test_another_broker_may_take_it(proxy: FakeProxy) -> None:
    outlet = rocketmq_outlet(proxy.endpoint)
    codes = [Code.INTERNAL_SERVER_ERROR, Code.INTERNAL_SERVER_ERROR, Code.OK, *[Code.INTERNAL_SERVER_ERROR] * 3]
    proxy.answer = lambda context: int(codes.pop(0))
    assert (await outlet.send(out_message(1))).result is Result.ACCEPTED
    assert (await outlet.send(out_message(2))).result is Result.FAILED
    await outlet.close()
    assert [len(request) for request in proxy.requests] == [1] * 6
