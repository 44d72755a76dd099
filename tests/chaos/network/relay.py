"""A TCP relay in front of servers, as a separate process: it checks for each chunk of bytes whether its path is open.

    python -m tests.chaos.network.relay PLAN

PLAN is JSON: `names` (of processes by the files of their output), `routes` (the port that others connect to: the
server's name and port) and `control`, the port for lines of JSON that change what is cut and delayed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from duemq.dev.servers.ports import HOST
from tests.chaos.network import paths
from tests.chaos.network.paths import Paths
from tests.chaos.network.sources import Sources

_CHUNK = 256 << 10


class Relay:
    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._paths = Paths()
        self._sources = Sources(plan["names"])

    async def serve(self) -> None:
        """Until the process is ended."""
        async with asyncio.TaskGroup() as group:
            for port, (server, behind) in self._plan["routes"].items():
                relaying = partial(self._relay, server, behind)
                listening = await asyncio.start_server(relaying, HOST, int(port), limit=_CHUNK)
                group.create_task(listening.serve_forever(), name=f"{port} for {server}")
            control = await asyncio.start_server(self._control, HOST, self._plan["control"])
            group.create_task(control.serve_forever(), name="control")

    async def _control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            async for line in reader:
                told = json.loads(line)
                delays = {(source, server): seconds for source, server, seconds in told["delays"]}
                self._paths.change(((source, server) for source, server in told["cut"]), delays)
                writer.write(b"done\n")
                await writer.drain()

    async def _relay(self, server: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from when it is made to when one of both sides has closed it."""
        source = self._sources.name_of(writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1])
        try:
            await self._paths.pass_through((source, server))
            behind, to_server = await asyncio.open_connection(HOST, port, limit=_CHUNK)
        except OSError:  # the server is down: the connection is refused as soon as that can be told
            writer.transport.abort()
            return
        directions = {
            asyncio.create_task(self._copy((source, server), reader, to_server), name="to the server"),
            asyncio.create_task(self._copy((server, source), behind, writer), name="from the server"),
        }
        _, rest = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        for end in (writer, to_server):
            end.transport.abort() if rest else end.close()

    async def _copy(self, path: paths.Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, to its end: that nothing more comes is news that has to pass, too."""
        chunk = b"-"
        with suppress(ConnectionError):
            while chunk:
                chunk = await reader.read(_CHUNK)
                await self._paths.pass_through(path)
                writer.write(chunk)
                await writer.drain()


if __name__ == "__main__":
    uvloop.run(Relay(json.loads(Path(sys.argv[1]).read_text())).serve())
