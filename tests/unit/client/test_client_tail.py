"""Following a topic: parsing the stream, resuming, giving up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice

import httpx
import orjson
import pytest

from duemq.client import AsyncClient, Client, Unavailable, Unreachable
from duemq.client.http.errors import UnknownTopic
from duemq.client.http.tail import TailFollower


def event(offset: int, payload: str = "p", end: str = "\n") -> bytes:
    data = orjson.dumps({"partition": 0, "offset": offset, "timestamp_ms": 1, "payload": payload}).decode()
    return f"id: c{offset}{end}data: {data}{end}{end}".encode()


def stream(*chunks: bytes | Exception) -> httpx.Response:
    class Chunks(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            for chunk in chunks:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in self:
                yield chunk

    return httpx.Response(200, stream=Chunks())


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_records_are_whole_however_the_stream_is_cut(size: int, end: str) -> None:
    payloads = ["plain", "line\nbreak \u2028 \x85 \x1c", "ü" * 50]
    text = b": hello\n\n" + b"".join(event(i, payload, end) for i, payload in enumerate(payloads))
    follow = TailFollower("t", None, None)
    records = [record for at in range(0, len(text), size) for record in follow.feed(text[at : at + size])]
    assert [record.text for record in records] == payloads
    assert [record.cursor for record in records] == ["c0", "c1", "c2"]


def test_a_broken_stream_resumes_after_the_last_whole_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.client.http.tail._FIRST_PAUSE_S", 0.0)
    answers: list[httpx.Response | Exception] = [
        stream(event(0), event(1)[:9], httpx.ReadError("reset")),
        httpx.ConnectError("restarting"),
        stream(event(1)),
        stream(event(2)),
    ]
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        result = answers.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    with Client("http://duemq.test", transport=httpx.MockTransport(answer)) as client:
        records = list(islice(client.tail("t", "c"), 3))
    assert [record.offset for record in records] == [0, 1, 2]
    assert [request.url.params.get("after") for request in requests] == [None, "c0", "c0", "c1"]
    assert {request.headers["Accept"] for request in requests} == {"text/event-stream"}


def test_the_asynchronous_tail_resumes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.client.http.tail._FIRST_PAUSE_S", 0.0)
    answers = [stream(event(0), httpx.ReadError("reset")), stream(event(1))]

    async def read_two() -> list[int]:
        transport = httpx.MockTransport(lambda request: answers.pop(0))
        async with AsyncClient("http://duemq.test", transport=transport) as client:
            tail = client.tail("t")
            offsets = [(await anext(tail)).offset, (await anext(tail)).offset]
            await tail.aclose()
            return offsets

    assert asyncio.run(read_two()) == [0, 1]


def test_a_server_that_was_never_reached_is_an_error_at_once() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with Client("http://duemq.test", transport=httpx.MockTransport(refuse)) as client, pytest.raises(Unreachable):
        next(client.tail("t"))


def test_a_refusal_ends_the_tail() -> None:
    problem = httpx.Response(404, json={"code": "unknown_topic", "detail": "d", "status": 404})
    transport = httpx.MockTransport(lambda request: problem)
    with Client("http://duemq.test", transport=transport) as client, pytest.raises(UnknownTopic):
        next(client.tail("t"))


def test_pauses_grow_to_a_bound_and_begin_anew_with_a_record() -> None:
    follow = TailFollower("t", None, None)
    follow.opened()
    pauses = [follow.lost(None) for _ in range(8)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert follow.lost(Unavailable("busy", 30)) == 30
    (record,) = follow.feed(event(0))
    follow.passed(record)
    assert follow.lost(None) == 0.1


def test_without_a_known_place_nothing_is_read_twice() -> None:
    follow = TailFollower("t", None, None)
    follow.opened()
    (record,) = follow.feed(event(0).split(b"\n", 1)[1])
    follow.passed(record)
    with pytest.raises(Unreachable):
        follow.lost(None)
