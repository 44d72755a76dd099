"""The outlet to NATS, on a real server: what is refused and by which word, and a server that is killed on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy

from duemq.model.destinations.destination import Credentials, read_credentials
from duemq.relay.base import Reply, Result
from tests.support.destinations.nats_node import NatsNode
from tests.support.outlets.nats_site import nats_outlet, stored
from tests.support.outlets.site import out_message
from tests.support.servers.real_servers import need

pytestmark = [pytest.mark.anyio, pytest.mark.servers, pytest.mark.xdist_group("destinations")]

USERS = """
authorization { users = [
  { user: admin, password: "all of it" }
  { user: relay, password: "s3cret word", permissions: { publish: ["orders.>"], subscribe: ["_INBOX.>"] } }
  { user: deaf, password: "s3cret word", permissions: { publish: ["orders.>"], subscribe: ["none"] } }
] }
"""


async def add_stream(node: NatsNode, name: str, subject: str, **settings: Any) -> None:
    async with await nats.connect(node.url) as client:
        await client.jetstream().add_stream(name=name, subjects=[subject], **settings)


async def replies(
    node: NatsNode, *bodies: bytes, credentials: Credentials | None = None, **options: Any
) -> list[Reply]:
    """Of messages sent by one outlet, one after another."""
    outlet = nats_outlet(node, credentials, **options)
    answers = [await outlet.send(out_message(number, payload=body)) for number, body in enumerate(bodies)]
    await outlet.close()
    return answers


def responding(body: bytes) -> Callable[[Msg], Awaitable[None]]:
    """A subscriber that answers this."""

    async def respond(message: Msg) -> None:
        await message.respond(body)

    return respond


@pytest.mark.smoke
async def test_two_destinations_into_one_stream_are_no_repeats_of_each_other(nats_server: NatsNode) -> None:
    await add_stream(nats_server, "TWO", "two.>")
    for name in ("first", "second", "first"):
        await replies(nats_server, b"", name=name, subject=f"two.{name}")
    assert len(await stored(nats_server, "TWO")) == 2


@pytest.mark.smoke
async def test_what_a_stream_refuses(nats_server: NatsNode) -> None:
    await add_stream(nats_server, "SMALL", "small", max_msg_size=1_000)
    await add_stream(nats_server, "FULL", "full", max_msgs=1, discard=DiscardPolicy.NEW)
    (nowhere,) = await replies(nats_server, b"", subject="nowhere")
    assert nowhere[:2] == (Result.FAILED, "no_stream")
    (other,) = await replies(nats_server, b"", subject="small", stream="FULL")
    assert other[:2] == (Result.FAILED, "other_stream")
    (large,) = await replies(nats_server, b"x" * 2_000, subject="small")
    assert large[:2] == (Result.REJECTED, "too_large")
    first, second = await replies(nats_server, b"1", b"2", subject="full")
    assert first.result is Result.ACCEPTED
    assert second == (Result.FAILED, "10077", "maximum messages exceeded", None, True)


async def test_an_answer_of_somebody_else_accepts_nothing(nats_server: NatsNode) -> None:
    async with await nats.connect(nats_server.url) as client:
        for body in (b"hello", b"{}", b"[]", b'{"seq":0}', b'{"error":1}'):
            responder = await client.subscribe("answered", cb=responding(body))
            await client.flush()
            (reply,) = await replies(nats_server, b"", subject="answered")
            assert reply[:2] == (Result.FAILED, "no_stream")
            await responder.unsubscribe()


@pytest.mark.smoke
async def test_payload_and_headers_may_have_as_many_bytes_as_the_server_takes(nats_server: NatsNode) -> None:
    await add_stream(nats_server, "LARGE", "large")
    outlet = nats_outlet(nats_server, subject="large")
    over = await outlet.send(out_message(1, payload=b"x" * (1 << 20)))
    assert over[:2] == (Result.REJECTED, "too_large")
    headers = int(over.detail.partition("headers have ")[2].split()[0].replace(",", "")) - (1 << 20)
    assert (await outlet.send(out_message(1, payload=b"x" * ((1 << 20) - headers + 1)))).status == "too_large"
    assert (await outlet.send(out_message(1, payload=b"x" * ((1 << 20) - headers)))).status == "ok"
    await outlet.close()


@pytest.mark.smoke
async def test_users_and_what_they_may(tmp_path: Path) -> None:
    relay = read_credentials({"username": "relay", "password": "s3cret word"})
    with need(lambda: NatsNode(tmp_path, settings=USERS)) as node:
        async with await nats.connect(node.url, user="admin", password="all of it") as client:
            await client.jetstream().add_stream(name="ORDERS", subjects=["orders.>", "Secret"])
        for wrong in (
            Credentials(),
            read_credentials({"username": "relay", "password": "s3cret"}),
            read_credentials({"token": "s3cret"}),
        ):
            (reply,) = await replies(node, b"", credentials=wrong, subject="orders.new")
            assert reply[:2] == (Result.AWAY, "authorization")
            assert "s3cret" not in reply.detail
        assert (await replies(node, b"", credentials=relay, subject="orders.new"))[0].status == "ok"
        async with asyncio.timeout(5):  # and not only after a time-out
            for jetstream in (True, False):
                (reply,) = await replies(node, b"", credentials=relay, subject="Secret", jetstream=jetstream)
                assert reply[:2] == (Result.AWAY, "permissions")
                assert 'publish to "secret"' in reply.detail
        deaf = read_credentials({"username": "deaf", "password": "s3cret word"})
        (reply,) = await replies(node, b"", credentials=deaf, subject="orders.new")
        assert reply[:2] == (Result.AWAY, "permissions")


async def test_one_subject_that_is_not_allowed_holds_up_no_other(tmp_path: Path) -> None:
    with need(lambda: NatsNode(tmp_path, settings=USERS)) as node:
        async with await nats.connect(node.url, user="admin", password="all of it") as client:
            await client.jetstream().add_stream(name="ORDERS", subjects=["orders.>"])
        outlet = nats_outlet(
            node, read_credentials({"username": "relay", "password": "s3cret word"}), subject="{{ key }}.x"
        )
        keys = [b"orders", b"other"] * 50
        sent = await asyncio.gather(*(outlet.send(out_message(n, key=key)) for n, key in enumerate(keys)))
        await outlet.close()
    assert [reply[:2] for reply in sent] == [(Result.ACCEPTED, "ok"), (Result.FAILED, "permissions")] * 50


async def test_a_token(tmp_path: Path) -> None:
    with need(lambda: NatsNode(tmp_path, settings='authorization { token: "s3cret" }')) as node:
        for token, status in (("s3cret", "no_stream"), ("another", "authorization")):
            (reply,) = await replies(node, b"", credentials=read_credentials({"token": token}), subject="orders")
            assert reply.status == status


async def test_tls_with_certificates_of_both_ends(tmp_path: Path) -> None:
    with need(lambda: NatsNode(tmp_path, tls=True, verify=True)) as node:
        files = node.client
        ca, cert, key = (Path(path).read_text() for path in (files.ca, files.cert, files.key))  # noqa: ASYNC240
        own = {"cert": cert, "key": key}
        (reply,) = await replies(node, b"", credentials=read_credentials({"ca": ca, **own}), subject="orders")
        assert reply.status == "no_stream"  # there is none: it got so far
        (reply,) = await replies(node, b"", credentials=read_credentials({"ca": ca}), subject="orders")
        assert reply.result is Result.AWAY
        (reply,) = await replies(node, b"", credentials=read_credentials(own), subject="orders")
        assert reply[:2] == (Result.AWAY, "tls")
        assert "certificate" in reply.detail
        for bad in ({"ca": "none"}, {"ca": ca, "cert": own["cert"], "key": "none"}):
            (reply,) = await replies(node, b"", credentials=read_credentials(bad), subject="orders")
            assert reply[:2] == (Result.AWAY, "tls")
            assert "credentials." in reply.detail


async def test_core_nats_accepts_nothing_that_the_server_has_not_read(own_nats: NatsNode) -> None:
    outlet = nats_outlet(own_nats, subject="orders", jetstream=False)
    assert (await outlet.send(out_message(1))).status == "ok"
    own_nats.process.pause()
    sending = asyncio.create_task(outlet.send(out_message(2)))
    done, _ = await asyncio.wait([sending], timeout=0.3)
    assert not done
    own_nats.process.resume()
    assert (await sending).status == "ok"
    await outlet.close()


@pytest.mark.parametrize("jetstream", [True, False])
@pytest.mark.parametrize("size", [1, 900_000])  # all of it written, and what no socket takes
async def test_a_server_that_answers_nothing_any_more_is_away(own_nats: NatsNode, jetstream: bool, size: int) -> None:
    await add_stream(own_nats, "ORDERS", "orders")
    outlet = nats_outlet(own_nats, timeout=1_000, subject="orders", jetstream=jetstream)
    assert (await outlet.send(out_message(1))).status == "ok"
    own_nats.process.pause()
    async with asyncio.timeout(30):
        sent = await asyncio.gather(*(outlet.send(out_message(n, payload=b"x" * size)) for n in range(2, 22)))
    assert {reply.result for reply in sent} == {Result.AWAY}
    own_nats.process.resume()
    assert (await outlet.send(out_message(2))).result is Result.ACCEPTED
    await outlet.close()


# Not in CI, which would have to build the command line of NATS.
async def test_a_server_killed_on_the_way_has_each_message_once(own_nats: NatsNode) -> None:
    await add_stream(own_nats, "ORDERS", "orders")
    outlet = nats_outlet(own_nats, subject="orders")
    numbers, results = iter(range(10_000)), set()

    async def worker() -> None:
        for number in numbers:
            if number in (2_000, 6_000):  # the others have theirs on the way
                await asyncio.to_thread(own_nats.restart)
            message = out_message(number, payload=b"%d" % number)
            while (result := (await outlet.send(message)).result) is not Result.ACCEPTED:
                results.add(result)
                await asyncio.sleep(0.05)

    await asyncio.gather(*(worker() for _ in range(outlet.concurrency)))
    await outlet.close()
    assert results == {Result.AWAY}
    arrived = await asyncio.to_thread(own_nats.dump, "ORDERS")
    assert sorted(int(each.body) for each in arrived) == list(range(10_000))
