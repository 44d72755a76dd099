"""Finished JSON answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_SLICE_BYTES = 256 << 10


class JsonResponse(Response):
    """`content` is anything orjson can write."""

    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(orjson.dumps(content), status, headers)


class PageResponse(Response):
    """`texts`, with commas between, from `head` to `tail`: never as a whole in memory.

    Sent slice by slice, each when the client has read most of the one before: it is not done before it is sent.
    """

    def __init__(self, head: bytes, texts: Sequence[bytes], tail: bytes, media_type: str) -> None:
        self._head, self._texts, self._tail = head, texts, tail
        size = len(head) + sum(map(len, texts)) + max(len(texts) - 1, 0) + len(tail)
        super().__init__(headers={"Content-Length": str(size)}, media_type=media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._slices():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": self._tail})

    def _slices(self) -> Iterator[bytes | memoryview]:
        """All but the tail."""
        parts, size = [self._head], 0
        for at, text in enumerate(self._texts):
            parts += (b",", text) if at else (text,)
            size += len(text)
            if size >= _SLICE_BYTES:
                joined = memoryview(b"".join(parts))
                yield from (joined[start : start + _SLICE_BYTES] for start in range(0, len(joined), _SLICE_BYTES))
                parts, size = [], 0
        yield b"".join(parts)
