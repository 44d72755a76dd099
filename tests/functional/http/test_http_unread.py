"""What comes over the wire and is not as it should be: answered in order and in words, or cut off, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson
import pytest

from tests.support.http.raw_site import PATIENT, SlowGateway, half_close, site, until
from tests.support.patience import WITHIN_S

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("way")]

GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
LAST_GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
POLL = b"GET /v1/topics/t/records?wait=60s HTTP/1.1\r\nhost: x\r\n\r\n"
BODY = b'{"topic": "t"}'
TYPE = b"content-type: application/json\r\n"
POST = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n" + TYPE + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-type: image/png\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that servers run on."""
    return "asyncio", {"use_uvloop": True}


def parts(answer: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of one answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines)
    assert int(fields["content-length"]) == len(body)
    return int(status.split()[1]), fields, orjson.loads(body)


async def one_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    return parts(head + await reader.readexactly(int(length.split(b":")[1])))


@pytest.mark.parametrize(
    "sends",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
        pytest.param(b"GET /healthz\r\n\r\n", id="HTTP/0.9"),
        pytest.param(b"GET /healthz HTTP/2.0\r\nhost: x\r\n\r\n", id="HTTP/2.0"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n\r\n", id="no Host"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nhost: x\r\nHost: y\r\n\r\n", id="two Hosts"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nhost : x\r\n\r\n", id="blank in a name"),
        pytest.param(b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n", id="path not ASCII"),
        pytest.param(POST.replace(b"14", b"14\r\ncontent-length: 15"), id="two lengths"),
        pytest.param(POST.replace(b"content-length: 14", b"content-length: -1"), id="negative length"),
        pytest.param(CHUNKED + b"zz\r\n", id="no chunk"),
        pytest.param(CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n", id="chunks of HTTP/1.0"),
        pytest.param(CHUNKED + b"1\r\nabc\r\n", id="chunk too long"),
        pytest.param(CHUNKED.replace(b"x\r\n", b"x\r\nexpect: 100-continue\r\n") + b"zz\r\n", id="before the 100"),
    ],
)
async def test_what_is_no_request_is_answered_with_a_problem(sends: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with site() as at, asyncio.timeout(WITHIN_S):
        status, fields, problem = parts(await at.rest_of(sends))
        assert (status, problem["code"], problem["status"]) == (400, "malformed_request", 400)
        assert fields["content-type"] == "application/problem+json" and fields["connection"] == "close"
        assert fields["x-request-id"]
        assert at.gateway.sent == []
        await until(lambda: at.app.admission.requests == 0)
    assert caplog.records == []


async def test_what_is_too_large_for_a_head_is_answered_with_a_problem() -> None:
    fields = b"x-a: " + b"y" * 1000 + b"\r\n"
    async with site() as at, asyncio.timeout(WITHIN_S):
        for start in (b"GET / HTTP/1.1\r\nhost: x\r\n", CHUNKED + b"1\r\nx\r\n0\r\n", CHUNKED + b"1;a="):
            reader, writer = await at.connect(start)
            answer = asyncio.create_task(one_answer(reader))
            while not answer.done() and not writer.is_closing():
                writer.write(b"y" if start.endswith(b"=") else fields)
                await asyncio.sleep(0)
            status, _, problem = await answer
            assert (status, problem["code"]) == (431, "head_too_large")
            writer.close()


async def test_garbage_behind_requests_takes_no_answer_from_them() -> None:
    async with site() as at, asyncio.timeout(WITHIN_S):
        for garbage in (b"\x00garbage\r\n\r\n", CHUNKED + b"zz\r\n"):
            at.gateway.open.clear()
            reader, writer = await at.connect(POST + POST + garbage)
            await at.gateway.asked.wait()
            at.gateway.open.set()
            for _ in range(2):
                status, fields, receipt = await one_answer(reader)
                assert (status, receipt["status"]) == (201, "scheduled")
            assert fields["connection"] == "close"
            assert await reader.read() == b""
            writer.close()
        assert len(at.gateway.sent) == 4


async def test_requests_sent_ahead_are_bounded_and_those_before_are_answered() -> None:
    async with site() as at, asyncio.timeout(WITHIN_S):
        at.gateway.open.clear()
        reader, writer = await at.connect(POST + GET * 1000)
        await at.gateway.asked.wait()
        at.gateway.open.set()
        answers = await reader.read()
        assert (answers.count(b"HTTP/1.1 201"), answers.count(b"HTTP/1.1 200")) == (1, 100)
        assert answers.count(b"connection: close") == 1
        writer.close()


@pytest.mark.parametrize("pieces", [1, 2])
async def test_fields_behind_a_body_are_no_headers(pieces: int) -> None:
    trailers = b"duemq-topic: trailed\r\nduemq-deliver-after: 1h\r\n\r\n"
    async with site() as at, asyncio.timeout(WITHIN_S):
        request = CHUNKED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + b"5\r\nhello\r\n0\r\n"
        if pieces == 1:
            answer = parts(await at.rest_of(request + trailers))
        else:
            reader, writer = await at.connect(request)
            await until(lambda: at.app.admission.requests == 1)
            writer.write(trailers)
            answer = await one_answer(reader)
            writer.close()
        assert (answer[0], answer[2]["code"]) == (400, "missing_topic")
        assert at.gateway.sent == []


async def test_who_has_closed_his_half_gets_his_answers() -> None:
    async with site() as at, asyncio.timeout(WITHIN_S):
        at.gateway.open.clear()
        reader, writer = await at.connect(POST + POST)
        half_close(writer)
        await at.gateway.asked.wait()
        at.gateway.open.set()
        assert [(await one_answer(reader))[0] for _ in range(2)] == [201, 201]
        assert await reader.read() == b""
        writer.close()
        assert parts(await at.rest_of(GET, half_closed=True))[0] == 200
        assert await at.rest_of(POST[:-1], half_closed=True) == b""
        assert len(at.gateway.sent) == 2


async def test_a_reader_that_has_gone_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async with site() as at, asyncio.timeout(WITHIN_S):
        for accept in (b"", b"accept: text/event-stream\r\n"):
            for ahead in (b"", GET):
                await at.rest_of(POLL.replace(b"host", accept + b"host") + ahead, half_closed=True)
                await until(lambda: at.app.admission.requests == 0)
    assert caplog.records == []


async def test_the_time_for_a_head_does_not_count_between_requests() -> None:
    async with site(PATIENT._replace(head_s=0.4)) as at, asyncio.timeout(WITHIN_S):
        reader, writer = await at.connect(GET)
        assert (await one_answer(reader))[0] == 200
        assert await at.rest_of(b"") == b""  # it came later, and was closed for sending nothing
        for _ in range(2):
            writer.write(GET)
            assert (await one_answer(reader))[0] == 200
        writer.write(GET[:-4])
        assert await reader.read() == b""
        writer.close()


async def test_the_connection_that_is_idle_for_longest_makes_room() -> None:
    async with site(PATIENT._replace(connections=2)) as at, asyncio.timeout(WITHIN_S):
        first, second = [await at.connect(GET) for _ in range(2)]
        for reader, _ in (first, second):
            assert (await one_answer(reader))[0] == 200
        first[1].write(GET)
        assert (await one_answer(first[0]))[0] == 200
        third = await at.connect(GET)
        assert (await one_answer(third[0]))[0] == 200
        assert await second[0].read() == b""
        for reader, writer in (first, third):
            writer.write(GET)
            assert (await one_answer(reader))[0] == 200
        for _, writer in (first, second, third):
            writer.close()


async def test_who_waits_for_the_outcome_of_a_change_is_not_closed() -> None:
    async with site(PATIENT._replace(connections=2)) as at, asyncio.timeout(WITHIN_S):
        at.gateway.open.clear()
        both = [await at.connect(POST) for _ in range(2)]
        await until(lambda: at.app.admission.requests == 2)
        assert await at.rest_of(b"") == b""
        at.gateway.open.set()
        for reader, writer in both:
            assert (await one_answer(reader))[0] == 201
            writer.close()


async def test_a_server_that_was_asked_to_stop_serves_on_and_says_so() -> None:
    async with site(PATIENT._replace(drain_s=900)) as at, asyncio.timeout(WITHIN_S):
        at.gateway.open.clear()
        kept, asking = await at.connect(GET), await at.connect(POST)
        assert "connection" not in (await one_answer(kept[0]))[1]
        await at.gateway.asked.wait()
        at.stop.ask()
        await at.stop.request.wait()
        status, fields, problem = parts(await at.rest_of(GET.replace(b"healthz", b"readyz")))
        assert (status, problem["code"], fields["connection"]) == (503, "closing", "close")
        kept[1].write(POST)
        at.gateway.open.set()
        for reader, writer in (kept, asking):
            status, fields, _ = await one_answer(reader)
            assert (status, fields["connection"]) == (201, "close")
            assert await reader.read() == b""
            writer.close()
        poll = await at.connect(POLL)
        await until(lambda: at.app.admission.requests == 1)
        assert not at.stop.is_set()
        at.stop.ask()  # not to wait any longer
        status, fields, page = await one_answer(poll[0])
        assert (status, fields["connection"], page["records"]) == (200, "close", [])
        poll[1].close()


async def test_nobody_fills_the_log(caplog: pytest.LogCaptureFixture) -> None:
    upgrade = LAST_GET.replace(b"connection: close", b"connection: upgrade, close\r\nupgrade: websocket")
    with caplog.at_level(logging.INFO):
        async with site() as at, asyncio.timeout(WITHIN_S):
            caplog.clear()
            for sends in (
                b"\x00\r\n\r\n",
                upgrade,
                b"GET /v1/%0Aforged HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
            ):
                assert (await at.rest_of(sends)).startswith(b"HTTP/1.1 ")
            assert [record for record in caplog.records if "http" in record.name or "uvicorn" in record.name] == []


async def test_a_path_cannot_forge_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with site() as at, asyncio.timeout(WITHIN_S):
        gateway: SlowGateway = at.gateway
        gateway.unreadable = RuntimeError("a bug")
        with caplog.at_level(logging.DEBUG, "duemq.http"):
            answer = await at.rest_of(LAST_GET.replace(b"healthz", b"v1/messages/a%0Aforged"))
            assert parts(answer)[0] in (400, 404, 500)
        assert any("forged" in record.getMessage() for record in caplog.records)
        assert not any("\n" in record.getMessage() for record in caplog.records)


async def test_text_in_a_request_line_is_utf_8_or_refused() -> None:
    async with site() as at, asyncio.timeout(WITHIN_S):
        at.gateway.found = None
        for path, status in (
            (b"/v1/messages/a%2Fb", 404), (b"/v1/messages/gr%C3%B6%C3%9Fe", 404), (b"/v1/messages/%FF", 400),
            (b"/v1/messages/gr%F6sse", 400), ("/v1/messages?key=größe".encode(), 400),
            (b"/v1/messages?key=gr%F6", 400), (b"/v1/messages?key=gr%C3%B6", 200),
        ):  # fmt: skip
            answer = parts(await at.rest_of(LAST_GET.replace(b"/healthz", path)))
            assert answer[0] == status, (path, answer)
        (query,) = at.gateway.queries
        assert query.key == "grö"


async def test_heads_without_end_are_bounded_all_together() -> None:
    part = b"GET / HTTP/1.1\r\nhost: x\r\nx-a: " + b"y" * 4000
    async with site(PATIENT._replace(unsent_bytes=10_000)) as at, asyncio.timeout(WITHIN_S):
        opened = [await at.connect(part) for _ in range(3)]
        done, _ = await asyncio.wait(
            [asyncio.create_task(reader.read()) for reader, _ in opened], return_when=asyncio.FIRST_COMPLETED
        )
        assert [parts(task.result())[2]["code"] for task in done] == ["unavailable"]  # the others may go on
        for _, writer in opened:
            writer.write(b"\r\n\r\n")
        await at.is_well()
        for _, writer in opened:
            writer.close()
        await until(lambda: at.app.admission.requests == 0)
        assert (await at.rest_of(part + b"\r\nconnection: close\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
