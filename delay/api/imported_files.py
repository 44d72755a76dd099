"""Imported files between nodes over HTTP: a node that has a file serves it to nodes that cannot read its source.

GET /internal/shards/{shard}/copies?offsets=1,2   which of these import commands' files this node has
GET /internal/shards/{shard}/copies/{offset}      the bytes of a file in the header `Range: bytes=FIRST-LAST`, or fewer
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duemq.delay.api.snapshots import span_of
from duemq.delay.imports.file_copies import FileCopy
from duemq.delay.reads.local_reader import ShardHolder
from duemq.delay.recovery.replica_snapshot import read_part
from duemq.delay.shard.shard import Shard
from duemq.delay.threads import in_thread
from duemq.model.errors import Rejected, Unavailable
from duemq.web.json_response import JsonResponse
from duemq.web.problem import problem, problem_response

_OFFSETS: Final = re.compile(r"\d{1,18}(?:,\d{1,18}){0,1999}")
_SHARD: Final = "/internal/shards/{shard:int}/copies"


def routes(holder: ShardHolder) -> list[Route]:
    """The routes for a node's internal HTTP."""

    async def copies(request: Request) -> Response:
        text = request.query_params.get("offsets", "")
        if not _OFFSETS.fullmatch(text):
            raise Rejected("bad_query", "offsets must be whole numbers with commas between them", "offsets")
        shard = _shard(holder, request)
        local_copies = {offset: shard.copy(int(offset)) for offset in text.split(",")}
        documents = {offset: asdict(copy[1]) for offset, copy in local_copies.items() if copy is not None}
        return JsonResponse({"copies": documents})

    async def read(request: Request) -> Response:
        span = span_of(request)
        if span is None:
            return problem_response(problem("bad_header", "a header Range: bytes=FIRST-LAST is needed", "Range"))
        shard, offset = _shard(holder, request), request.path_params["offset"]
        local_copy = shard.copy(offset)
        try:
            part = b"" if local_copy is None else await in_thread(read_part, local_copy[0], *span)
        except FileNotFoundError as error:
            raise Unavailable(f"the file of command {offset} is not here any more") from error
        if local_copy is None:
            return problem_response(problem("not_found", f"the file of command {offset} is not here"))
        if not part:
            return Response(status_code=416)
        first = span[0]
        return Response(
            part, 206, {"Content-Range": f"bytes {first}-{first + len(part) - 1}/*"}, "application/octet-stream"
        )

    return [Route(_SHARD, copies), Route(_SHARD + "/{offset:int}", read)]


def _shard(holder: ShardHolder, request: Request) -> Shard:
    shard = holder.shards.get(request.path_params["shard"])
    if shard is None or shard.rebuilding:
        raise Unavailable("this shard has no files here now")
    return shard


def copy_of(document: dict[str, int | str]) -> FileCopy:
    """The description of a copy. Raises Unavailable if the document is not one."""
    try:
        rows, checksum, size, sha256 = (document[name] for name in ("rows", "checksum", "size", "sha256"))
    except (KeyError, TypeError) as error:
        raise Unavailable(f"not what a node says of a file: {document!r:.100}") from error
    match rows, checksum, size, sha256:
        case int(), int() | None, int(), str():
            return FileCopy(rows, checksum, size, sha256)
    raise Unavailable(f"not what a node says of a file: {document!r:.100}")
