"""Frames on a real server: the answers of HTTP on one connection, in any order, with the same bounds for everybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest

from duemq.client import AsyncClient
from duemq.client.http.async_http import AsyncHttp
from duemq.client.http.frames.frame_transport import FrameTransport
from duemq.model.frames.frame import (
    ANSWER,
    CANCEL,
    CREDIT,
    DATA,
    FIRST_CREDIT,
    GOING_AWAY,
    LAST,
    MAX_PAYLOAD,
    MAX_STREAMS,
    MORE,
    PATH,
    PING,
    PONG,
    PROTOCOL,
    REQUEST,
    Frame,
    FrameAnswer,
    FrameReader,
    answer_of,
    pack,
    pack_request,
)
from duemq.web.connection.connections import ConnectionLimits
from tests.support.http.raw_site import Site, site, until
from tests.support.patience import WITHIN_S

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("way")]

UPGRADE = b"GET %b HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: %b\r\n\r\n" % (PATH, PROTOCOL)
QUICK = ConnectionLimits(head_bytes=8 << 10, head_s=0.4, body_s=0.4, write_s=0.4, keep_alive_s=0.8)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that servers run on."""
    return "asyncio", {"use_uvloop": True}


class Raw:
    """A client that writes and reads single frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._cutter, self._frames = FrameReader(), list[Frame]()

    def ask(self, stream: int, method: str, url: str, body: Any = None, *fields: tuple[bytes, bytes]) -> None:
        text = b"" if body is None else orjson.dumps(body)
        self.writer.write(pack(REQUEST, stream, pack_request(method.encode(), url.encode(), fields, text)))

    def send(self, kind: int, stream: int, payload: bytes = b"") -> None:
        self.writer.write(pack(kind, stream, payload))

    async def next(self) -> Frame | None:
        """The next frame; None after the end of the connection."""
        while not self._frames:
            data = await self.reader.read(1 << 16)
            if not data:
                return None
            self._frames += self._cutter.feed(data)
        return self._frames.pop(0)

    async def answer(self) -> tuple[int, FrameAnswer]:
        frame = await self.next()
        assert frame is not None and frame.kind == ANSWER, frame
        return frame.stream, answer_of(frame.payload)


@asynccontextmanager
async def raw(at: Site) -> AsyncIterator[Raw]:
    reader, writer = await at.connect(UPGRADE)
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head
        yield Raw(reader, writer)
    finally:
        writer.close()


def message(text: str = "x") -> dict[str, Any]:
    return {"topic": "t", "payload": text, "deliver_after": "1s"}


async def test_answers_come_in_any_order() -> None:
    async with site() as at, asyncio.timeout(WITHIN_S), raw(at) as client:
        at.gateway.open.clear()
        client.ask(7, "POST", "/v1/messages", message())
        await at.gateway.asked.wait()
        client.ask(9, "GET", "/v1/limits")
        stream, answer = await client.answer()
        assert (stream, answer.status, answer.what) == (9, 200, LAST)
        at.gateway.open.set()
        stream, answer = await client.answer()
        assert (stream, answer.status) == (7, 201)
        assert orjson.loads(answer.body)["topic"] == "t"


REQUESTS = [
    ("POST", "/v1/messages", message(), {}),
    ("POST", "/v1/messages", message() | {"payload": 5}, {}),
    ("POST", "/v1/messages", None, {}),
    ("POST", "/v1/messages", message(), {"Content-Type": "text/plain"}),
    ("POST", "/v1/messages:batch", {"messages": [message(), {}]}, {}),
    ("PUT", "/v1/messages/a%20b", message(), {"If-None-Match": "*"}),
    ("PUT", "/v1/messages/a", message(), {"If-Match": "*"}),
    ("GET", "/v1/limits?x=1", None, {}),
    ("GET", "/v1/limits", {}, {}),
    ("GET", "/v1/topics/t/records", None, {}),
    ("GET", "/v1/nothing", None, {}),
    ("DELETE", "/v1/limits", None, {}),
    ("HEAD", "/v1/limits", None, {}),
]


async def test_a_request_by_frames_is_answered_as_by_http() -> None:
    varying = {"x-request-id", "content-length", "date"}

    def shape(answer: httpx.Response) -> Any:
        body = answer.json() if answer.content else None
        if isinstance(body, dict):
            body = {name: value for name, value in body.items() if name not in ("id", "results", "now_ms")}
        fields = sorted((name, value) for name, value in answer.headers.items() if name not in varying)
        return answer.status_code, fields, body

    async with (
        site() as at, asyncio.timeout(WITHIN_S), at.http() as http,
        AsyncHttp(frames=True, verify=at.trusting or False, trust_env=False) as framed,
    ):  # fmt: skip
        for method, target, body, headers in REQUESTS:
            content = None if body is None else orjson.dumps(body)
            extra = headers if content is None else {"Content-Type": "application/json"} | headers
            _, by_http, by_frames = [
                await client.request(method, at.url + target, content=content, headers=extra)
                for client in (http, http, framed)  # the first one may create what the others find
            ]
            assert shape(by_http) == shape(by_frames), (method, target)


async def test_the_sdk_uses_frames_and_reads_a_stream() -> None:
    async with site() as at, asyncio.timeout(WITHIN_S):
        async with FrameTransport(at.trusting or False) as frames, AsyncClient(at.url, transport=frames) as client:
            await client.send("t", "x", deliver_after="1s")
            assert frames.is_open
            await at.fill(3)
            records = client.tail("t")
            got = [await anext(records) for _ in range(48)]
            assert [one.offset for one in got] == list(range(48))
            await records.aclose()
            await until(lambda: at.app.admission.requests == 0)
            assert at.app.admission.bytes == 0


async def test_a_body_waits_for_credit_and_holds_up_no_other_answer() -> None:
    async with site() as at, asyncio.timeout(WITHIN_S), raw(at) as client:
        await at.fill(4)
        client.ask(1, "GET", "/v1/topics/t/records?max=100")
        got = 0
        while got < FIRST_CREDIT:
            frame = await client.next()
            assert frame is not None and frame.stream == 1
            got += len(answer_of(frame.payload).body if frame.kind == ANSWER else frame.payload[1:])
        assert got == FIRST_CREDIT
        client.ask(2, "GET", "/v1/limits")
        assert (await client.answer())[0] == 2
        client.send(CREDIT, 1, (16 << 20).to_bytes(4))
        what = MORE
        while what == MORE:
            frame = await client.next()
            assert frame is not None and (frame.kind, frame.stream) == (DATA, 1)
            what, got = frame.payload[0], got + len(frame.payload) - 1
        assert what == LAST and got > 4 << 20
        await until(lambda: at.app.admission.bytes == 0)


async def test_a_cancelled_stream_ends_and_its_number_is_free_again() -> None:
    async with site() as at, asyncio.timeout(WITHIN_S), raw(at) as client:
        await at.fill(0)
        lines = (b"accept", b"application/x-ndjson")
        client.ask(1, "GET", "/v1/topics/t/records", None, lines)
        await until(lambda: at.app.admission.requests == 1)
        client.send(CANCEL, 1)
        await until(lambda: at.app.admission.requests == 0)
        client.ask(1, "GET", "/v1/limits")
        assert (await client.answer())[1].status == 200


async def test_a_connection_has_few_requests_in_flight() -> None:
    async with site() as at, asyncio.timeout(WITHIN_S), raw(at) as client:
        at.gateway.open.clear()
        for stream in range(MAX_STREAMS + 1):
            client.ask(stream, "POST", "/v1/messages", message())
        stream, answer = await client.answer()
        assert (stream, answer.status, orjson.loads(answer.body)["code"]) == (MAX_STREAMS, 503, "unavailable")
        at.gateway.open.set()
        assert [(await client.answer())[1].status for _ in range(MAX_STREAMS)] == [201] * MAX_STREAMS


@pytest.mark.parametrize(
    "sends",
    [
        pytest.param((MAX_PAYLOAD + 6).to_bytes(4) + bytes(5), id="too large"),
        pytest.param(pack(99, 1), id="no such kind"),
        pytest.param(pack(REQUEST, 1, b"GET"), id="no request"),
        pytest.param(pack(REQUEST, 1, b"GET /%ff\n\n"), id="no path"),
        pytest.param(pack(CREDIT, 1, b"1"), id="no credit"),
    ],
)
async def test_a_malformed_frame_ends_its_connection_with_the_reason(sends: bytes) -> None:
    async with site() as at, asyncio.timeout(WITHIN_S), raw(at) as client:
        client.writer.write(sends)
        frame = await client.next()
        assert frame is not None and frame.kind == GOING_AWAY and frame.payload
        assert await client.next() is None
        await at.is_well()


@pytest.mark.parametrize("sends", [b"", pack(REQUEST, 1, b"x" * 100)[:50]])
async def test_a_silent_client_or_half_a_frame_is_cut_off(sends: bytes) -> None:
    async with site(QUICK) as at, asyncio.timeout(WITHIN_S), raw(at) as client:
        client.writer.write(sends)
        assert await client.next() is None
        await at.is_well()


async def test_a_client_that_sends_pings_is_not_cut_off() -> None:
    async with site(QUICK) as at, asyncio.timeout(WITHIN_S), raw(at) as client:
        for number in range(10):
            client.send(PING, number, b"ping")
            assert await client.next() == (PONG, number, b"ping")
            await asyncio.sleep(0.2)


async def test_a_client_that_reads_nothing_is_cut_off_and_costs_little() -> None:
    async with site(QUICK._replace(keep_alive_s=60)) as at, asyncio.timeout(WITHIN_S):
        await at.fill(4)
        reads = b"".join(
            pack(REQUEST, stream, pack_request(b"GET", b"/v1/topics/t/records?max=10", (), b""))
            + pack(CREDIT, stream, (64 << 20).to_bytes(4))
            for stream in range(200)
        )
        client = await asyncio.to_thread(at.slow_client, UPGRADE + b"")
        await asyncio.sleep(0.1)
        await asyncio.to_thread(client.sendall, reads)
        await until(lambda: at.app.admission.requests > 0)
        await until(lambda: at.app.admission.requests == 0)
        assert at.app.admission.bytes == 0
        client.close()
        await at.is_well()


async def test_a_server_that_stops_says_so_and_answers_what_is_in_flight() -> None:
    async with site() as at, asyncio.timeout(WITHIN_S), raw(at) as client:
        at.gateway.open.clear()
        client.ask(1, "POST", "/v1/messages", message())
        await at.gateway.asked.wait()
        at.stop.ask()
        frame = await client.next()
        assert frame is not None and frame.kind == GOING_AWAY
        at.gateway.open.set()
        assert (await client.answer())[1].status == 201
        assert await client.next() is None


async def test_a_path_without_the_upgrade_names_it() -> None:
    async with site() as at, asyncio.timeout(WITHIN_S), at.http() as http:
        answer = await http.get(f"{at.url}/v1/frames")
        assert (answer.status_code, answer.headers["upgrade"]) == (426, PROTOCOL.decode())
        other = await http.get(f"{at.url}/v1/limits", headers={"Connection": "Upgrade", "Upgrade": "h2c"})
        assert other.status_code == 200
