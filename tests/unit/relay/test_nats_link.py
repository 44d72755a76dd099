"""What the outlet to NATS shows a server, and when it takes its word: a server of a few lines, on the loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from duemq.model.destinations.destination import Credentials, read_credentials, read_destination
from duemq.relay.base import Result
from duemq.relay.nats.outlet import NatsOutlet
from duemq.relay.outlets import RelayPolicy
from tests.support.outlets.site import out_message

pytestmark = pytest.mark.anyio


@dataclass
class FakeServer:
    """Answers pings, and nothing else. `lines`: what it read, without bodies. `published_at_pings`: how many messages
    came before each ping."""

    port: int = 0
    lines: list[bytes] = field(default_factory=list)
    published_at_pings: list[int] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        published = 0
        info = {"server_id": "x", "version": "2.10.0", "headers": True, "max_payload": 1 << 20, "auth_required": True}
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            self.lines.append(line)
            if line.startswith(b"HPUB"):
                published += 1
                await reader.readexactly(int(line.split()[-1]) + 2)
            elif line == b"PING\r\n":
                self.published_at_pings.append(published)
                writer.write(b"PONG\r\n")
        writer.close()

    def outlet(self, scheme: str = "nats", credentials: Credentials | None = None, **options: Any) -> NatsOutlet:
        fields = {"name": "there", "url": f"{scheme}://127.0.0.1:{self.port}", "options": options}
        return NatsOutlet(read_destination(fields), credentials or Credentials(), RelayPolicy())


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    async with await asyncio.start_server(fake.serve, "127.0.0.1", 0) as listening:
        fake.port = listening.sockets[0].getsockname()[1]
        yield fake


@pytest.mark.parametrize("credentials", [{"username": "u", "password": "s3cret"}, {"token": "s3cret"}, {}])
async def test_a_server_without_tls_is_shown_no_secret_where_tls_was_asked_for(
    server: FakeServer, credentials: dict[str, Any]
) -> None:
    outlet = server.outlet("tls", read_credentials(credentials))
    reply = await outlet.send(out_message())
    await outlet.close()
    assert reply[:2] == (Result.AWAY, "tls")
    assert b"s3cret" not in b"".join(server.lines)
    assert not any(line.startswith(b"HPUB") for line in server.lines)


async def test_core_nats_accepts_a_message_at_a_ping_behind_it(server: FakeServer) -> None:
    outlet = server.outlet(jetstream=False)
    for number in range(1, 21):
        assert (await outlet.send(out_message(number))).result is Result.ACCEPTED
        assert server.published_at_pings[-1] == number
    await outlet.close()


async def test_one_ping_is_for_many_messages(server: FakeServer) -> None:
    outlet = server.outlet(jetstream=False)
    await asyncio.gather(*(outlet.send(out_message(number)) for number in range(1_000)))
    await outlet.close()
    assert server.published_at_pings[-1] == 1_000
    assert len(server.published_at_pings) < 20
    assert server.connections == 1


async def test_a_cancelled_message_leaves_nothing_behind(server: FakeServer) -> None:
    outlet = server.outlet()
    sending = [asyncio.create_task(outlet.send(out_message(number))) for number in range(10)]
    await asyncio.wait(sending, timeout=0.2)
    for each in sending:
        each.cancel()
    await asyncio.gather(*sending, return_exceptions=True)
    assert outlet._link is not None
    assert not outlet._link._waiting
    await outlet.close()


async def test_who_waits_for_an_answer_is_told_of_the_end(server: FakeServer) -> None:
    outlet = server.outlet()
    sending = [asyncio.create_task(outlet.send(out_message(number))) for number in range(10)]
    await asyncio.wait(sending, timeout=0.2)
    await outlet.close()
    assert {(await each).result for each in sending} == {Result.AWAY}
