"""A session that sends by frames. It has the parts of aiohttp's interface that the bench uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Self
from urllib.parse import urlencode, urlsplit

import aiohttp

from duemq.client.http.connection import tls_files
from duemq.client.http.frames.frame_link import FrameLink, open_link
from duemq.model.frames.frame import MAX_PAYLOAD, MAX_STREAMS, pack_request
from duemq.tls.contexts import client_context

PREFIX = "frames+"
"""The prefix that a server's URL has if sessions should use frames."""


class FramedAnswer:
    """`status`: the HTTP status."""

    def __init__(self, status: int, parts: AsyncIterator[bytes]) -> None:
        self.status, self._parts = status, parts

    def raise_for_status(self) -> None:
        if self.status >= 400:
            raise OSError(f"the server answered {self.status}")

    async def read(self) -> bytes:
        return b"".join([part async for part in self.parts()])

    def parts(self) -> AsyncIterator[bytes]:
        return self._parts


class FrameSession:
    """One connection, which is opened again after it has ended; requests larger than a frame go by HTTP. Raises OSError
    and TimeoutError."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._place = urlsplit(url.removeprefix(PREFIX))
        self._tls = client_context(tls_files()) if self._place.scheme == "https" else None
        self._timeout_s = timeout_s
        self._link: FrameLink | None = None
        self._opening, self._places = asyncio.Lock(), asyncio.Semaphore(MAX_STREAMS)

    async def __aenter__(self) -> Self:
        url = f"{self._place.scheme}://{self._place.netloc}"
        self._http = aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(ssl=self._tls or True))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._link is not None:
            self._link.close()
        await self._http.close()

    def get(
        self, path: str, *, params: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[FramedAnswer]:
        return self._request("GET", f"{path}?{urlencode(params)}" if params else path, headers)

    def post(
        self, path: str, *, data: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[FramedAnswer]:
        return self._request("POST", path, headers, data)

    def delete(self, path: str) -> AbstractAsyncContextManager[FramedAnswer]:
        return self._request("DELETE", path)

    @asynccontextmanager
    async def _request(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> AsyncIterator[FramedAnswer]:
        fields = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        payload = pack_request(method.encode(), target.encode(), fields, body)
        if len(payload) > MAX_PAYLOAD:
            async with self._http.request(method, target, data=body, headers=headers) as answer:
                yield FramedAnswer(answer.status, answer.content.iter_any())
            return
        async with self._places, asyncio.timeout(self._timeout_s) as limit:
            link = await self._open()
            pending = link.request(payload)
            try:
                head = await pending.head()
                limit.reschedule(None)  # the body may be a stream
                yield FramedAnswer(head.status, pending.parts(head))
            finally:
                pending.close()

    async def _open(self) -> FrameLink:
        async with self._opening:
            if self._link is None or self._link.closed:
                host, port = self._place.hostname or "", self._place.port or 80
                self._link = await open_link(host, port, (), self._tls)
                if self._link is None:
                    raise ConnectionError("the server does not speak frames")
            return self._link
