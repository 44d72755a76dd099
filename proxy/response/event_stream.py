"""A topic as server-sent events: one record in each event's `data`, the cursor after it as its `id`."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from duemq.bus.base import Bus
from duemq.bus.topic_cursor import encode_cursor
from duemq.model.errors import DuemqError
from duemq.proxy.response.ending import Endings
from duemq.proxy.response.render import records_bytes
from duemq.proxy.response.topic_reader import TopicReader, page_bytes
from duemq.web.admission import Share

MEDIA_TYPE = "text/event-stream"
_HEARTBEAT_S = 15.0
_HEARTBEAT = b": still here\n\n"
_RECORDS_PER_CHUNK, _CHUNK_BYTES = 500, 64 << 10  # the memory for a client that does not read


class EventStream(Response):
    """Streams a topic from `offsets` on until the client disconnects, the server closes or the caller's grant ends.

    A failure, or a lack of memory, in the middle can only end the stream: the client reconnects with the last `id` and
    gets the reason.
    """

    media_type = MEDIA_TYPE

    def __init__(self, bus: Bus, topic: str, offsets: list[int], endings: Endings, share: Share) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._bus, self._topic, self._endings, self._share = bus, topic, endings, share
        self._reader = TopicReader(bus, topic, offsets)

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
                    chunk = await self._events()
                    if not chunk:
                        grown = await end.or_growth(subscription, _HEARTBEAT_S)
                        if grown or end.reached:
                            continue
                        chunk = _HEARTBEAT
                    self._share.give_back(self._share.bytes)  # sent data counts as unread from here on
                    for part in (chunk, b""):  # returns when the client has read most of the chunk
                        await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            subscription.close()

    async def _events(self) -> bytes:
        """The events available now; empty if there are none."""
        offsets = list(self._reader.offsets)
        self._share.take(_CHUNK_BYTES)
        page = await self._reader.read(_RECORDS_PER_CHUNK, _CHUNK_BYTES)
        self._share.give_back(_CHUNK_BYTES)
        self._share.take(page_bytes(page))
        offsets += [0] * (len(self._reader.offsets) - len(offsets))
        places, texts = [], []
        for partition, stored in page:
            texts += records_bytes(partition, stored)
            for one in stored:
                offsets[partition] = one.offset + 1
                places.append(encode_cursor(self._topic, offsets).encode())
        return b"".join(b"id: %b\ndata: %b\n\n" % event for event in zip(places, texts, strict=True))
