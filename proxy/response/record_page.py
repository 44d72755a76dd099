"""Sends a page of records. It is read, rendered and sent in pieces, as fast as the client reads."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from duemq.model.errors import DuemqError
from duemq.proxy.response.ending import Endings
from duemq.proxy.response.render import records_bytes
from duemq.proxy.response.topic_reader import Page, TopicReader, page_bytes
from duemq.web.admission.admission import Share
from duemq.web.connection.exchange import respond

_PAGE_BYTES = 8 << 20
_PIECE_RECORDS, _PIECE_BYTES = 500, 256 << 10  # read and rendered before other tasks run: about 1 ms


async def read_piece(reader: TopicReader, most: int, share: Share) -> Page:
    """The next records, at most `most`. Raises Unavailable if other requests leave no memory for them."""
    share.take(_PIECE_BYTES)
    page = await reader.read(min(most, _PIECE_RECORDS), _PIECE_BYTES)
    share.give_back(_PIECE_BYTES)
    share.take(page_bytes(page))
    return page


class PageResponse(Response):
    """At most `most` records and about 8 MiB: `first`, which is already read, and the next ones of `reader`.

    A short page is sent with its length. A longer page is sent in chunks. It ends early, with a cursor to continue
    from, if no more can be read, the server closes or the caller's grant ends. While a client does not read, no more
    records are read for it.
    """

    media_type = "application/json"

    def __init__(self, reader: TopicReader, first: Page, most: int, share: Share, endings: Endings) -> None:
        super().__init__()
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._reader, self._share, self._endings = reader, share, endings
        self._left, self._left_bytes = most, _PAGE_BYTES
        self._text = b'{"records":[' + self._rendered(first)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        if self._is_behind and scope["http_version"] != "1.0":  # HTTP/1.0 has no chunks
            await send(head)
            if scope["method"] != "HEAD":
                await self._send_pieces(scope, receive, send)
        else:
            text = self._text + self._tail
            self.raw_headers.append((b"content-length", b"%d" % len(text)))
            if len(text) <= _PIECE_BYTES:
                whole = Response(text, self.status_code)
                whole.raw_headers = self.raw_headers
                await respond(whole, scope, receive, send)
                return
            await send(head)
            await _send_sliced(send, text)
        await send({"type": "http.response.body", "body": b""})

    async def _send_pieces(self, scope: Scope, receive: Receive, send: Send) -> None:
        text, self._text = self._text, b""
        async with self._endings.watch(scope, receive) as end:
            while text:
                await _send_sliced(send, text)
                await _send_sliced(send, b"")  # returns when the client has read most of the text
                await asyncio.sleep(0)
                if end.client_left:
                    return
                text = b"," + piece if self._is_behind and not end.reached and (piece := await self._piece()) else b""
        await _send_sliced(send, self._tail)

    async def _piece(self) -> bytes:
        """The next piece; empty if no more can be read now. The cursor never passes the records that were sent."""
        offsets = list(self._reader.offsets)
        try:
            return self._rendered(await read_piece(self._reader, self._left, self._share))
        except DuemqError:
            self._reader.offsets = offsets
            return b""

    def _rendered(self, page: Page) -> bytes:
        size = page_bytes(page)
        self._left, self._left_bytes = self._left - sum(len(stored) for _, stored in page), self._left_bytes - size
        self._share.give_back(size)
        return b",".join(text for partition, stored in page for text in records_bytes(partition, stored))

    @property
    def _is_behind(self) -> bool:
        return self._reader.behind and self._left > 0 and self._left_bytes > 0

    @property
    def _tail(self) -> bytes:
        return b'],"cursor":"%b"}' % self._reader.cursor.encode()


async def _send_sliced(send: Send, body: bytes) -> None:
    """Send in slices, because a single record can be larger than one write should be."""
    whole = memoryview(body)
    for start in range(0, len(body) or 1, _PIECE_BYTES):
        await send({"type": "http.response.body", "body": whole[start : start + _PIECE_BYTES], "more_body": True})
