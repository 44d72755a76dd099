"""JSON responses with a finished body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import orjson
from starlette.responses import Response

_TOGETHER: Final = 500
One = TypeVar("One")
Document = TypeVar("Document")


async def in_slices(items: Sequence[One], render: Callable[[One], Document]) -> list[Document]:
    """Render each item. Other tasks run in between, because thousands of items take long."""
    documents: list[Document] = []
    for start in range(0, len(items), _TOGETHER):
        if start:
            await asyncio.sleep(0)
        documents += map(render, items[start : start + _TOGETHER])
    return documents


class JsonResponse(Response):
    """`content` is anything orjson can write."""

    media_type = "application/json"
    background = None
    _TYPE: Final = (b"content-type", b"application/json")

    def __init__(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        if headers is not None:
            super().__init__(orjson.dumps(content), status, headers)
            return
        self.status_code = status
        self.body = body = orjson.dumps(content)
        self.raw_headers = [(b"content-length", b"%d" % len(body)), self._TYPE]
