"""A real HTTP server whose clients do not do their part: each is cut off, and holds up nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from duemq.model.messages.record import StoredRecord
from duemq.proxy.response.render import records_bytes
from duemq.web.connection.connections import ConnectionLimits
from duemq.web.settings import HttpSettings
from tests.support.http.raw_site import PATIENT, site, until
from tests.support.patience import WITHIN_S

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("way")]

MIB = 1 << 20
QUICK = ConnectionLimits(head_bytes=8 << 10, head_s=0.4, body_s=0.4, write_s=0.4)
HEAD = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nduemq-topic: t\r\ncontent-length: 1000\r\n\r\n"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that servers run on."""
    return "asyncio", {"use_uvloop": True}


@pytest.mark.parametrize(
    "sends",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1\r\nhost: x\r\nx-a", id="half a head"),
        pytest.param(HEAD + b"x" * 999, id="a body without its end"),
    ],
)
async def test_a_client_that_does_not_send_its_request_is_cut_off(sends: bytes) -> None:
    async with site(QUICK) as at, asyncio.timeout(WITHIN_S):
        assert await at.rest_of(sends) == b""
        await at.is_well()
        await until(lambda: at.app.admission.bytes == at.app.admission.requests == 0)


async def test_a_head_without_end_is_refused() -> None:
    async with site(PATIENT) as at, asyncio.timeout(WITHIN_S):
        reader, writer = await at.connect(b"GET / HTTP/1.1\r\nhost: x\r\n")
        answer = asyncio.create_task(reader.readline())
        while not answer.done() and not writer.is_closing():
            writer.write(b"x-a: y\r\n")
            await asyncio.sleep(0)
        assert b"431" in await answer
        writer.close()
        await at.is_well()


async def test_a_stream_that_nobody_reads_holds_little_and_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = 0

    def counted(partition: int, stored: list[StoredRecord]) -> list[bytes]:
        nonlocal rendered
        rendered += sum(len(one.frame) for one in stored)
        return records_bytes(partition, stored)

    monkeypatch.setattr("duemq.proxy.response.record_stream.records_bytes", counted)
    async with site(QUICK._replace(write_s=2)) as at, asyncio.timeout(300):
        await at.fill(16)
        request = b"GET /v1/topics/t/records HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n"
        clients = await asyncio.gather(*(asyncio.to_thread(at.slow_client, request) for _ in range(5)))
        admission = at.app.admission
        await until(lambda: admission.requests == len(clients))
        await until(lambda: admission.requests == 0)
        assert 0 < rendered <= len(clients) * (512 << 10)
        assert admission.bytes == 0
        for client in clients:
            client.close()
        await at.is_well()


async def test_long_pages_side_by_side_need_little_memory_and_are_complete() -> None:
    async with site(PATIENT, HttpSettings(max_inflight_bytes=MIB)) as at, asyncio.timeout(WITHIN_S):
        await at.fill(4)

        async def read_all() -> int:
            count, cursor = 0, ""
            async with at.http(timeout=300) as http:
                while count < 64:
                    after = {"after": cursor} if cursor else {}
                    answer = await http.get(f"{at.url}/v1/topics/t/records", params={"max": "10000"} | after)
                    page = answer.json()
                    assert sum(len(record["payload"]) for record in page["records"]) > MIB
                    count, cursor = count + len(page["records"]), page["cursor"]
            return count

        readers: list[Awaitable[int]] = [read_all() for _ in range(4)]
        assert await asyncio.gather(*readers) == [64] * 4
