"""Streams a topic, as server-sent events or as lines of JSON. An event has one record as its `data`, and the cursor
after that record as its `id`. A line is a page of records with the cursor after them."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from duemq.bus.base import Bus
from duemq.bus.topic_cursor import encode_cursor
from duemq.model.errors import DuemqError
from duemq.proxy.response.ending import Endings
from duemq.proxy.response.render import records_bytes
from duemq.proxy.response.topic_reader import Page, TopicReader, page_bytes
from duemq.web.admission.admission import Share

EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
_HEARTBEAT_S = 15.0
_HEARTBEATS = {EVENTS: b": still here\n\n", LINES: b"\n"}
_RECORDS_PER_CHUNK, _CHUNK_BYTES = 500, 64 << 10  # the most memory that a client which does not read can take up


class RecordStream(Response):
    """Streams a topic from `offsets` on until the client disconnects, the server closes or the caller's grant ends.
    `media_type`: EVENTS or LINES.

    On a failure or a lack of memory after the start, the stream can only end: the client reconnects with the last
    cursor, and the new response has the reason.
    """

    def __init__(
        self, media_type: str, bus: Bus, topic: str, offsets: list[int], endings: Endings, share: Share
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type=media_type)
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._bus, self._topic, self._endings, self._share = bus, topic, endings, share
        self._reader, self._form = TopicReader(bus, topic, offsets), media_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            await self._stream(scope, receive, send)
        except (DuemqError, OSError):
            pass
        await send({"type": "http.response.body", "body": b""})

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        subscription = self._bus.subscribe(self._topic)
        try:
            async with self._endings.watch(scope, receive) as end:
                while not end.reached:
                    chunk = await self._chunk()
                    if not chunk:
                        grown = await end.or_growth(subscription, _HEARTBEAT_S)
                        if grown or end.reached:
                            continue
                        chunk = _HEARTBEATS[self._form]
                    self._share.give_back(self._share.bytes)  # from here on the connection counts these bytes
                    for part in (chunk, b""):  # returns when the client has read most of the chunk
                        await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            subscription.close()

    async def _chunk(self) -> bytes:
        """The records available now, as text; empty if there are none."""
        offsets = list(self._reader.offsets)
        self._share.take(_CHUNK_BYTES)
        page = await self._reader.read(_RECORDS_PER_CHUNK, _CHUNK_BYTES)
        self._share.give_back(_CHUNK_BYTES)
        self._share.take(page_bytes(page))
        return self._line(page) if self._form == LINES else self._events(page, offsets)

    def _line(self, page: Page) -> bytes:
        if not page:
            return b""
        records = b",".join(text for partition, stored in page for text in records_bytes(partition, stored))
        return b'{"records":[%b],"cursor":"%b"}\n' % (records, self._reader.cursor.encode())

    def _events(self, page: Page, offsets: list[int]) -> bytes:
        """The page as events. `offsets`: the next offset of each partition before the page was read."""
        offsets += [0] * (len(self._reader.offsets) - len(offsets))
        places, texts = [], []
        for partition, stored in page:
            texts += records_bytes(partition, stored)
            for one in stored:
                offsets[partition] = one.offset + 1
                places.append(encode_cursor(self._topic, offsets).encode())
        return b"".join(b"id: %b\ndata: %b\n\n" % event for event in zip(places, texts, strict=True))
