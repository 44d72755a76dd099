"""What the broker dislikes, and what becomes of messages then."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel
from cryptography import x509

from duemq.client.consumer.message import Message
from duemq.model.destinations.destination import read_credentials, read_destination
from duemq.relay.base import Reply, Result
from duemq.relay.outlets import open_outlet
from duemq.relay.rabbitmq.outlet import RabbitMqOutlet
from tests.support.destinations.rabbitmq_node import RabbitMQNode
from tests.support.outlets.rabbitmq_site import plain, rabbitmq_outlet
from tests.support.outlets.site import LOOPBACK, OutRecord, out_message
from tests.support.patience import SERVERS_S
from tests.support.servers.real_servers import need
from tests.support.tls.certificates import Authority

pytestmark = [pytest.mark.anyio, pytest.mark.smoke]
_NUMBERS = count()


@pytest.fixture
def name() -> str:
    """Of a queue or an exchange."""
    return f"outlet-{next(_NUMBERS)}"


@asynccontextmanager
async def channel_of(node: RabbitMQNode) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(node.url) as connection:
        yield await connection.channel()


@asynccontextmanager
async def opened(node: RabbitMQNode, **options: Any) -> AsyncIterator[RabbitMqOutlet]:
    outlet = rabbitmq_outlet(node.url, **options)
    try:
        yield outlet
    finally:
        await outlet.close()


async def declare(node: RabbitMQNode, queue: str, **arguments: Any) -> None:
    async with channel_of(node) as channel:
        await channel.declare_queue(queue, durable=True, arguments=arguments)


async def test_a_message_with_a_long_id_that_no_queue_gets_fails(rabbitmq: RabbitMQNode) -> None:
    """The broker confirms what it returns: a return that is not told apart would lose the message."""
    message = Message(OutRecord(headers=[("duemq-id", b"x" * 250)]))
    async with opened(rabbitmq, routing_key="nowhere") as outlet:
        assert (await outlet.send(message)).status == "NO_ROUTE"


async def test_a_message_that_no_queue_gets_fails(rabbitmq: RabbitMQNode, name: str) -> None:
    await declare(rabbitmq, name)
    async with opened(rabbitmq, routing_key="{{ key }}") as outlet:
        keys = [name, "nowhere"] * 50
        replies = await asyncio.gather(
            *(outlet.send(out_message(number, key=key.encode())) for number, key in enumerate(keys))
        )
    assert [(reply.result, reply.status) for reply in replies] == [
        (Result.ACCEPTED, "ack"), (Result.FAILED, "NO_ROUTE"),
    ] * 50  # fmt: skip
    assert "'nowhere'" in replies[1].detail
    assert len(rabbitmq.dump(name)) == 50
    async with opened(rabbitmq, routing_key="nowhere", mandatory=False) as outlet:
        assert (await outlet.send(out_message(1))).result is Result.ACCEPTED


async def test_a_message_that_a_full_queue_refuses_fails(rabbitmq: RabbitMQNode, name: str) -> None:
    await declare(rabbitmq, name, **{"x-max-length": 1, "x-overflow": "reject-publish"})
    async with opened(rabbitmq, routing_key=name) as outlet:
        replies = [await outlet.send(out_message(number)) for number in range(3)]
    assert [(reply.result, reply.status) for reply in replies] == [
        (Result.ACCEPTED, "ack"), (Result.FAILED, "nack"), (Result.FAILED, "nack"),
    ]  # fmt: skip


async def test_an_exchange_that_is_not_there_may_come(rabbitmq: RabbitMQNode, name: str) -> None:
    async with opened(rabbitmq, exchange=name, routing_key="orders") as outlet:
        replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(20)))
        assert {(reply.result, reply.status) for reply in replies} == {(Result.AWAY, "NOT_FOUND")}
        async with channel_of(rabbitmq) as channel:
            exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True)
            queue = await channel.declare_queue(name, durable=True)
            await queue.bind(exchange, "orders")
        replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(20)))
        assert {reply.result for reply in replies} == {Result.ACCEPTED}
    assert len(rabbitmq.dump(name)) == 20


async def test_who_has_no_right_waits_for_the_operator(rabbitmq: RabbitMQNode, name: str) -> None:
    rabbitmq.control("add_user", name, "secret")
    user = {"username": name, "password": "secret"}

    async def sent(**credentials: str) -> Reply:
        async with opened(rabbitmq, exchange="amq.fanout", mandatory=False, credentials=user | credentials) as outlet:
            return await outlet.send(out_message(1))

    reply = await sent(password="wrong-one")
    assert (reply.result, reply.status) == (Result.AWAY, "ACCESS_REFUSED")
    assert "wrong-one" not in reply.detail
    reply = await sent()
    assert (reply.result, reply.status) == (Result.AWAY, "NOT_ALLOWED")
    assert "virtual host" in reply.detail
    rabbitmq.control("set_permissions", name, "", "", "")
    reply = await sent()
    assert (reply.result, reply.status) == (Result.AWAY, "ACCESS_REFUSED")
    assert "amq.fanout" in reply.detail
    rabbitmq.control("set_permissions", name, "", "amq.fanout", "")
    assert (await sent()).result is Result.ACCEPTED


async def test_a_virtual_host_of_the_url(rabbitmq: RabbitMQNode, name: str) -> None:
    rabbitmq.control("add_vhost", f"/{name}")
    rabbitmq.control("set_permissions", "-p", f"/{name}", "guest", ".*", ".*", ".*")
    for path, status in ((f"%2F{name}", "ack"), (f"%2F{name}-2", "NOT_ALLOWED")):
        outlet = rabbitmq_outlet(rabbitmq.url + path, exchange="amq.fanout", mandatory=False)
        assert (await outlet.send(out_message(1))).status == status
        await outlet.close()


@pytest.fixture
def other(tmp_path: Path) -> dict[str, str]:
    """Credentials of an authority that the broker does not know."""
    authority = Authority.make(tmp_path)
    files = authority.issue("client")
    return {"ca": authority.ca.read_text(), "cert": Path(files.cert).read_text(), "key": Path(files.key).read_text()}


async def test_tls_with_an_authority_of_its_own(rabbitmq: RabbitMQNode, name: str, other: dict[str, str]) -> None:
    await declare(rabbitmq, name)
    for ca, status in ((rabbitmq.ca.read_text(), "ack"), (other["ca"], "certificate"), ("junk", "tls")):
        outlet = rabbitmq_outlet(rabbitmq.tls_url, {"ca": ca}, routing_key=name)
        reply = await outlet.send(out_message(1))
        assert (reply.result, reply.status) == (Result.ACCEPTED if status == "ack" else Result.AWAY, status), reply
        await outlet.close()
    outlet = rabbitmq_outlet(rabbitmq.tls_url, other | {"ca": rabbitmq.ca.read_text()}, routing_key=name)
    reply = await outlet.send(out_message(2))  # the broker does not know who signed it, and may not find time to say so
    assert reply.result is Result.AWAY and reply.status in ("tls", "unreachable")
    await outlet.close()


async def test_the_broker_knows_the_user_by_the_certificate(tmp_path: Path) -> None:
    settings = {"auth_mechanisms.1": "PLAIN", "auth_mechanisms.2": "EXTERNAL"}
    with need(lambda: RabbitMQNode(tmp_path / "rabbitmq", settings)) as node:
        own = {"ca": node.ca.read_text(), "cert": node.cert.read_text(), "key": node.key.read_text()}
        subject = x509.load_pem_x509_certificate(node.cert.read_bytes()).subject.rfc4514_string()
        node.control("add_user", subject, "of-no-use")
        node.control("set_permissions", subject, "", "amq.fanout", "")
        credentials = own | {"username": "", "password": ""}
        outlet = rabbitmq_outlet(node.tls_url, credentials, exchange="amq.fanout", mandatory=False)
        assert (await outlet.send(out_message(1))).status == "ack"
        await outlet.close()


@pytest.fixture
def small_rabbitmq(tmp_path: Path) -> Iterator[RabbitMQNode]:
    """It takes messages of up to 10,000 bytes."""
    with need(lambda: RabbitMQNode(tmp_path / "rabbitmq", {"max_message_size": 10_000})) as node:
        yield node


async def test_a_message_that_is_too_big_harms_no_other(small_rabbitmq: RabbitMQNode) -> None:
    node = small_rabbitmq
    await declare(node, "orders")
    async with opened(node, routing_key="orders") as outlet:
        messages = [out_message(number, payload=b"x" * (20_000 if number == 40 else 100)) for number in range(100)]
        replies = await asyncio.gather(*map(outlet.send, messages))
        assert [number for number, reply in enumerate(replies) if reply.result is not Result.ACCEPTED] == [40]
        assert (replies[40].result, replies[40].status) == (Result.REJECTED, "PRECONDITION_FAILED")
        assert (await outlet.send(out_message(100))).result is Result.ACCEPTED
    ids = [each.properties["message_id"] for each in node.dump("orders")]
    assert set(ids) == {messages[number].identity for number in range(100) if number != 40} | {
        out_message(100).identity
    }


async def test_headers_that_no_frame_holds_are_rejected(rabbitmq: RabbitMQNode, name: str) -> None:
    await declare(rabbitmq, name)
    async with opened(rabbitmq, routing_key=name) as outlet:
        reply = await outlet.send(out_message(1, headers=[("a", b"x" * 200_000)]))
        assert (reply.result, reply.status) == (Result.REJECTED, "FRAME_ERROR")
        fits = [(f"{number:0255}", b"\xff" * 215) for number in range(270)]  # 10 bytes of frame are left for each
        assert (await outlet.send(out_message(2, headers=fits))).result is Result.ACCEPTED
    (arrived,) = rabbitmq.dump(name)
    assert len(arrived.headers) == 272


async def test_an_alarm_of_the_broker_stops_all_without_a_loss(own_rabbitmq: RabbitMQNode) -> None:
    node = own_rabbitmq
    await declare(node, "orders")
    async with opened(node, routing_key="orders") as outlet:
        assert (await outlet.send(out_message(0))).result is Result.ACCEPTED
        node.control("set_vm_memory_high_watermark", "0.00001")
        replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(1, 100)))
        assert {(reply.result, reply.status) for reply in replies} == {(Result.AWAY, "blocked")}
        assert "memory" in replies[0].detail
        assert (await outlet.send(out_message(100))).status == "blocked"
        node.control("set_vm_memory_high_watermark", "0.4")
        async with asyncio.timeout(SERVERS_S):
            while (await outlet.send(out_message(100))).status == "blocked":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        # Those that were under way went on afterwards: a repeat is told so, and is not published twice.
        replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(1, 100)))
        assert {reply.result for reply in replies} == {Result.ACCEPTED}
    ids = [each.properties["message_id"] for each in node.dump("orders")]
    assert sorted(ids) == [out_message(number).identity for number in range(101)]


async def test_after_a_time_out_a_repeat_is_not_published_again(own_rabbitmq: RabbitMQNode) -> None:
    node = own_rabbitmq
    await declare(node, "orders")
    async with opened(node, routing_key="orders") as outlet:
        assert (await outlet.send(out_message(0))).result is Result.ACCEPTED
        node.process.pause()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await outlet.send(out_message(1))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await outlet.send(out_message(2))
        waiting = asyncio.create_task(outlet.send(out_message(1)))
        await asyncio.sleep(0)
        node.process.resume()
        assert (await waiting).result is Result.ACCEPTED  # the answer to the first
        await asyncio.sleep(0.5)
        assert (await outlet.send(out_message(2))).result is Result.ACCEPTED  # the answer came before
        assert (await outlet.send(out_message(2))).result is Result.ACCEPTED  # nobody had asked for it any more
    ids = [each.properties["message_id"] for each in node.dump("orders")]
    assert ids == [out_message(number).identity for number in (0, 1, 2, 2)]


async def test_a_kill_of_the_broker_loses_nothing(own_rabbitmq: RabbitMQNode) -> None:
    node, total = own_rabbitmq, 10_000
    await declare(node, "orders", **{"x-queue-type": "quorum"})
    node.until_on_disk("orders")
    under_way: set[int] = set()
    doubtful: set[int] = set()
    done = 0
    async with opened(node, routing_key="orders") as outlet:
        numbers = iter(range(total))

        async def work() -> None:
            nonlocal done
            for number in numbers:
                under_way.add(number)
                while (await outlet.send(out_message(number, payload=b"%d" % number))).result is not Result.ACCEPTED:
                    doubtful.add(number)
                    await asyncio.sleep(0.2)
                under_way.discard(number)
                done += 1

        working = asyncio.gather(*(work() for _ in range(200)))
        while done < total // 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert not doubtful
        await asyncio.to_thread(node.restart)
        await working
    assert done == total
    assert len(doubtful) <= 200
    arrived = Counter(int(each.body) for each in node.dump("orders"))
    assert set(arrived) == set(range(total))
    assert {number for number, times in arrived.items() if times > 1} <= doubtful


async def test_it_is_opened_by_its_url(rabbitmq: RabbitMQNode) -> None:
    destination = read_destination({"name": "rabbit", "url": plain(rabbitmq.url), "options": {"mandatory": False}})
    outlet = open_outlet(destination, read_credentials({}), LOOPBACK)
    assert (await outlet.send(out_message(1))).result is Result.ACCEPTED
    await outlet.close()
