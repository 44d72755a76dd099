"""The tests' network works: it knows each connection's client, and held data arrives after it heals."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from duemq.dev.servers.ports import HOST, free_port, is_open
from duemq.dev.servers.process import Process, wait_for
from tests.chaos.network.network import OTHERS, Network

pytestmark = pytest.mark.anyio

_ECHO = """
import asyncio, sys
async def echo(reader, writer):
    while line := await reader.readline():
        writer.write(line)
async def main():
    await (await asyncio.start_server(echo, sys.argv[1], int(sys.argv[2]))).serve_forever()
asyncio.run(main())
"""
_SAY = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    connection.sendall(b"hello\\n")
    print(connection.recv(16).decode().strip(), flush=True)
"""
_SILENT_S = 0.3


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def speaker(tmp_path: Path) -> Process:
    """A process of the cluster that says hello once, and notes the answer."""
    return Process("speaker", [], tmp_path / "speaker.log")


@pytest.fixture
def network(tmp_path: Path, port: int, speaker: Process) -> Iterator[Network]:
    """With a server that echoes its input."""
    server = Process("server", [sys.executable, "-c", _ECHO, HOST, str(port)], tmp_path / "server.log")
    server.start()
    server.until(lambda: is_open(port), 30)
    with closing(Network(tmp_path / "network")) as network:
        network.reached_at("server", port)
        network.start({"server": server, "speaker": speaker})
        yield network
    server.kill()


async def test_what_is_cut_is_silent_and_comes_after_it_heals(network: Network, port: int) -> None:
    reader, writer = await asyncio.open_connection(HOST, network.reached_at("server", port))
    writer.write(b"before\n")
    assert await reader.readline() == b"before\n"
    network.cut([OTHERS], ["server"])
    writer.write(b"cut\n")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(_SILENT_S):
            await reader.readline()
    network.heal()
    assert await reader.readline() == b"cut\n"
    network.cut(["server"], [OTHERS], both_ways=False)
    writer.write(b"one way\n")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(_SILENT_S):
            await reader.readline()
    network.heal()
    assert await reader.readline() == b"one way\n"
    network.slow(["server"], [OTHERS], _SILENT_S)
    before = asyncio.get_running_loop().time()
    writer.write(b"slow\n")
    assert await reader.readline() == b"slow\n"
    assert asyncio.get_running_loop().time() - before >= _SILENT_S
    writer.close()


async def test_a_process_is_known_by_its_output(network: Network, port: int, speaker: Process) -> None:
    """Only the one that is named is cut off."""
    speaker.command = [sys.executable, "-c", _SAY, HOST, str(network.reached_at("server", port))]
    network.cut(["speaker"], ["server"])
    speaker.start()
    reader, writer = await asyncio.open_connection(HOST, network.reached_at("server", port))
    writer.write(b"from others\n")
    assert await reader.readline() == b"from others\n"
    assert speaker.running and not speaker.log.read_text()
    network.heal()
    await asyncio.to_thread(wait_for, lambda: not speaker.running, "the answer", 30)
    assert speaker.log.read_text() == "hello\n"
    writer.close()
