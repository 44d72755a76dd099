"""Snapshots between nodes over HTTP: the routes of the serving node, and the source for the fetching node.

POST   /internal/snapshots/{shard}?held=ID&least=OFFSET&sums=later
                                             make a snapshot, or resume the one with this id; returns its manifest
GET    /internal/snapshots/{id}/{file}       the bytes of a file in the header `Range: bytes=FIRST-LAST`, or fewer
GET    /internal/snapshots/{id}/{file}?sum=sha256
                                             the checksum of the file, in hex
DELETE /internal/snapshots/{id}              remove a snapshot that is no longer needed

`least`: the ledger offset that the snapshot must have reached. `sums=later`: leave the checksums out of the manifest,
because computing them reads every byte. A serving node with an older version ignores both parameters and sends all
checksums; the fetching node also compares the offset. A fetching node with an older version sends neither parameter,
and gets all checksums.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import httpx
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from duemq.client.http.async_http import internal_http
from duemq.delay.recovery.replica_snapshot import PART_BYTES, SnapshotGone, SnapshotServer
from duemq.model.errors import CorruptStore, Unavailable
from duemq.storage.checkpoint.checkpoint import CheckpointManifest
from duemq.web.problem import problem, problem_response, unavailable_response

PATH: Final = "/internal/snapshots"
_RANGE: Final = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")
_CONNECT_S: Final = 5.0
_PART_S: Final = 30.0
# Retried, because a lost connection should not waste the bytes fetched so far: another peer's files differ.
_AGAIN_S: Final = (0.2, 1.0, 3.0)
_SUM_S: Final = 600.0  # the peer reads a file (with an older version, all files): tens of GiB take a minute
_OFFSET: Final = re.compile(r"\d{1,18}")


def routes(server: SnapshotServer) -> list[Route]:
    """The routes for a node's internal HTTP."""

    async def begin(request: Request) -> Response:
        query = request.query_params
        least = query.get("least", "0")
        if not _OFFSET.fullmatch(least):
            return problem_response(problem("bad_query", "least must be a whole number", "least"))
        shard, sums = request.path_params["shard"], query.get("sums") != "later"
        manifest = await server.begin(shard, query.get("held"), int(least), sums=sums)
        return Response(manifest.encode(), media_type="application/json")

    async def read(request: Request) -> Response:
        if "sum" in request.query_params:
            return PlainTextResponse(await server.sha256(**request.path_params))
        span = span_of(request)
        if span is None:
            detail = "a header Range: bytes=FIRST-LAST is needed"
            return problem_response(problem("bad_header", detail, "Range"))
        params, (first, count) = request.path_params, span
        part = await server.read(params["snapshot"], params["file"], first, count)
        if not part:
            return Response(status_code=416)
        return Response(
            part, 206, {"Content-Range": f"bytes {first}-{first + len(part) - 1}/*"}, "application/octet-stream"
        )

    async def end(request: Request) -> Response:
        await server.end(request.path_params["snapshot"])
        return Response(status_code=204)

    return [
        Route(PATH + "/{shard:int}", _handle_errors(begin), methods=["POST"]),
        Route(PATH + "/{snapshot}/{file:path}", _handle_errors(read), methods=["GET"]),
        Route(PATH + "/{snapshot}", _handle_errors(end), methods=["DELETE"]),
    ]


def span_of(request: Request) -> tuple[int, int] | None:
    """The start and the number of the requested bytes; None if the request has no range."""
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if match is None or int(match[2]) < int(match[1]):
        return None
    return int(match[1]), int(match[2]) - int(match[1]) + 1


def _handle_errors(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except SnapshotGone as error:
            return problem_response(problem("not_found", error.detail))
        except Unavailable as error:
            return unavailable_response(error)
        except CorruptStore as error:
            return unavailable_response(Unavailable(str(error), retry_after_s=60))

    return answer


class _Unreachable(Unavailable):
    """The peer did not answer at all."""


class HttpSnapshotSource:
    """A peer's snapshots. `url`: the address of its internal HTTP. `headers` are sent with every request. Must be
    closed.

    All errors of the peer or the network are raised as Unavailable, because another peer may work.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._http = internal_http(
            tls,
            base_url=url,
            headers={"Accept-Encoding": "identity", **(headers or {})},
            timeout=httpx.Timeout(_PART_S, connect=_CONNECT_S),
            transport=transport,
        )

    async def begin(self, shard: int, resume_id: str | None = None, least: int = 0) -> CheckpointManifest:
        params = {"least": str(least), "sums": "later"} | ({"held": resume_id} if resume_id else {})
        content = await self._ask_patiently("POST", f"{PATH}/{shard}", params)
        try:
            return CheckpointManifest.decode(content)
        except CorruptStore as error:
            raise Unavailable(f"{self._http.base_url}: {error}") from error

    async def sha256(self, snapshot: str, file: str) -> str:
        content = await self._ask_patiently("GET", _path(snapshot, file), {"sum": "sha256"})
        return content.decode(errors="replace")

    async def read(self, snapshot: str, file: str, offset: int, count: int) -> bytes:
        path = _path(snapshot, file)
        span = {"Range": f"bytes={offset}-{offset + min(count, PART_BYTES) - 1}"}
        for pause in _AGAIN_S:
            with suppress(_Unreachable):
                return await self._ask(self._http.build_request("GET", path, headers=span), 206)
            await asyncio.sleep(pause)
        return await self._ask(self._http.build_request("GET", path, headers=span), 206)

    async def end(self, snapshot: str) -> None:
        await self._ask(self._http.build_request("DELETE", f"{PATH}/{quote(snapshot, safe='')}"), 204)

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask_patiently(self, method: str, path: str, params: Mapping[str, str]) -> bytes:
        patient = httpx.Timeout(_SUM_S, connect=_CONNECT_S)
        return await self._ask(self._http.build_request(method, path, params=dict(params), timeout=patient), 200)

    async def _ask(self, request: httpx.Request, expected_status: int) -> bytes:
        try:
            response = await self._http.send(request)
        except httpx.HTTPError as error:
            raise _Unreachable(f"{request.url}: {str(error) or type(error).__name__}") from error
        if response.status_code == expected_status:
            return response.content
        detail = f"{request.url} answered {response.status_code}: {response.text[:300]}"
        raise SnapshotGone(detail) if response.status_code == 404 else Unavailable(detail)


def _path(snapshot: str, file: str) -> str:
    return f"{PATH}/{quote(snapshot, safe='')}/{quote(file)}"
