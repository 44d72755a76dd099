"""A real server with TLS: who does not shake hands, who is not let in, and new certificates under load."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from duemq.client import AsyncClient, Client, Unreachable
from duemq.client.http.async_http import internal_http
from duemq.tls.contexts import client_context
from duemq.tls.files import TlsFiles
from tests.support.http.raw_site import PATIENT, Site, site, until
from tests.support.patience import WITHIN_S
from tests.support.tls.certificates import Authority

pytestmark = pytest.mark.anyio

CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that servers run on."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path)


@pytest.fixture
def files(authority: Authority) -> Iterator[TlsFiles]:
    yield authority.issue("server")


async def raw(at: Site, sends: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection without TLS."""
    reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
    writer.write(sends)
    return reader, writer


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def refuse(port: int) -> None:
    """What a client does that does not know the server's authority; asyncio's would not say why it leaves."""
    with socket.create_connection(("127.0.0.1", port)) as client, pytest.raises(ssl.SSLCertVerificationError):
        ssl.create_default_context().wrap_socket(client, server_hostname="127.0.0.1")


async def sync_refusal(url: str, ca: str) -> Unreachable:
    def ask() -> Unreachable:
        with Client(url, ca_file=ca) as client, pytest.raises(Unreachable) as refused:
            client.limits()
        return refused.value

    return await asyncio.to_thread(ask)


async def async_refusal(url: str, ca: str) -> Unreachable:
    async with AsyncClient(url, ca_file=ca) as client:
        with pytest.raises(Unreachable) as refused:
            await client.limits()
    return refused.value


def copy(source: str, target: str) -> None:
    Path(target).write_bytes(Path(source).read_bytes())


@pytest.mark.parametrize("sends", [b"", CLIENT_HELLO])
async def test_a_handshake_has_the_time_of_a_head(files: TlsFiles, sends: bytes) -> None:
    async with site(PATIENT._replace(head_s=0.4), files=files) as at, asyncio.timeout(WITHIN_S):
        reader, writer = await raw(at, sends)
        assert await rest_of(reader) == b""
        await at.is_well()
        writer.close()


async def test_connections_without_a_handshake_count_as_any_other(files: TlsFiles) -> None:
    async with site(PATIENT._replace(connections=5), files=files) as at, asyncio.timeout(WITHIN_S):
        silent = [await raw(at, CLIENT_HELLO) for _ in range(20)]
        ended = [asyncio.create_task(rest_of(reader)) for reader, _ in silent]
        await until(lambda: sum(task.done() for task in ended) >= 15)
        await at.is_well()
        for _, writer in silent:
            writer.close()
        await asyncio.gather(*ended)


async def test_a_server_stops_though_handshakes_are_under_way(files: TlsFiles) -> None:
    async with site(files=files) as at, asyncio.timeout(WITHIN_S):
        silent = [await raw(at, CLIENT_HELLO) for _ in range(3)]
        await at.is_well()
        at.stop.set()
        for reader, writer in silent:
            assert await rest_of(reader) == b""
            writer.close()


async def test_http_without_tls_is_answered_and_failures_are_counted(
    files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with site(PATIENT._replace(head_s=0.5), files=files) as at, asyncio.timeout(WITHIN_S):
            reader, writer = await raw(at, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = await rest_of(reader)
            assert answer.startswith(b"HTTP/1.1 400 ") and b"the URL begins with https://" in answer
            writer.close()
            for _ in range(50):
                reader, writer = await raw(at, b"\x00garbage\r\n\r\n" * 3)
                await rest_of(reader)
                writer.close()
            await asyncio.to_thread(refuse, at.port)
            await until(lambda: "unknown ca" in caplog.text)
    assert {record.levelname for record in caplog.records} == {"INFO"}
    told = [record.getMessage() for record in caplog.records if "handshake" in record.getMessage()]
    assert "1 connections were closed: no TLS handshake: http request" in told
    assert len(told) < 20, "by reason, not by connection"


async def test_who_shows_no_certificate_is_not_let_in(files: TlsFiles, tmp_path: Path) -> None:
    stranger = Authority.make(tmp_path / "b").issue("stranger")
    async with site(files=files, client_auth="required") as at, asyncio.timeout(WITHIN_S):
        async with at.http() as http:
            assert (await http.get(f"{at.url}/healthz")).status_code == 200
        for shown in (TlsFiles(files.ca), TlsFiles(files.ca, stranger.cert, stranger.key)):
            async with internal_http(client_context(shown)) as http:
                with pytest.raises(httpx.ReadError, match="alert"):
                    await http.get(f"{at.url}/healthz")
                with pytest.raises(httpx.UnsupportedProtocol, match="not reached by TLS"):
                    await http.get(f"{at.url}/healthz".replace("https", "http"))
        for maker in (sync_refusal, async_refusal):
            error = await maker(at.url, files.ca)
            assert "refuses the certificate of this client" in str(error) and not error.outcome_unknown
        assert at.app.admission.requests == 0


async def test_new_certificates_cost_no_request(authority: Authority, files: TlsFiles) -> None:
    """Under load, by connections that stay and by new ones; between them a pair of files that does not match."""
    client = client_context(TlsFiles(files.ca))
    serials, done, failures = set[object](), 0, list[str]()

    async with site(files=files) as at, asyncio.timeout(WITHIN_S):
        assert at.tls is not None
        stop = asyncio.Event()

        async def load(keeps: bool) -> None:
            nonlocal done
            while not stop.is_set():
                async with httpx.AsyncClient(verify=client) as http:
                    for _ in range(1000 if keeps else 1):
                        answer = await http.get(f"{at.url}/healthz")
                        stream = answer.extensions["network_stream"]
                        certificate = stream.get_extra_info("ssl_object").getpeercert()
                        serials.add(certificate["serialNumber"])
                        if answer.status_code != 200:
                            failures.append(answer.text)
                        done += 1
                        if stop.is_set():
                            return

        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(load(number % 2 == 0))
            for round_number in range(1, 6):
                before = done
                await until(lambda before=before: done >= before + 100)  # type: ignore[misc]
                copy(authority.issue("other").key, files.key)
                at.tls.refresh()
                before = done
                await until(lambda before=before: done >= before + 50)  # type: ignore[misc]
                authority.issue("server")
                at.tls.refresh()
                await until(lambda most=round_number: len(serials) > most)  # type: ignore[misc]
            stop.set()
        assert (failures, len(serials)) == ([], 6)
