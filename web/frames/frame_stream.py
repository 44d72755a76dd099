"""One request on a connection of frames, and its response, as an ASGI application sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from duemq.model.frames.frame import (
    ANSWER,
    ANSWER_HEAD,
    BROKEN_OFF,
    DATA,
    FIRST_CREDIT,
    LAST,
    MAX_PAYLOAD,
    MORE,
    pack,
)

_PART: Final = MAX_PAYLOAD // 2  # leaves room for the header lines of a response
_MAX_CREDIT: Final = 1 << 30
_IMPLIED: Final = ((b"content-type", b"application/json"),)
_OMITTED: Final = frozenset((b"content-length", b"connection", b"transfer-encoding"))


class FrameOutput(Protocol):
    """What a stream needs of its connection."""

    @property
    def writing_paused(self) -> bool: ...
    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...


class FrameStream:
    """`body`: the whole body of the request. `taken` is called once with the body's size, when the application has
    received the body. `bare`: the response has no body (HEAD)."""

    more_body = False  # see `read_body`: the whole body came with the head

    def __init__(
        self, output: FrameOutput, number: int, body: bytes, taken: Callable[[int], None], *, bare: bool = False
    ) -> None:
        self._output, self._number, self._taken, self._bare = output, number, taken, bare
        self._body: bytes | None = body  # None once the application has received it
        self._credit = FIRST_CREDIT
        self._head: tuple[int, bytes] | None = (
            None  # status and header lines, until the first part of the response is sent
        )
        self._answered = False
        self.complete = self.ended = False
        self._changed: asyncio.Event | None = None  # set when credit arrives or the client has left

    @property
    def body_bytes(self) -> int:
        """The size of the body, if the application has not received it yet; else 0."""
        return len(self._body or b"")

    def grant(self, credit: int) -> None:
        self._credit = min(self._credit + credit, _MAX_CREDIT)
        self._wake()

    def end(self) -> None:
        """End the stream, because the client no longer wants the response, or has left."""
        self.ended = True
        self._wake()

    def break_off(self) -> None:
        """Tell the client if the response is incomplete."""
        if not (self.complete or self.ended):
            if not self._answered:
                self._head = 500, b""
            self._write(b"", BROKEN_OFF)
        self.complete = True

    # --- ASGI -----------------------------------------------------------------------------------------------------

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            self._taken(len(body))
            return {"type": "http.request", "body": body, "more_body": False}
        while not (self.ended or self.complete):
            await self._change()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self.ended or self.complete:
            return
        if message["type"] == "http.response.start":
            self._begin(message["status"], message.get("headers", ()))
            return
        body, more = memoryview(b"" if self._bare else message.get("body", b"")), message.get("more_body", False)
        while len(body) > (size := min(self._credit, _PART)):
            if size:
                self._write(bytes(body[:size]), MORE)
                body = body[size:]
                await self._output.drain()
            else:
                await self._change()
            if self.ended:
                return
        if body or not more:
            self._write(bytes(body), MORE if more else LAST)
        self.complete = not more
        await self._output.drain()
        while more and not self._credit and not self.ended:
            await self._change()

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes | memoryview) -> bool:
        """Send a whole response. Sends nothing and returns False if `send` would have to wait or to refuse."""
        if (
            self.ended or self._answered or self._bare or self._output.writing_paused
            or len(body) > min(self._credit, _PART)
        ):  # fmt: skip
            return False
        self._begin(status, headers)
        self._write(bytes(body), LAST)
        self.complete = True
        return True

    def _begin(self, status: int, headers: Any) -> None:
        sent = [pair for pair in headers if pair[0] not in _OMITTED and tuple(pair) not in _IMPLIED]
        lines = b"".join([b"%b: %b\n" % (name, value) for name, value in sent])
        if lines.count(b"\n") != len(sent):
            raise ValueError("a header of an answer has a line break")
        self._head = status, lines
        self._answered = True

    def _write(self, body: bytes, what: int) -> None:
        self._credit -= len(body)
        if self._head is None:
            self._output.write(pack(DATA, self._number, bytes((what,)) + body))
            return
        (status, lines), self._head = self._head, None
        self._output.write(pack(ANSWER, self._number, ANSWER_HEAD.pack(status, what, len(lines)) + lines + body))

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    async def _change(self) -> None:
        if self._changed is None:
            self._changed = asyncio.Event()
        await self._changed.wait()
        self._changed.clear()
