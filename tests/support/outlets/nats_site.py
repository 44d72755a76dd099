"""NATS for the contract of outlets: a stream read as the server has stored it, or a subscriber of core NATS."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from contextlib import suppress
from typing import Any, Self
from urllib.parse import unquote

import nats
import orjson

from duemq.model.destinations.destination import Credentials, read_destination
from duemq.relay.nats.outlet import NatsOutlet
from tests.support.destinations.nats_node import NatsNode
from tests.support.outlets.site import LOOPBACK, Received

STREAM = "ORDERS"
_WITHIN_S = 30.0
_ARRIVAL_S = 3.0  # core NATS hands on at once, or never


def nats_outlet(
    node: NatsNode, credentials: Credentials | None = None, name: str = "there", timeout: int = 10_000, **options: Any
) -> NatsOutlet:
    """An outlet to a server."""
    fields = {"name": name, "url": node.url, "timeout": timeout, "options": options}
    return NatsOutlet(read_destination(fields), credentials or Credentials(), LOOPBACK)


def read_headers(lines: bytes) -> list[tuple[str, bytes | None]]:
    """The headers of the wire, in their order, with what `docs/guides/destinations.md` encodes decoded."""
    read: list[tuple[str, bytes | None]] = []
    for line in lines.split(b"\r\n")[1:]:
        if line:
            name, _, value = line.partition(b": ")
            _, null, original = name.decode().partition("duemq-null-")
            if null:
                read.append((unquote(original), None))
                continue
            _, encoded, original = name.decode().partition("duemq-base64-")
            read.append((unquote(original), b64decode(value)) if encoded else (name.decode(), value))
    return read


def as_received(lines: bytes, body: bytes) -> Received:
    """A message from the bytes of its headers and its payload."""
    headers = read_headers(lines)
    ours = dict(headers)
    own = [(name, value) for name, value in headers if not name.lower().startswith(("duemq-", "nats-msg-id"))]
    payload = None if ours.get("duemq-null") == b"true" else body
    return Received((ours["duemq-id"] or b"").decode(), ours.get("duemq-key"), own, payload)


class NatsSite:
    """A stream."""

    name, keeps_headers, tells_repeats_apart = "nats", True, True

    def __init__(self, node: NatsNode) -> None:
        self._node = node

    async def __aenter__(self) -> Self:
        async with await nats.connect(self._node.url) as client:
            await client.jetstream().add_stream(name=STREAM, subjects=["orders"])
        return self

    async def __aexit__(self, *error: object) -> None: ...

    async def outlet(self) -> NatsOutlet:
        return nats_outlet(self._node)

    async def received(self, count: int) -> list[Received]:
        return await stored(self._node, STREAM)

    async def stop(self) -> None:
        await asyncio.to_thread(self._node.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self._node.start)


async def stored(node: NatsNode, stream: str) -> list[Received]:
    """All messages of a stream, as the server says it has them."""
    async with await nats.connect(node.url) as client:
        state = (await client.jetstream().stream_info(stream)).state
        received = []
        for sequence in range(state.first_seq, state.last_seq + 1):
            answer = await client.request(
                f"$JS.API.STREAM.MSG.GET.{stream}", orjson.dumps({"seq": sequence}), timeout=_WITHIN_S
            )
            message = orjson.loads(answer.data)["message"]
            received.append(as_received(b64decode(message["hdrs"]), b64decode(message.get("data", ""))))
    return received


class NatsCoreSite:
    """A subscriber that speaks the protocol itself: client libraries keep neither order nor repeats of headers.

    It has to be there when a message is published, so it comes back with the server.
    """

    name, keeps_headers, tells_repeats_apart = "nats-core", True, False

    def __init__(self, node: NatsNode) -> None:
        self._node = node
        self._received: list[Received] = []
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._subscribe()
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._reading is not None
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading

    async def _subscribe(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._node.port)
        writer.write(b'CONNECT {"verbose": false, "headers": true}\r\nSUB orders 1\r\nPING\r\n')
        while await reader.readline() != b"PONG\r\n":
            pass
        self._reading = asyncio.create_task(self._read(reader, writer), name="subscriber")

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                words = line.split()
                if words[0] == b"PING":
                    writer.write(b"PONG\r\n")
                elif words[0] == b"HMSG":
                    headers = await reader.readexactly(int(words[-2]))
                    body = await reader.readexactly(int(words[-1]) - len(headers) + 2)
                    self._received.append(as_received(headers, body[:-2]))
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def outlet(self) -> NatsOutlet:
        return nats_outlet(self._node, jetstream=False)

    async def received(self, count: int) -> list[Received]:
        with suppress(TimeoutError):
            async with asyncio.timeout(_ARRIVAL_S):
                while len(self._received) < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        return self._received

    async def stop(self) -> None:
        await asyncio.to_thread(self._node.kill)
        assert self._reading is not None
        await self._reading

    async def start(self) -> None:
        await asyncio.to_thread(self._node.start)
        await self._subscribe()
