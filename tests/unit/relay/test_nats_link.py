"""What the outlet to NATS shows a server, and when it takes its word: a server of a few lines, on the loopback."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from duemq.model.destinations.destination import Credentials, read_credentials, read_destination
from duemq.relay.base import Result
from duemq.relay.nats.outlet import NatsOutlet
from tests.support.outlets.site import LOOPBACK, out_message

pytestmark = pytest.mark.anyio

SEED = "SU" + "A" * 56
CREDS = f"-----BEGIN NATS USER JWT-----\nx.s3cret.z\n------END NATS USER JWT------\n{SEED}\n"


@dataclass
class FakeServer:
    """Answers pings. `acknowledges`: and publications, as a stream does. `resets_after`: so many of them, it resets the
    connection; 0 = never. `lines`: what it read, without bodies. `published_at_pings`: how many messages came before
    each ping; `numbers_at_ping`: their payloads, before the last one."""

    port: int = 0
    lines: list[bytes] = field(default_factory=list)
    published_at_pings: list[int] = field(default_factory=list)
    numbers_at_ping: set[int] = field(default_factory=set)
    connections: int = 0
    resets_after: int = 0
    acknowledges: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        published, numbers = 0, set[int]()
        info = {"server_id": "x", "version": "2.10.0", "headers": True, "max_payload": 1 << 20, "auth_required": True,
                "nonce": "once"}  # fmt: skip
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        while line := await reader.readline():
            self.lines.append(line)
            words = line.split()
            if words[0] == b"HPUB":
                published += 1
                body = await reader.readexactly(int(words[-1]) + 2)
                if (number := body[int(words[-2]) : -2]).isdigit():
                    numbers.add(int(number))
                if published == self.resets_after:
                    reset = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                    writer.transport.abort()
                elif self.acknowledges:
                    answer = b'{"stream":"A","seq":1}'
                    writer.write(b"MSG %b 1 %d\r\n%b\r\n" % (words[2], len(answer), answer))
            elif words[0] == b"PING":
                self.published_at_pings.append(published)
                self.numbers_at_ping |= numbers
                numbers.clear()
                writer.write(b"PONG\r\n")

    def outlet(self, scheme: str = "nats", credentials: Credentials | None = None, **options: Any) -> NatsOutlet:
        fields = {"name": "there", "url": f"{scheme}://127.0.0.1:{self.port}", "options": options}
        return NatsOutlet(read_destination(fields), credentials or Credentials(), LOOPBACK)


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    async with await asyncio.start_server(fake.serve, "127.0.0.1", 0) as listening:
        fake.port = listening.sockets[0].getsockname()[1]
        yield fake


@pytest.mark.parametrize(
    "credentials", [{"username": "u", "password": "s3cret"}, {"token": "s3cret"}, {"creds": SEED}, {"creds": CREDS}, {}]
)
async def test_a_server_without_tls_is_shown_no_secret_where_tls_was_asked_for(
    server: FakeServer, credentials: dict[str, Any]
) -> None:
    outlet = server.outlet("tls", read_credentials(credentials))
    async with asyncio.timeout(5):
        reply = await outlet.send(out_message())
    await outlet.close()
    assert reply[:2] == (Result.AWAY, "tls")
    assert b"s3cret" not in b"".join(server.lines)
    assert b'"sig"' not in b"".join(server.lines)
    assert not any(line.startswith(b"HPUB") for line in server.lines)


async def test_core_nats_accepts_a_message_at_a_ping_behind_it(server: FakeServer) -> None:
    outlet = server.outlet(jetstream=False)
    for number in range(1, 21):
        assert (await outlet.send(out_message(number))).result is Result.ACCEPTED
        assert server.published_at_pings[-1] == number
    await outlet.close()


async def test_no_ping_overtakes_a_message_under_load(server: FakeServer) -> None:
    outlet = server.outlet(jetstream=False)
    assert (await outlet.send(out_message(0))).result is Result.ACCEPTED

    async def send(number: int) -> bool:
        await asyncio.sleep(number / 5_000)
        assert (await outlet.send(out_message(number, payload=b"%d" % number))).result is Result.ACCEPTED
        return number in server.numbers_at_ping

    answered = await asyncio.gather(*(send(number) for number in range(1, 3_000)))
    await outlet.close()
    assert all(answered)


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
    assert outlet.connection is not None
    assert not outlet.connection.waiting
    await outlet.close()


async def test_who_waits_for_an_answer_is_told_of_the_end(server: FakeServer) -> None:
    outlet = server.outlet()
    sending = [asyncio.create_task(outlet.send(out_message(number))) for number in range(10)]
    await asyncio.wait(sending, timeout=0.2)
    await outlet.close()
    assert {(await each).result for each in sending} == {Result.AWAY}


@pytest.mark.heavy
@pytest.mark.parametrize("jetstream", [True, False])
async def test_who_waits_is_told_of_a_reset_while_more_is_written(server: FakeServer, jetstream: bool) -> None:
    server.resets_after, server.acknowledges = 1_000, jetstream
    outlet = server.outlet(jetstream=jetstream)

    async def send(number: int) -> Result:
        await asyncio.sleep(number / 5_000)  # so that there is always something to be written
        return (await outlet.send(out_message(number, payload=b"x" * 1_000))).result

    async with asyncio.timeout(20):
        results = await asyncio.gather(*(send(number) for number in range(5_000)))
    assert set(results) == {Result.ACCEPTED, Result.AWAY}
    await outlet.close()
    await asyncio.sleep(0.01)
    left = {str(task.get_coro()) for task in asyncio.all_tasks()}
    assert not any("nats" in coroutine.lower() or "_wait_for_msgs" in coroutine for coroutine in left), left


async def test_who_waits_is_told_also_where_nats_py_calls_nobody(server: FakeServer) -> None:
    outlet = server.outlet()
    sending = asyncio.create_task(outlet.send(out_message()))
    await asyncio.wait([sending], timeout=0.2)
    assert outlet.connection is not None
    client = outlet.connection.client
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "_status", client.DISCONNECTED)
        async with asyncio.timeout(5):
            assert (await sending).result is Result.AWAY
    await outlet.close()
