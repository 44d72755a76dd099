"""TLS between a transport and a protocol, both in a test's hand."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from duemq.tls.contexts import server_context
from duemq.tls.files import TlsFiles
from duemq.web.tls.transport import TlsTransport
from tests.support.tls.certificates import Authority


class Socket(asyncio.Transport):
    """Keeps what is written; `unsent`: bytes that it says it could not send yet."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.calls, self.unsent = bytearray(), list[str](), 0

    def write(self, data: Any) -> None:
        assert not self.is_closing()
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return f"raw {name}"

    def is_closing(self) -> bool:
        return "close" in self.calls or "abort" in self.calls

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    def write_eof(self) -> None:
        self.calls.append("eof")

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


class Above(asyncio.Protocol):
    """Keeps what it gets. `stops_at`: pauses when it has so many bytes. `stays`: wants to write after the end."""

    def __init__(self) -> None:
        self.transport: TlsTransport
        self.got, self.events, self.stops_at, self.stays = bytearray(), list[str](), 1 << 60, False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        if len(self.got) >= self.stops_at:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self.events.append(f"eof at {len(self.got)}")
        return self.stays

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")


class World:
    """One connection: the server's transport, and a client by OpenSSL."""

    def __init__(self, files: TlsFiles) -> None:
        self.socket, self.above, self.failures = Socket(), Above(), list[str]()
        context = server_context(files)
        self.transport = TlsTransport(self.above, context, self.failures.append, lambda: b"TLS, please")
        self.transport.connection_made(self.socket)
        self.into, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = ssl.create_default_context(cafile=files.ca)
        self.client = client.wrap_bio(self.into, self.out, server_hostname="127.0.0.1")

    def move(self, pieces: Callable[[bytes], list[bytes]] = lambda data: [data]) -> None:
        """What the client wrote to the server, and back."""
        if data := self.out.read():
            for piece in pieces(data):
                self.transport.data_received(piece)
        if self.socket.written:
            self.into.write(bytes(self.socket.written))
            self.socket.written.clear()

    def shake(self, pieces: Callable[[bytes], list[bytes]] = lambda data: [data]) -> None:
        while True:
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                self.move(pieces)
            else:
                self.move(pieces)
                return

    def answer(self) -> bytes:
        self.move()
        answer = bytearray()
        try:
            while part := self.client.read(1 << 16):
                answer += part
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            answer += b"|end"
        else:
            answer += b"|end"
        return bytes(answer)


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]:
    files = Authority.make(tmp_path).issue("server")

    def run_it(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        async def with_world() -> None:
            await scenario(World(files))

        asyncio.run(with_world())

    return run_it


Run = Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]


def by_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


@pytest.mark.parametrize("pieces", [lambda data: [data], by_byte], ids=["whole", "by byte"])
def test_bytes_go_through_in_both_directions(run: Run, pieces: Callable[[bytes], list[bytes]]) -> None:
    async def scenario(world: World) -> None:
        assert world.transport.get_extra_info("peername") == "raw peername"
        assert isinstance(world.transport.get_extra_info("sslcontext"), ssl.SSLContext)
        world.shake(pieces)
        sends, answers = Random(1).randbytes(100_000), Random(2).randbytes(3 << 20)
        world.client.write(sends[:16_000])
        world.client.write(sends[16_000:16_001])
        world.move(pieces)
        assert world.above.got == sends[:16_001]
        world.transport.write(answers)
        world.transport.writelines([b"a", bytearray(b"b"), memoryview(b"c")])
        world.transport.write(b"")
        assert world.answer() == answers + b"abc"
        world.socket.unsent = 77
        assert world.transport.get_write_buffer_size() == 77
        assert world.failures == []

    run(scenario)


def test_a_close_says_so_to_the_other_side(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.shake()
        world.transport.write(b"last words")
        world.transport.close()
        world.transport.close()
        assert world.transport.is_closing()
        world.transport.write(b"too late")
        assert world.answer() == b"last words|end"
        assert world.socket.calls == ["close", "close"]
        world.transport.connection_lost(None)
        world.transport.close()
        world.transport.write(b"too late")
        assert world.above.events == ["lost"]
        assert world.transport.get_extra_info("ssl_object") is None

    run(scenario)


def test_who_ends_his_half_over_tls_gets_his_answer(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.above.stays = True
        world.shake()
        world.client.write(b"question")
        with pytest.raises(ssl.SSLWantReadError):
            world.client.unwrap()
        world.move()
        assert (bytes(world.above.got), world.above.events) == (b"question", ["eof at 8"])
        assert world.transport.eof_received()  # TCP ends, too
        world.transport.write(b"answer")
        assert world.above.events == ["eof at 8"]
        assert world.socket.calls == [] and world.socket.written

    run(scenario)


@pytest.mark.parametrize("by_tls", [True, False])
def test_an_end_closes_where_nothing_is_left_to_say(run: Run, by_tls: bool) -> None:
    async def scenario(world: World) -> None:
        world.shake()
        if by_tls:
            with pytest.raises(ssl.SSLWantReadError):
                world.client.unwrap()
            world.move()
        else:
            assert world.transport.eof_received()
        assert world.above.events == ["eof at 0"]
        assert world.socket.calls == ["close"]

    run(scenario)


def test_a_protocol_that_pauses_gets_nothing_until_it_resumes_and_the_end_last(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.above.stops_at = 1
        world.shake()
        for _ in range(3):
            world.client.write(b"x" * 10_000)
        world.move()
        assert len(world.above.got) == 10_000
        assert world.transport.eof_received()
        assert world.above.events == [] and "pause" in world.socket.calls
        for at in (20_000, 30_000):
            world.transport.resume_reading()
            await asyncio.sleep(0)
            assert len(world.above.got) == at
        assert world.above.events == []
        world.transport.resume_reading()
        await asyncio.sleep(0)
        assert world.above.events == ["eof at 30000"]
        world.transport.connection_lost(None)
        world.transport._advance()

    run(scenario)


def test_how_full_the_socket_is_is_told(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.shake()
        world.transport.pause_writing()
        world.transport.resume_writing()
        assert world.above.events == ["pause", "resume"]

    run(scenario)


def test_an_end_of_our_half_lets_nothing_more_in(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.shake()
        world.transport.write(b"no")
        assert world.transport.can_write_eof()
        world.transport.write_eof()
        assert world.answer() == b"no|end"
        world.client.write(b"more")
        world.move()
        assert (bytes(world.above.got), world.socket.calls) == (b"", ["eof"])

    run(scenario)


def test_http_without_tls_is_told_so(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.transport.data_received(b"GET / HTTP/1.1\r\n\r\n")
        world.transport.data_received(b"GET / HTTP/1.1\r\n\r\n")
        assert (bytes(world.socket.written), world.socket.calls) == (b"TLS, please", ["eof"])
        assert (world.failures, bytes(world.above.got)) == (["http request"], b"")

    run(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_garbage_is_closed(run: Run, seed: int) -> None:
    """As a whole, behind the start of a handshake, and in an open connection."""

    async def scenario(world: World) -> None:
        random = Random(seed)
        if stage := seed % 3:
            if stage == 2:
                world.shake()
            else:
                with pytest.raises(ssl.SSLWantReadError):
                    world.client.do_handshake()
                world.transport.data_received(world.out.read()[: random.randrange(5, 200)])
        for _ in range(300):
            if world.socket.calls:
                break
            world.transport.data_received(bytes([random.choice((0x16, 0x17, 0xFF))]) + random.randbytes(1000))
        assert world.socket.calls == ["eof"]
        assert world.above.got == b""
        assert len(world.failures) == (0 if stage == 2 else 1)
        world.transport.data_received(b"more")

    run(scenario)


def test_an_end_before_a_handshake_closes(run: Run) -> None:
    async def scenario(world: World) -> None:
        assert world.transport.eof_received() is False
        world.transport.close()
        assert (bytes(world.socket.written), world.socket.calls) == (b"", ["close"])

    run(scenario)
