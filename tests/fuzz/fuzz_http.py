"""Raw HTTP and frames at random against a real server: heads, chunks, trailers, right and wrong, in any pieces.

`python -m tests.fuzz.fuzz_http --minutes 10 [--seed N]` runs for as long as it is told; `test_http_fuzz.py`
for a few seconds. There may be no 500 and no traceback, each answer names its request, the server lives, gives back the
connections, and does not grow.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random, SystemRandom

import psutil

from duemq.model.frames.frame import (
    ANSWER,
    CANCEL,
    CREDIT,
    PING,
    REQUEST,
    FrameReader,
    answer_of,
    pack,
    pack_request,
)
from tests.e2e.server import Server, wait_for

# Little is kept in memory on purpose, so that what grows would be a leak.
OPTIONS = (
    "--set", "storage.write_buffer_bytes=1MiB", "--set", "storage.cache_bytes=1MiB", "--set",
    "embedded.buffer_bytes=1MiB",
    "--set", "storage.flush_interval_s=1", "--set", "storage.retention=1m", "--set", "storage.min_retention=1m",
)  # fmt: skip
GROWTH_MIB = 64  # allocators keep some; a leak of 100 bytes a case would be more after ten minutes
_AT_ONCE = 16
_ANSWER_S = 120.0  # when to give an answer up

_METHODS = [
    b"GET",
    b"POST",
    b"PUT",
    b"PATCH",
    b"DELETE",
    b"HEAD",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    b"PRI",
    b"get",
    b"",
]
_TARGETS = [
    b"/v1/messages", b"/v1/messages:batch", b"/v1/messages:cancel", b"/v1/messages:move", b"/v1/messages/name-1",
    b"/v1/topics", b"/v1/topics/t/records?wait=1ms", b"/v1/topics/t/consumers/c", b"/v1/dlq", b"/v1/imports",
    b"/v1/messages/%00", b"/v1/%0Ax", b"/v1/messages?limit=1&status=x", b"/healthz", b"/readyz", b"/metrics",
    b"/v1/cluster",
    b"/openapi.json", b"*", b"", b"http://x/healthz", b"//v1", b"/%ff", b"/\xff", b"a:1",
    b"/" + b"a" * 3000, b"/v1/../v1/topics",
]  # fmt: skip
_CALLS = [
    b"POST /v1/messages", b"POST /v1/messages", b"POST /v1/messages:batch", b"POST /v1/messages:cancel",
    b"POST /v1/messages:move", b"PUT /v1/messages/name-1", b"PATCH /v1/messages/name-1", b"DELETE /v1/messages/name-1",
    b"GET /v1/messages/name-1", b"POST /v1/messages/name-1:deliver-now", b"PUT /v1/topics/t/consumers/c",
    b"GET /v1/topics/t/records?wait=10ms", b"POST /v1/imports", b"POST /v1/imports:batch",
    b"GET /v1/messages?limit=2", b"GET /v1/imports", b"GET /v1/dlq", b"GET /metrics",
]  # fmt: skip
_VERSIONS = [b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.1 ", b"HTTX/1.1", b""]
_TAME = [b"content-type: application/json"] * 3 + [
    b"content-type: text/plain", b"duemq-topic: t", b"duemq-deliver-after: 1h", b"idempotency-key: k",
    b"if-none-match: *", b"accept: text/event-stream", b"expect: 100-continue", b"connection: close",
    b"x-request-id: mine",
]  # fmt: skip
_FIELDS = [
    b"duemq-topic: \xff", b"duemq-nonsense: 1", b"duemq-header-a: b", b"idempotency-key: k", b'idempotency-key: "k"',
    b"accept: text/event-stream", b"accept: text/plain;version=abc", b"expect: 100-continue", b"connection: close",
    b"connection: keep-alive, Upgrade", b"upgrade: websocket", b"upgrade: h2c", b"host: y", b"host: evil.example",
    b"origin: https://evil.example", b"sec-fetch-site: cross-site", b"transfer-encoding: chunked",
    b"transfer-encoding: gzip, chunked", b"transfer-encoding: xchunked", b"content-length: 5", b"content-length: +1",
    b"content-length: 99999999999999999999", b"content-encoding: gzip", b"te: trailers", b"trailer: duemq-topic",
    b"if-none-match: *", b"last-event-id: x", b"x-api-key: \x80", b"x: " + b"y" * 9000, b" folded", b"no colon",
    b": empty",
    b"na me: x", b"nul: \x00", b"bare: \n x", b"cookie: " + b"a=b; " * 50, b"x-request-id: mine",
]  # fmt: skip
_BODIES = [
    b"", b"hello", b'{"topic":"t","payload":"p"}', b'{"topic":"t","deliver_after":"1h","labels":["a"]}', b"{", b"[]",
    b"null",
    b'{"messages":[{"topic":"t"},[],{"topic":1}]}', b'{"targets":["name-1"]}', b'{"filter":{"topic":"t"}}',
    b'{"topic":"\xff"}',
    b"[" * 2000, b'{"a":' * 500, b"\x00" * 70_000, b'{"cursor":"x"}',
]  # fmt: skip
UPGRADE = b"GET /v1/frames HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: duemq-frames/1\r\n\r\n"
_ANSWER = re.compile(rb"HTTP/1\.1 ([1-5]\d\d)[^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")


class Requests:
    """What a connection sends, from a seed: some requests one behind the other, cut into pieces."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def pieces(self) -> list[bytes]:
        rng = self._random
        framed = rng.random() < 0.2
        data = b"".join((self._frame if framed else self._request)() for _ in range(rng.choice((1, 1, 1, 2, 4))))
        if rng.random() < 0.3:
            data = self._damaged(data)
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 3))))
        pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        return [UPGRADE, *pieces] if framed else pieces

    def _frame(self) -> bytes:
        rng = self._random
        stream, kind = rng.choice((0, 1, 1, 2, 2**32 - 1)), rng.choice((REQUEST,) * 8 + (CREDIT, CANCEL, PING, 9))
        if kind != REQUEST:
            return pack(kind, stream, rng.randbytes(rng.choice((0, 4, 4, 9))))
        method, _, target = rng.choice(_CALLS).partition(b" ")
        if rng.random() < 0.2:
            target = rng.choice(_TARGETS)
        fields = [
            (name, value)
            for name, _, value in (line.partition(b": ") for line in rng.choices(_TAME, k=rng.randrange(3)))
        ]
        return pack(REQUEST, stream, pack_request(method, target, fields, rng.choice(_BODIES)))

    def _request(self) -> bytes:
        rng = self._random
        method = rng.choice(_METHODS[:5] if rng.random() < 0.95 else _METHODS)
        version = b"HTTP/1.1" if rng.random() < 0.9 else rng.choice(_VERSIONS)
        call = rng.choice(_CALLS) if rng.random() < 0.7 else method + b" " + rng.choice(_TARGETS)
        lines = [call + b" " + version]
        if rng.random() < 0.97:
            lines.append(b"host: evil.example" if rng.random() < 0.05 else b"host: x")
        lines += rng.choices(_TAME, k=rng.randrange(4))
        if rng.random() < 0.2:
            lines += rng.choices(_FIELDS, k=rng.randrange(1, 4))
        body = rng.choice(_BODIES)
        if rng.random() < 0.5:
            lines.append(b"content-length: %d" % (len(body) + (rng.choice((-1, 1, 1000)) if rng.random() < 0.1 else 0)))
        else:
            lines.append(b"transfer-encoding: chunked")
            body = self._chunked(body)
        return b"\r\n".join(lines) + b"\r\n\r\n" + body

    def _chunked(self, body: bytes) -> bytes:
        rng, parts = self._random, []
        while body:
            size = rng.randrange(1, len(body) + 1)
            extension = rng.choice((b"", b"", b"", b";a=b", b';a="b"', b";" + b"e" * 2000))
            if rng.random() < 0.02:
                extension = rng.choice((b" ", b';a="\r', b"x"))
            parts.append(b"%x%b\r\n%b\r\n" % (size, extension, body[:size]))
            body = body[size:]
        trailers = b"".join(field + b"\r\n" for field in rng.choices(_FIELDS, k=rng.choice((0, 0, 1, 3))))
        last = b"0" if rng.random() < 0.95 else rng.choice((b"00000", b"-1", b"fffffffffffffffff", b""))
        return b"".join(parts) + last + b"\r\n" + trailers + b"\r\n"

    def _damaged(self, data: bytes) -> bytes:
        rng, whole = self._random, bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(whole) + 1)
            match rng.randrange(5):
                case 0:
                    whole[at : at + 1] = rng.randbytes(1)
                case 1:
                    whole[at:at] = rng.choice((b"\r", b"\n", b"\r\n\r\n", b"\x00", b" ", b":", rng.randbytes(20)))
                case 2:
                    del whole[at : at + rng.choice((1, 2, 50))]
                case 3:
                    whole[at:at] = whole[max(0, at - 40) : at]
                case 4:
                    del whole[at:]
        return bytes(whole)


@dataclass
class Tally:
    cases: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


async def hammer(port: int, seed: int, *, cases: int | None = None, seconds: float | None = None) -> Tally:
    """Send until so many cases, or seconds, are over, or an answer is wrong."""
    tally, numbers = Tally(), count(seed)
    end = None if seconds is None else time.monotonic() + seconds

    async def send_on() -> None:
        while not tally.wrong and (cases is None or tally.cases < cases) and (end is None or time.monotonic() < end):
            tally.cases += 1
            number = next(numbers)
            pieces = Requests(number).pieces()
            answer = await _exchange(port, pieces)
            for status, head in _framed(answer) if pieces[0] is UPGRADE else _ANSWER.findall(answer):
                tally.statuses[int(status)] += 1
                if status == b"500" or (status != b"100" and b"\r\nx-request-id: " not in b"\r\n" + head.lower()):
                    tally.wrong.append(f"case {number}: {pieces!r} was answered {answer[:2000]!r}")

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(send_on())
    return tally


def _framed(answer: bytes) -> list[tuple[bytes, bytes]]:
    """Status and head of each answer in frames."""
    frames = FrameReader().feed(answer.partition(b"\r\n\r\n")[2])
    answers = [answer_of(frame.payload) for frame in frames if frame.kind == ANSWER]
    return [(b"%d" % one.status, b"".join(b"%b: %b\r\n" % field for field in one.fields)) for one in answers]


async def _exchange(port: int, pieces: list[bytes]) -> bytes:
    """All that comes until the server closes the connection, which it does once all that was whole is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = bytearray()
    try:
        async with asyncio.timeout(_ANSWER_S):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
                if piece is UPGRADE:
                    answer += await reader.readuntil(b"\r\n\r\n")
            if pieces[0] is UPGRADE:
                await asyncio.sleep(0.05)  # the end of our side ends everything
            writer.write_eof()
            while part := await reader.read(1 << 16):
                answer += part
    except OSError:
        pass  # it was closed while this side still sent
    finally:
        writer.close()
    return bytes(answer)


def check(server: Server, tally: Tally, sockets: int) -> None:
    assert not tally.wrong, tally.wrong[0]
    assert server.call("GET", "/healthz").status_code == 200
    assert "Traceback" not in server.log and "ERROR" not in server.log, server.log
    wait_for(lambda: open_sockets(server) <= sockets, "the connections to be given back")


def open_sockets(server: Server) -> int:
    return len(psutil.Process(server.process.pid).net_connections(kind="all"))


def resident_mib(server: Server) -> int:
    return psutil.Process(server.process.pid).memory_info().rss >> 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "data", *OPTIONS) as server:
        server.start()
        seconds, total, most = given.minutes * 60, Tally(), 0
        start = time.monotonic()
        first, sockets = 0, open_sockets(server) + 1  # the connection that asks for its health
        while (left := seconds - (time.monotonic() - start)) > 0:
            tally = asyncio.run(hammer(server.port, given.seed + total.cases, seconds=min(left, 20)))
            total.cases += tally.cases
            total.statuses += tally.statuses
            check(server, tally, sockets)
            most = resident_mib(server)
            first = first or most  # the first part warms it up
            print(f"{time.monotonic() - start:5.0f} s  {total.cases} cases  {most} MiB", flush=True)
        assert most - first < GROWTH_MIB, f"it grew from {first} to {most} MiB"
        assert server.stop() == 0, server.log
    print(f"{total.cases} cases, answers: {dict(sorted(total.statuses.items()))}, from {first} to {most} MiB")


if __name__ == "__main__":
    main()
