"""Endpoints that answer badly, or not at all: what becomes of the message, and that the outlet goes on."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from duemq.model.destinations.destination import Credentials, read_credentials
from duemq.relay.base import MAX_DETAIL, Reply, Result
from duemq.relay.http.outlet import HttpOutlet
from tests.support.outlets.http_site import (
    Answer,
    Endpoint,
    full_host,
    http_destination,
    raw,
    repeated,
    reset,
    silent,
    status,
)
from tests.support.outlets.site import LOOPBACK, out_message
from tests.support.tls.certificates import Authority

pytestmark = pytest.mark.anyio

OK_HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


@asynccontextmanager
async def outlet_to(url: str, credentials: Credentials | None = None, **fields: object) -> AsyncIterator[HttpOutlet]:
    outlet = HttpOutlet(http_destination(url, **fields), credentials or Credentials(), LOOPBACK)
    try:
        yield outlet
    finally:
        await outlet.close()


async def sent(endpoint: Endpoint, answer: Answer, **fields: object) -> Reply:
    """The reply to one message; afterwards the outlet still hands messages on."""
    endpoint.answer = answer
    async with outlet_to(endpoint.url, None, **fields) as outlet:
        async with asyncio.timeout(20):
            reply = await outlet.send(out_message(1))
        endpoint.answer = status(200, b"ok")
        assert (await outlet.send(out_message(2))).result is Result.ACCEPTED
    return reply


async def no_connection_is_left(endpoint: Endpoint) -> None:
    async with asyncio.timeout(10):
        while endpoint.open:  # noqa: ASYNC110  # a number that the endpoint counts
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("code", [200, 201, 202, 204, 299])
async def test_2xx_is_accepted(endpoint: Endpoint, code: int) -> None:
    reply = await sent(endpoint, status(code, b"" if code == 204 else b"thanks"))
    assert reply == Reply(Result.ACCEPTED, str(code), "" if code == 204 else "thanks")


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(endpoint: Endpoint, code: int) -> None:
    elsewhere = f"http://127.0.0.1:{endpoint.port}/elsewhere"
    reply = await sent(endpoint, status(code, b"see there", f"Location: {elsewhere}"))
    assert reply == Reply(Result.FAILED, str(code), elsewhere)
    assert {request.target for request in endpoint.requests} == {"/hook"}


async def test_a_location_that_is_no_text_is_left_out(endpoint: Endpoint) -> None:
    assert await sent(endpoint, status(302, b"", "Location: http://\xff/")) == Reply(Result.FAILED, "302", "")


async def test_410_gone_disables_the_destination(endpoint: Endpoint) -> None:
    assert await sent(endpoint, status(410, b"no more"), options={"on_4xx": "retry"}) == Reply(
        Result.GONE, "410", "no more"
    )


@pytest.mark.parametrize("code", [429, 503])
async def test_overload_is_told_with_its_pause(endpoint: Endpoint, code: int) -> None:
    options = {"on_4xx": "dead_letter", "on_5xx": "dead_letter"}
    reply = await sent(endpoint, status(code, b"slow down", "Retry-After: 120"), options=options)
    assert reply == Reply(Result.FAILED, str(code), "slow down", 120_000, overloaded=True)


async def test_a_pause_may_be_a_date_and_is_bounded_to_a_day(endpoint: Endpoint) -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    reply = await sent(endpoint, status(503, b"", f"Retry-After: {at}"))
    assert reply.retry_after_ms is not None and 95_000 <= reply.retry_after_ms <= 101_000
    for value, pause in (("9999999999", 86_400_000), ("-5", None), ("soon", None), ("1" * 5_000, None)):
        assert (await sent(endpoint, status(503, b"", f"Retry-After: {value}"))).retry_after_ms == pause, value


@pytest.mark.parametrize("code", [400, 401, 403, 404, 408, 413, 422, 425, 451, 499, 500, 501, 502, 504, 599])
async def test_errors_are_tried_again_unless_the_options_say_dead_letter(endpoint: Endpoint, code: int) -> None:
    assert await sent(endpoint, status(code, b"no")) == Reply(Result.FAILED, str(code), "no")
    options = {"on_4xx": "dead_letter", "on_5xx": "dead_letter"}
    reply = await sent(endpoint, status(code, b"no"), options=options)
    assert reply.result is (Result.FAILED if code in (408, 425) else Result.REJECTED)


async def test_no_answer_is_a_time_out(endpoint: Endpoint) -> None:
    reply = await sent(endpoint, silent, timeout=300)
    assert reply == Reply(Result.FAILED, "timeout", reply.detail, overloaded=True)
    await no_connection_is_left(endpoint)


async def test_a_head_that_never_ends_is_a_time_out(endpoint: Endpoint) -> None:
    reply = await sent(endpoint, repeated(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n", 0.05), timeout=300)
    assert (reply.result, reply.status) == (Result.FAILED, "timeout")


async def test_an_endless_body_is_read_no_further_than_its_beginning(endpoint: Endpoint) -> None:
    reply = await sent(endpoint, repeated(OK_HEAD, b"x" * 65_536))
    assert reply == Reply(Result.ACCEPTED, "200", "x" * MAX_DETAIL)
    await no_connection_is_left(endpoint)


async def test_a_body_that_drips_holds_its_place_for_a_second(endpoint: Endpoint) -> None:
    async with asyncio.timeout(8):
        reply = await sent(endpoint, repeated(OK_HEAD, b"x", 0.05), timeout=60_000)
    assert (reply.result, reply.status) == (Result.ACCEPTED, "200")
    await no_connection_is_left(endpoint)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("answer", [
    status(200, b"y" * 10_000), raw(CHUNKED + b"1f4\r\n" + b"y" * 500 + b"\r\n0\r\n\r\n", close=False),
], ids=["long", "chunked"])  # fmt: skip
async def test_an_answer_that_ends_leaves_the_connection_open(endpoint: Endpoint, answer: Answer) -> None:
    endpoint.answer = answer
    async with outlet_to(endpoint.url) as outlet:
        for number in range(5):
            assert await outlet.send(out_message(number)) == Reply(Result.ACCEPTED, "200", "y" * MAX_DETAIL)
    assert endpoint.connections == 1


async def test_a_body_that_never_begins_is_a_time_out(endpoint: Endpoint) -> None:
    reply = await sent(endpoint, raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", close=False), timeout=300)
    assert (reply.result, reply.status) == (Result.FAILED, "timeout")


@pytest.mark.parametrize("data", [
    b"\0\xff rubbish\r\n\r\n", b"HTTP/9.9 200 OK\r\n\r\n", b"HTTP/1.1 2x0 OK\r\n\r\n", b"HTTP/1.1 99 \r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", b"SSH-2.0-OpenSSH_9.6\r\n",
    b"HTTP/1.1 200 OK\r\nno header\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
])  # fmt: skip
async def test_an_answer_that_is_no_http_is_malformed(endpoint: Endpoint, data: bytes) -> None:
    reply = await sent(endpoint, raw(data))
    assert (reply.result, reply.status) == (Result.FAILED, "malformed"), reply


async def test_a_head_without_end_is_malformed(endpoint: Endpoint) -> None:
    reply = await sent(endpoint, repeated(b"HTTP/1.1 200 OK\r\n", b"a: " + b"b" * 8_000 + b"\r\n"))
    assert (reply.result, reply.status) == (Result.FAILED, "malformed")


@pytest.mark.parametrize("answer", [raw(b""), raw(b"HTTP/1.1 200 O"), reset], ids=["closed", "cut", "reset"])
async def test_a_connection_that_ends_is_no_answer(endpoint: Endpoint, answer: Answer) -> None:
    reply = await sent(endpoint, answer)
    assert (reply.result, reply.status) == (Result.FAILED, "disconnected"), reply


async def test_a_body_that_is_cut_counts_by_its_status(endpoint: Endpoint) -> None:
    reply = await sent(endpoint, raw(b"HTTP/1.1 500 No\r\nContent-Length: 100\r\n\r\nbroken"))
    assert (reply.result, reply.status) == (Result.FAILED, "500")


async def test_where_nobody_listens_the_destination_waits(endpoint: Endpoint) -> None:
    await endpoint.stop()
    async with outlet_to(endpoint.url) as outlet:
        reply = await outlet.send(out_message())
        assert (reply.result, reply.status, reply.overloaded) == (Result.AWAY, "refused", False)
        await endpoint.start()
        assert (await outlet.send(out_message())).result is Result.ACCEPTED


async def test_a_host_that_takes_no_connection_is_away() -> None:
    with full_host("127.0.0.1") as port:
        async with outlet_to(f"http://127.0.0.1:{port}/", timeout=400) as outlet:
            reply = await outlet.send(out_message())
    assert (reply.result, reply.status, reply.overloaded) == (Result.AWAY, "timeout", False)


async def test_a_name_without_address_is_a_dns_error() -> None:
    async with outlet_to("http://nowhere.invalid/") as outlet:
        reply = await outlet.send(out_message())
    assert (reply.result, reply.status) == (Result.AWAY, "dns_error")


@pytest.mark.parametrize("code", [200, 400])
async def test_an_answer_does_not_give_credentials_away(endpoint: Endpoint, code: int) -> None:
    echo = b"Bearer sesame-street, x-key: open-door. " + b"x" * (MAX_DETAIL - 50) + b" sesame-street"
    endpoint.answer = status(code, echo)
    credentials = read_credentials({"token": "sesame-street", "headers": {"X-Key": "open-door"}})
    async with outlet_to(endpoint.url, credentials) as outlet:
        reply = await outlet.send(out_message())
    assert reply.detail.startswith("Bearer ***, x-key: ***. xxx") and reply.detail.endswith("x ***")
    assert endpoint.requests[0].one("authorization") == "Bearer sesame-street"
    assert endpoint.requests[0].one("x-key") == "open-door"
    basic = read_credentials({"username": "anna", "password": "karenina"})
    endpoint.answer = status(code, b"karenina Basic YW5uYTprYXJlbmluYQ==")
    async with outlet_to(endpoint.url, basic) as outlet:
        assert (await outlet.send(out_message())).detail == "*** Basic ***"


async def test_a_cancelled_message_leaves_no_connection_after_its_time_out(endpoint: Endpoint) -> None:
    endpoint.answer = silent
    async with outlet_to(endpoint.url, timeout=500) as outlet:
        sending = asyncio.create_task(outlet.send(out_message()))
        while not endpoint.requests:  # noqa: ASYNC110  # a list that the endpoint fills
            await asyncio.sleep(0.01)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await no_connection_is_left(endpoint)


async def test_a_closed_outlet_leaves_no_connection(endpoint: Endpoint) -> None:
    async with outlet_to(endpoint.url) as outlet:
        assert (await outlet.send(out_message())).result is Result.ACCEPTED
        assert endpoint.open == 1
    async with asyncio.timeout(2):  # less than an idle connection is kept
        await no_connection_is_left(endpoint)


async def test_the_environment_gives_no_proxy(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Endpoint()
    await proxy.start()
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy.url)
    async with outlet_to(endpoint.url) as outlet:
        assert (await outlet.send(out_message())).result is Result.ACCEPTED
    await proxy.stop()
    assert (len(endpoint.requests), proxy.connections) == (1, 0)


def text_of(path: str) -> str:
    return Path(path).read_text()


class TestTls:
    @pytest.fixture
    def authority(self, tmp_path: Path) -> Authority:
        return Authority.make(tmp_path)

    @staticmethod
    def context(authority: Authority, name: str, *hosts: str, valid: timedelta = timedelta(days=1)) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        files = authority.issue(name, *hosts, valid=valid)
        context.load_cert_chain(files.cert, files.key)
        return context

    async def test_an_own_authority_and_a_client_certificate(self, authority: Authority) -> None:
        context = self.context(authority, "server")
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.ca)
        files = authority.issue("client", "relay.example")
        endpoint = Endpoint(tls=context)
        await endpoint.start()
        pem = {"cert": text_of(files.cert), "key": text_of(files.key)}
        own = {"ca": authority.ca.read_text()}
        async with outlet_to(endpoint.url, read_credentials(own | pem)) as outlet:
            assert (await outlet.send(out_message())).result is Result.ACCEPTED
        async with outlet_to(endpoint.url, read_credentials(own)) as outlet:
            reply = await outlet.send(out_message())
            assert reply.result is Result.FAILED
            assert reply.status in ("tls_error", "disconnected", "malformed"), reply
        await endpoint.stop()
        assert len(endpoint.requests) == 1

    @pytest.mark.parametrize("wrong", ["unknown authority", "other name", "expired"])
    async def test_a_wrong_certificate_is_refused(self, authority: Authority, tmp_path: Path, wrong: str) -> None:
        hosts = ("hook.example",) if wrong == "other name" else ()
        valid = timedelta(days=-1) if wrong == "expired" else timedelta(days=1)
        endpoint = Endpoint(tls=self.context(authority, "server", *hosts, valid=valid))
        await endpoint.start()
        trusted = Authority.make(tmp_path / "other") if wrong == "unknown authority" else authority
        async with outlet_to(endpoint.url, read_credentials({"ca": trusted.ca.read_text()})) as outlet:
            reply = await outlet.send(out_message())
        await endpoint.stop()
        assert (reply.result, reply.status) == (Result.AWAY, "tls_error")
        assert "certificate" in reply.detail
        assert endpoint.requests == []

    @pytest.mark.parametrize("fields", [{"ca": "rubbish"}, {"cert": "rubbish", "key": "rubbish"}])
    async def test_credentials_that_are_no_pem_wait_for_the_operator(self, fields: dict[str, str]) -> None:
        async with outlet_to("https://127.0.0.1:1/", read_credentials(fields)) as outlet:
            reply = await outlet.send(out_message())
        assert (reply.result, reply.status) == (Result.AWAY, "bad_credentials")
        assert "rubbish" not in reply.detail
