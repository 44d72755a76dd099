"""A TCP proxy for one broker that knows Kafka's framing, and holds single requests.

It reads only a request's head, which is the same in all versions: length, key, version, correlation id. A held request
holds all later ones on its connection, as a network does. Its client may give up and continue on another connection,
while the proxy keeps the one to the broker open and releases the request at its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from struct import Struct
from typing import Self

from duemq.dev.servers.ports import HOST
from tests.chaos.delayed.holds import Api, Hold, Request, error_code

_LENGTH = Struct(">i")
_HEAD = Struct(">hhi")
_NAMES_BROKERS = (Api.METADATA, Api.FIND_COORDINATOR, Api.DESCRIBE_CLUSTER)
_LIMIT = 1 << 20
_ENDS_S = 10.0  # for answers that a client does not wait for any more


class Proxy:
    """Entrances to one broker; by each of them a client sees only a broker with that address."""

    def __init__(self, broker_port: int) -> None:
        self._broker_port = broker_port
        self._doors: list[asyncio.Server] = []
        self._links = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._holds: list[Hold] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for door in self._doors:
            door.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def open_door(self) -> str:
        """The bootstrap address of one more way in; they are numbered from 0."""
        number = len(self._doors)

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            port = writer.get_extra_info("sockname")[1]
            link = Link(number, next(self._links), port, self._broker_port, self._holds)
            task = asyncio.create_task(link.run(reader, writer), name=f"door {number}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        door = await asyncio.start_server(accept, HOST, 0, limit=_LIMIT)
        self._doors.append(door)
        return f"{HOST}:{door.sockets[0].getsockname()[1]}"

    def hold(self, holds: Iterable[Hold]) -> None:
        """From now on these inspect the traffic; a request is held by the first one that takes it."""
        self._holds += holds

    def stop_holding(self) -> None:
        """Hold no further request. Those that are held stay so until their time has come."""
        self._holds[:] = [hold for hold in self._holds if hold.request is not None]


class Link:
    """One connection of a client, and the one to the broker that belongs to it."""

    def __init__(self, door: int, number: int, port: int, broker_port: int, holds: list[Hold]) -> None:
        self._door, self._number, self._broker_port, self._holds = door, number, broker_port, holds
        self._shown, self._true = _address(port), _address(broker_port)
        self._sent: dict[int, tuple[Request, Hold | None]] = {}  # by correlation id, until they are answered

    async def run(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Until both sides are done with it."""
        try:
            broker, to_broker = await asyncio.open_connection(HOST, self._broker_port, limit=_LIMIT)
        except OSError:
            to_client.transport.abort()
            return
        answers = asyncio.create_task(self._answers(broker, to_client), name="answers")
        try:
            await self._requests(client, to_client, to_broker, answers)
            to_client.close()
            if self._sent:  # a request that its client gave up is carried out all the same
                held = any(hold is not None and hold.of_answer for _, hold in self._sent.values())
                await asyncio.wait([answers], timeout=None if held else _ENDS_S)
        finally:
            answers.cancel()
            to_client.close()
            to_broker.close()
            for _, hold in self._sent.values():
                if hold is not None:
                    hold.ended.set()
            await asyncio.wait([answers])
            for end in (to_client, to_broker):
                with suppress(ConnectionError):
                    await end.wait_closed()

    async def _requests(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        to_broker: asyncio.StreamWriter,
        answers: asyncio.Task[None],
    ) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while not answers.done():
                frame = await _read(client)
                key, version, correlation = _HEAD.unpack_from(frame)
                request = Request(self._door, self._number, key, version, correlation, frame)
                hold = next((hold for hold in self._holds if hold.takes(request)), None)
                if hold is not None and not hold.of_answer:
                    await _hold(hold, to_client)
                self._sent[correlation] = request, hold
                to_broker.write(_LENGTH.pack(len(frame)) + frame)
                await to_broker.drain()

    async def _answers(self, broker: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Pass answers on for as long as the client is there, and receive those that it does not wait for."""
        try:
            while True:
                answer = await _read(broker)
                correlation = int.from_bytes(answer[:4], signed=True)
                request, hold = self._sent[correlation]
                if hold is not None:
                    hold.code = error_code(request, answer)
                    if hold.of_answer:
                        await _hold(hold, to_client)
                    hold.ended.set()
                del self._sent[correlation]
                for other in self._holds:
                    await other.note_answer(request)
                if request.key in _NAMES_BROKERS:
                    answer = answer.replace(self._true, self._shown)
                if not to_client.is_closing():
                    with suppress(ConnectionError):
                        to_client.write(_LENGTH.pack(len(answer)) + answer)
                        await to_client.drain()
                elif not self._sent:
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            to_client.close()


async def _hold(hold: Hold, to_client: asyncio.StreamWriter) -> None:
    cutting = asyncio.create_task(_cut(to_client, hold.cut_s), name="cut")
    await hold.wait()
    await cutting


async def _cut(to_client: asyncio.StreamWriter, after_s: float | None) -> None:
    if after_s is not None:
        await asyncio.sleep(after_s)
        to_client.transport.abort()


async def _read(reader: asyncio.StreamReader) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return await reader.readexactly(length)


def _address(port: int) -> bytes:
    """Host and port, as all versions of all answers have them side by side. Of the same length for every port."""
    return HOST.encode() + _LENGTH.pack(port)
