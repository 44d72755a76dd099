"""What the answers of a proxy become, and when there is a new connection."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import grpc
import pytest

from duemq.dev.servers.ports import free_port
from duemq.model.destinations.destination import read_credentials, read_destination
from duemq.relay.base import Reply, Result
from duemq.relay.rocketmq import connection as connection_module
from duemq.relay.rocketmq.client import Code, Permission, RpcClient
from duemq.relay.rocketmq.outlet import RocketMqOutlet
from tests.support.outlets.rocketmq_site import rocketmq_outlet
from tests.support.outlets.site import LOOPBACK, out_message
from tests.support.rocketmq.fake_proxy import FakeProxy
from tests.support.tls.certificates import Authority

pytestmark = pytest.mark.anyio


@pytest.fixture
def pems(tmp_path: Path) -> dict[str, str]:
    """Of an authority of its own, and a certificate that it gave."""
    files = Authority.make(tmp_path).issue("proxy")
    return {name: Path(getattr(files, name)).read_text() for name in ("ca", "cert", "key")}


@pytest.fixture
def secure_proxy(pems: dict[str, str]) -> Iterator[FakeProxy]:
    """It wants a certificate of its clients, too."""
    with FakeProxy(*(pems[name].encode() for name in ("key", "cert", "ca"))) as proxy:
        yield proxy


def outlet_of(proxy: FakeProxy, scheme: str = "rocketmq", **credentials: str) -> RocketMqOutlet:
    fields = {"name": "rocket", "url": f"{scheme}://{proxy.endpoint}", "timeout": 4_000}
    return RocketMqOutlet(read_destination(fields), read_credentials(credentials), LOOPBACK)


async def reply_of(outlet: RocketMqOutlet) -> Reply:
    try:
        return await outlet.send(out_message(1))
    finally:
        await outlet.close()


@pytest.mark.parametrize(
    ("code", "result", "overloaded"),
    [
        ("OK", Result.ACCEPTED, False),
        ("TOPIC_NOT_FOUND", Result.FAILED, False),
        ("ILLEGAL_TOPIC", Result.FAILED, False),
        ("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", Result.FAILED, False),
        ("INTERNAL_SERVER_ERROR", Result.FAILED, False),
        ("HA_NOT_AVAILABLE", Result.FAILED, False),
        ("TOO_MANY_REQUESTS", Result.FAILED, True),
        ("PROXY_TIMEOUT", Result.FAILED, True),
        ("MASTER_PERSISTENCE_TIMEOUT", Result.FAILED, True),
        ("UNAUTHORIZED", Result.AWAY, False),
        ("FORBIDDEN", Result.AWAY, False),
        ("MESSAGE_BODY_TOO_LARGE", Result.REJECTED, False),
        ("MESSAGE_PROPERTIES_TOO_LARGE", Result.REJECTED, False),
        ("ILLEGAL_MESSAGE_PROPERTY_KEY", Result.REJECTED, False),
        ("ILLEGAL_MESSAGE_KEY", Result.REJECTED, False),
    ],
)
async def test_codes(proxy: FakeProxy, code: str, result: Result, overloaded: bool) -> None:
    proxy.answer = lambda context: int(Code.Value(code))
    reply = await reply_of(outlet_of(proxy))
    assert (reply.result, reply.status, reply.overloaded) == (result, code, overloaded)
    assert result is Result.ACCEPTED or "of the message" in reply.detail


async def test_codes_of_a_route(proxy: FakeProxy) -> None:
    outlet = outlet_of(proxy)
    for code, result in (("TOPIC_NOT_FOUND", Result.FAILED), ("FORBIDDEN", Result.AWAY), ("OK", Result.ACCEPTED)):
        proxy.route = Code.Value(code)
        replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(20)))
        assert {(reply.result, reply.status) for reply in replies} == {(result, code)}
    await outlet.close()


@pytest.mark.parametrize(
    "words",
    [
        "ProxyException: service not available now. It may be caused by: the broker's disk is full",
        "connect to 127.0.0.1:10911 failed. RemotingConnectException. NettyRemotingClient.java:817",
    ],
)
async def test_a_broker_that_takes_nothing_is_away(proxy: FakeProxy, words: str) -> None:
    """As RocketMQ 5.5.0 says it; the second where the proxy is a process of its own, and the broker is killed."""
    proxy.answer, proxy.words = lambda context: int(Code.INTERNAL_SERVER_ERROR), words
    assert (await reply_of(outlet_of(proxy))).result is Result.AWAY
    assert len(proxy.requests) == 3  # another broker may take it


async def test_a_topic_that_is_read_only_for_a_time(proxy: FakeProxy) -> None:
    outlet = outlet_of(proxy)
    for permission, status in ((Permission.READ, "no route"), (Permission.READ_WRITE, "OK")):
        proxy.permission = permission
        replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(20)))
        assert {reply.status for reply in replies} == {status}
        assert {reply.result for reply in replies} == {Result.AWAY if status == "no route" else Result.ACCEPTED}
    await outlet.close()


@pytest.mark.heavy
async def test_an_error_does_not_keep_its_call() -> None:
    """Nor the channel with it, which would connect again for ever."""
    gc.collect()
    gc.disable()
    try:
        assert (await reply_of(rocketmq_outlet(f"127.0.0.1:{free_port()}"))).status == "UNAVAILABLE"
        assert [each for each in gc.get_objects() if isinstance(each, grpc.aio.Call)] == []
    finally:
        gc.enable()
        gc.collect()


@pytest.mark.parametrize(
    ("code", "result", "overloaded"),
    [
        ("UNAVAILABLE", Result.AWAY, False), ("UNAUTHENTICATED", Result.AWAY, False),
        ("PERMISSION_DENIED", Result.AWAY, False), ("UNIMPLEMENTED", Result.AWAY, False),
        ("RESOURCE_EXHAUSTED", Result.FAILED, True), ("DEADLINE_EXCEEDED", Result.FAILED, True),
    ],
)  # fmt: skip
async def test_codes_of_grpc(proxy: FakeProxy, code: str, result: Result, overloaded: bool) -> None:
    proxy.answer = lambda context: context.abort(grpc.StatusCode[code], "why")
    reply = await reply_of(outlet_of(proxy))
    assert (reply.result, reply.status, reply.detail, reply.overloaded) == (result, code, "why", overloaded)


@pytest.mark.heavy
async def test_a_proxy_that_answers_nothing_is_away_and_a_slow_one_is_not(proxy: FakeProxy) -> None:
    outlet = outlet_of(proxy)
    assert (await outlet.send(out_message(0))).result is Result.ACCEPTED
    proxy.answering.clear()
    async with asyncio.timeout(4.1):  # of the destination
        replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(1, 1_100)))
    proxy.answering.set()
    assert {(reply.result, reply.status) for reply in replies} == {(Result.AWAY, "DEADLINE_EXCEEDED")}

    def slow(context: Any) -> int:
        time.sleep(2.5)
        return int(Code.OK)

    proxy.answer = slow
    reply = await reply_of(outlet)
    assert (reply.result, reply.status, reply.overloaded) == (Result.FAILED, "DEADLINE_EXCEEDED", True)


async def test_after_a_loss_there_is_a_new_connection(proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_RENEW_S", 0.2)
    outlet = outlet_of(proxy)
    assert (await outlet.send(out_message(1))).result is Result.ACCEPTED
    proxy.answer = lambda context: context.abort(grpc.StatusCode.UNAVAILABLE, "why")
    replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(50)))
    assert {reply.result for reply in replies} == {Result.AWAY}
    assert len(proxy.peers) == 1
    await asyncio.sleep(0.3)
    proxy.answer = lambda context: int(Code.OK)
    replies = await asyncio.gather(*(outlet.send(out_message(number)) for number in range(50)))
    assert {reply.result for reply in replies} == {Result.ACCEPTED}
    assert len(proxy.peers) == 2
    await asyncio.sleep(0.3)
    assert (await outlet.send(out_message(1))).result is Result.ACCEPTED
    assert len(proxy.peers) == 2
    await outlet.close()


async def test_what_is_under_way_when_it_is_closed_is_answered(proxy: FakeProxy) -> None:
    outlet = outlet_of(proxy)
    assert (await outlet.send(out_message(0))).result is Result.ACCEPTED

    def slow(context: Any) -> int:
        time.sleep(0.5)
        return int(Code.OK)

    proxy.answer = slow
    sending = asyncio.create_task(outlet.send(out_message(1)))
    await asyncio.sleep(0.1)
    await outlet.close()
    assert (await sending).result is Result.AWAY
    assert (await outlet.send(out_message(2))).result is Result.AWAY
    proxy.answer = lambda context: int(Code.OK)
    await asyncio.sleep(0.6)
    async with asyncio.timeout(5):  # another destination
        assert (await reply_of(outlet_of(proxy))).result is Result.ACCEPTED


async def test_an_answer_that_comes_before_the_client_waits(proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, early = RpcClient.query_topic_route_async, list[object]()

    def ask_and_wait(*arguments: Any, **options: Any) -> Future[Any]:
        asking: Future[Any] = ask(*arguments, **options)
        if threading.current_thread() is not threading.main_thread() and len(early) < 6:
            early.append(wait([asking]))
        return asking

    monkeypatch.setattr(RpcClient, "query_topic_route_async", ask_and_wait)
    assert (await reply_of(outlet_of(proxy))).result is Result.ACCEPTED
    assert len(early) == 6


async def test_keys_of_access_are_used(proxy: FakeProxy) -> None:
    assert (await reply_of(outlet_of(proxy, username="access", password="secret"))).result is Result.ACCEPTED
    (signature,) = proxy.signatures
    assert "Credential=access," in signature
    assert "secret" not in signature


async def test_certificates(secure_proxy: FakeProxy, pems: dict[str, str]) -> None:
    for left_out, result in (({"ca"}, Result.AWAY), ({"cert", "key"}, Result.AWAY), (set(), Result.ACCEPTED)):
        given = {name: pem for name, pem in pems.items() if name not in left_out}
        reply = await reply_of(outlet_of(secure_proxy, "rocketmqs", **given))
        assert reply.result is result, reply
        if left_out == {"ca"}:
            assert reply.status == "tls"
    reply = await reply_of(outlet_of(secure_proxy, "rocketmqs", **pems | {"ca": "no PEM"}))
    assert reply.result is Result.AWAY
    assert (await reply_of(outlet_of(secure_proxy))).result is Result.AWAY  # without TLS


@pytest.fixture
def misnamed_proxy(tmp_path: Path) -> Iterator[tuple[FakeProxy, str]]:
    """It shows a certificate for another host; and the authority that gave it."""
    authority = Authority.make(tmp_path)
    files = authority.issue("proxy", "proxy.example")
    with FakeProxy(Path(files.key).read_bytes(), Path(files.cert).read_bytes()) as proxy:
        yield proxy, authority.ca.read_text()


async def test_a_certificate_for_another_host(misnamed_proxy: tuple[FakeProxy, str]) -> None:
    proxy, ca = misnamed_proxy
    reply = await reply_of(outlet_of(proxy, "rocketmqs", ca=ca, username="access"))
    assert (reply.result, reply.status) == (Result.AWAY, "tls")
    assert not proxy.signatures


async def test_with_tls_nothing_is_sent_in_clear() -> None:
    received, connections = bytearray(), list[asyncio.BaseTransport]()

    class Recorder(asyncio.Protocol):
        connection_made = staticmethod(connections.append)  # type: ignore[assignment]

        def data_received(self, data: bytes) -> None:
            received.extend(data)

    async with await asyncio.get_running_loop().create_server(Recorder, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        outlet = rocketmq_outlet(f"{host}:{port}", {"username": "access", "password": "secret"}, 4_000, "rocketmqs")
        reply = await outlet.send(out_message(1, payload=b"payload"))
        await outlet.close()
        for connection in connections:
            connection.close()
    assert reply.result is not Result.ACCEPTED
    assert received.startswith(b"\x16\x03")  # the handshake of TLS
    for clear in (b"access", b"secret", b"authorization", b"payload", b"PRI * HTTP/2"):
        assert clear not in received


async def test_the_client_prints_nothing(proxy: FakeProxy, caplog: pytest.LogCaptureFixture) -> None:
    proxy.answer = lambda context: int(Code.INTERNAL_SERVER_ERROR)
    await reply_of(outlet_of(proxy))
    assert [record for record in caplog.records if not record.name.startswith("grpc._server")] == []
    with caplog.at_level(logging.ERROR, "concurrent.futures"):  # others are still heard
        future: Future[None] = Future()
        future.add_done_callback(lambda _: 1 / 0)
        future.set_result(None)
    assert [record.name for record in caplog.records][-1] == "concurrent.futures"


async def test_it_is_closed_while_an_old_connection_waits(proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_RENEW_S", 0.1)
    outlet = outlet_of(proxy)
    assert (await outlet.send(out_message(0))).result is Result.ACCEPTED
    slow = threading.Event()

    def answer(context: Any) -> int:
        slow.wait(10)
        return int(Code.OK)

    proxy.answer = answer
    waiting = asyncio.create_task(outlet.send(out_message(1)))
    await asyncio.sleep(0.2)
    proxy.answer = lambda context: context.abort(grpc.StatusCode.UNAVAILABLE, "why")
    assert (await outlet.send(out_message(2))).result is Result.AWAY
    await asyncio.sleep(0.2)
    proxy.answer = lambda context: int(Code.OK)
    assert (await outlet.send(out_message(3))).result is Result.ACCEPTED
    assert not waiting.done()
    await outlet.close()
    assert (await waiting).result is Result.AWAY
    slow.set()
