"""The consuming side: reads a topic as any consumer would, and timestamps every answer when its last byte arrives.

A short answer is parsed while the next request is in progress. A full answer means that more records can be fetched at
once. So it is kept as bytes, and parsed only after everything was read: server and reader share a machine, and parsing
JSON in the reader must not affect the measurement.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp
import numpy as np
import numpy.typing as npt
import orjson

from duemq.bench.base.frame_session import FrameSession
from duemq.bench.base.session import TROUBLE, Session, now_ms, session
from duemq.bench.base.workers import WorkerLink
from duemq.bench.clients.payloads import SEQUENCE

PAGE = 10_000
_HELD_BYTES = 1 << 30  # above this, full answers are parsed at once, too
_MARK = b'"duemq-id"'  # occurs once in every record, but never in the bench's payloads, whose quotes are escaped
_CURSOR = re.compile(rb'"cursor"\s*:\s*"([^"]+)"')
_EVENT_DATA = re.compile(rb"^data: ?(.+?)\r?$", re.MULTILINE)
_RETRY_S = 0.02
_WAIT = "5s"


Parse = Callable[[bytes], list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class ReceivedRecords:
    """All records that were read, in order, including duplicates.

    `seq`, `due` (from the record, epoch ms), `at` (when the answer was complete, epoch ms) and `partition` are arrays
    of the same length. `ids` has the same length or is empty. `answers` counts the answers or stream chunks that had
    records, `breaks` the broken connections.
    """

    seq: npt.NDArray[np.int64]
    due: npt.NDArray[np.int64]
    at: npt.NDArray[np.float64]
    partition: npt.NDArray[np.int64]
    ids: list[str]
    answers: int
    breaks: int


@dataclass(slots=True)
class _Pages:
    """The answers in order. Some are parsed already, the others later."""

    keep_ids: bool
    raw: list[tuple[float, bytes, Parse]] = field(default_factory=list)
    parsed: dict[int, tuple[npt.NDArray[np.int64], list[str]]] = field(default_factory=dict)
    raw_bytes: int = 0

    def add(self, at_ms: float, body: bytes, parse: Parse) -> int:
        """Add an answer; return the number of records in it."""
        self.raw.append((at_ms, body, parse))
        self.raw_bytes += len(body)
        return body.count(_MARK)

    def parse(self, index: int) -> None:
        at_ms, body, parse = self.raw[index]
        records = parse(body)
        columns = np.array(
            [
                (int(record["payload"][SEQUENCE]), int(record["headers"]["duemq-due"]), record["partition"])
                for record in records
            ],
            np.int64,
        ).reshape(-1, 3)
        self.parsed[index] = columns, [record["headers"]["duemq-id"] for record in records] if self.keep_ids else []
        self.raw[index] = (at_ms, b"", parse)
        self.raw_bytes -= len(body)

    def received(self, breaks: int) -> ReceivedRecords:
        for index in range(len(self.raw)):
            if index not in self.parsed:
                self.parse(index)
        pages = [self.parsed[index] for index in range(len(self.raw))]
        at = [np.full(len(page[0]), raw[0]) for page, raw in zip(pages, self.raw, strict=True)]
        columns = np.concatenate([np.zeros((0, 3), np.int64), *(columns for columns, _ in pages)])
        return ReceivedRecords(
            seq=columns[:, 0],
            due=columns[:, 1],
            at=np.concatenate([np.zeros(0), *at]),
            partition=columns[:, 2],
            ids=[each for _, ids in pages for each in ids],
            answers=len(pages),
            breaks=breaks,
        )


def _page(body: bytes) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = orjson.loads(body)["records"]
    return records


def _events(body: bytes) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = orjson.loads(b"[" + b",".join(_EVENT_DATA.findall(body)) + b"]")
    return records


def _pages(body: bytes) -> list[dict[str, Any]]:
    return [record for line in body.splitlines() if line for record in _page(line)]


class _Form(NamedTuple):
    """A stream format: its media type, what ends a piece, and how to find the cursor after a piece."""

    accept: str
    end: bytes
    parse: Parse
    cursor: re.Pattern[bytes]


_EVENTS = _Form("text/event-stream", b"\n\n", _events, re.compile(rb"^id: ?(\S+)", re.MULTILINE))
_LINES = _Form("application/x-ndjson", b"\n", _pages, re.compile(rb'"cursor":"([^"]+)"}$', re.MULTILINE))


def _cursor(body: bytes, before: str | None) -> str | None:
    match = _CURSOR.search(body[-400:]) or _CURSOR.search(body[:400])
    if match is None:
        value = orjson.loads(body).get("cursor")
        return value if isinstance(value, str) else before
    return match.group(1).decode()


@dataclass(slots=True)
class _Reader:
    http: Session
    link: WorkerLink
    topic: str
    pages: _Pages
    cursor: str | None = None
    count: int = 0
    breaks: int = 0

    async def poll(self, wait: str) -> tuple[float, bytes] | None:
        """Make one long poll. Returns None if the connection broke or the server has no answer yet."""
        query = {"max": str(PAGE), "wait": wait} | ({"after": self.cursor} if self.cursor else {})
        try:
            async with self.http.get(f"/v1/topics/{self.topic}/records", params=query) as answer:
                body = await answer.read()
        except TROUBLE:
            self.breaks += 1
            return None
        return (now_ms(), body) if answer.status == 200 else None

    def take(self, at_ms: float, body: bytes) -> int | None:
        """Record an answer. Returns its index among the pages if it should be parsed right away."""
        self.cursor = _cursor(body, self.cursor)
        if not (record_count := self.pages.add(at_ms, body, _page)):
            self.pages.raw.pop()
            self.pages.raw_bytes -= len(body)
            return None
        self.count += record_count
        self.link.progress(self.count)
        return len(self.pages.raw) - 1 if record_count < PAGE or self.pages.raw_bytes > _HELD_BYTES else None

    async def polls(self) -> None:
        to_parse: int | None = None
        stopped = asyncio.create_task(self.link.stopped.wait(), name="stop")
        while not stopped.done():
            request = asyncio.create_task(self.poll(_WAIT), name="poll")
            if to_parse is not None:
                await asyncio.sleep(0)  # lets the request be sent first
                self.pages.parse(to_parse)
                to_parse = None
            await asyncio.wait((request, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                request.cancel()
            elif (answer := request.result()) is not None:
                to_parse = self.take(*answer)
            else:
                await asyncio.sleep(_RETRY_S)
        for _ in range(1000):
            if (last := await self.poll("0s")) is None or _MARK not in last[1]:
                return
            self.take(*last)

    async def stream(self) -> None:
        stopped = asyncio.create_task(self.link.stopped.wait(), name="stop")
        reading = asyncio.create_task(self._follow(), name="stream")
        await asyncio.wait((reading, stopped), return_when=asyncio.FIRST_COMPLETED)
        for task in (reading, stopped):
            task.cancel()
        if not reading.cancelled() and reading.done():
            reading.result()

    async def _follow(self) -> None:
        form = _LINES if isinstance(self.http, FrameSession) else _EVENTS
        while True:
            try:
                async for at_ms, piece in self._pieces(form):
                    if not (record_count := self.pages.add(at_ms, piece, form.parse)):
                        self.pages.raw.pop()
                        self.pages.raw_bytes -= len(piece)
                        continue
                    if place := form.cursor.findall(piece):
                        self.cursor = place[-1].decode()
                    self.count += record_count
                    self.link.progress(self.count)
            except TROUBLE:
                self.breaks += 1
            await asyncio.sleep(_RETRY_S)

    async def _pieces(self, form: _Form) -> AsyncIterator[tuple[float, bytes]]:
        """Complete events or lines, as they arrive."""
        rest = b""
        async with aclosing(self._parts(form.accept)) as parts:
            async for part in parts:
                at_ms = now_ms()
                whole, gap, rest = (rest + part).rpartition(form.end)
                if whole:
                    yield at_ms, whole + gap

    async def _parts(self, accept: str) -> AsyncGenerator[bytes, None]:
        path, headers = f"/v1/topics/{self.topic}/records", {"Accept": accept}
        query = {"after": self.cursor} if self.cursor else {}
        if isinstance(self.http, FrameSession):
            async with self.http.get(path, params=query, headers=headers) as framed:
                if framed.status == 200:
                    async for part in framed.parts():
                        yield part
            return
        endless = aiohttp.ClientTimeout(total=None)
        async with self.http.get(path, params=query, headers=headers, timeout=endless) as answer:
            if answer.status == 200:
                async for part in answer.content.iter_any():
                    yield part


async def read(link: WorkerLink, url: str, topic: str, pushed: bool = False, keep_ids: bool = False) -> ReceivedRecords:
    """Read `topic` from its start until the request to stop, then read the remaining records. Broken connections are
    replaced.

    `pushed`: read as a stream; otherwise by long poll.
    """
    async with session(url, connections=1, timeout_s=30) as http:
        reader = _Reader(http, link, topic, _Pages(keep_ids))
        await (reader.stream() if pushed else reader.polls())
        return reader.pages.received(reader.breaks)


@dataclass(frozen=True, slots=True)
class HttpReader:
    """Reads records over the HTTP API, by long poll or as a stream."""

    url: str
    pushed: bool = False

    async def read(self, link: WorkerLink, topic: str, keep_ids: bool = False) -> ReceivedRecords:
        """See the function `read`."""
        return await read(link, self.url, topic, self.pushed, keep_ids)
