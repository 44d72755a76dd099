"""A node's internal HTTP: proxies read the node's shards here, and operators its health and metrics.

It must be reachable only from inside the cluster. If a token is set, requests to `/internal/` must have it. Requests
from browsers are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from hmac import compare_digest
from typing import Any, NamedTuple

import orjson
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from duemq.cluster.shards.codec import (
    NAMES,
    READS_HEADER,
    TOKEN_HEADER,
    import_to_json,
    named_message_to_json,
    query_from_json,
    search_part_to_json,
    state_to_json,
)
from duemq.cluster.shards.paging import shorten
from duemq.delay.node_backend import NodeBackend
from duemq.model.errors import Rejected, Unavailable
from duemq.model.messages.key import KEY_BYTES
from duemq.web import probes
from duemq.web.admission.admission import Admission, AdmissionMiddleware
from duemq.web.body import read_body
from duemq.web.json_response import JsonResponse, in_slices
from duemq.web.problem import problem, problem_response, rejection, unavailable_response

_INTERNAL = "/internal/"
_BROWSER = frozenset((b"origin", b"sec-fetch-site"))
_SEARCH_BYTES = 1 << 20
_KEYS_BYTES = 4 << 20  # four times the size of 10,000 keys in hexadecimal
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def create_internal_app(
    backend: NodeBackend,
    registry: CollectorRegistry,
    token: str = "",
    more: Sequence[BaseRoute] = (),
    admission: Admission | None = None,
) -> ASGIApp:
    """The application. `more`: further routes below `/internal/`, such as those for snapshots."""
    reads = _Reads(backend)
    about = _About(backend, registry)
    shard = "/internal/shards/{shard:int}"
    app = Starlette(
        routes=[
            Route(f"{shard}/state", reads.state),
            Route(f"{shard}/names", reads.names, methods=["POST"]),
            Route(f"{shard}/ended", reads.ended, methods=["POST"]),
            Route(f"{shard}/topics", reads.topics, methods=["POST"]),
            Route(f"{shard}/topic-count", reads.topic_count),
            Route(f"{shard}/holder", reads.holder),
            Route(f"{shard}/import", reads.import_record),
            Route(f"{shard}/imports", reads.imports),
            Route(f"{shard}/imported-ids", reads.imported_ids),
            Route("/internal/search", reads.search, methods=["POST"]),
            Route("/internal/figures", reads.figures),
            Route("/internal/windows", reads.windows),
            *more,
            Route("/v1/cluster", partial(probes.cluster, about)),
            Route("/livez", partial(probes.livez, about)),
            Route("/healthz", partial(probes.healthz, about)),
            Route("/readyz", partial(probes.readyz, about)),
            Route("/metrics", partial(probes.metrics, about)),
        ],
        exception_handlers={Rejected: _on_rejected, Unavailable: _on_unavailable},
    )
    return AdmissionMiddleware(_Guard(app, token.encode()), admission or Admission())


class _Guard:
    """Refuses requests from browsers and, if a token is set, requests without it."""

    def __init__(self, app: ASGIApp, token: bytes) -> None:
        self._app, self._token, self._header = app, token, TOKEN_HEADER.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_INTERNAL):
            headers = dict(scope["headers"])
            if not _BROWSER.isdisjoint(headers):
                detail = "this is for proxies and nodes of the cluster, not for browsers"
                await problem_response(problem("foreign_origin", detail))(scope, receive, send)
                return
            if self._token and not compare_digest(headers.get(self._header, b""), self._token):
                detail = "this is for proxies and nodes of the cluster: node.token differs"
                challenge = {"WWW-Authenticate": f'{TOKEN_HEADER} realm="duemq"'}
                await problem_response(problem("unauthorised", detail), challenge)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Reads:
    """See `ShardReader`."""

    def __init__(self, backend: NodeBackend) -> None:
        self._reader, self._backend = backend.reader, backend

    async def state(self, request: Request) -> Response:
        state = await self._reader.state(_shard(request), _key(request), _offset(request))
        return JsonResponse({"state": None if state is None else state_to_json(state, names=_reads_names(request))})

    async def names(self, request: Request) -> Response:
        try:
            document = orjson.loads(await read_body(request, _KEYS_BYTES))
            names, offset = [bytes.fromhex(name) for name in document["names"]], document["offset"]
            if offset is not None:
                offset = int(offset)
        except (ValueError, KeyError, TypeError) as error:
            raise Rejected("bad_json", f"not a list of names: {error}") from error
        messages = await self._reader.messages_by_name(_shard(request), names, offset)
        return JsonResponse({"named": [named_message_to_json(one, names=_reads_names(request)) for one in messages]})

    async def ended(self, request: Request) -> Response:
        keys = await _first_keys(request)
        return JsonResponse({"at": await self._reader.when_ended(_shard(request), keys, _offset(request))})

    async def topics(self, request: Request) -> Response:
        keys = await _first_keys(request)
        return JsonResponse({"topics": await self._reader.topics(_shard(request), keys, _offset(request))})

    async def topic_count(self, request: Request) -> Response:
        counted = await self._reader.topic_count(_shard(request), request.query_params.get("topic", ""))
        return JsonResponse({"pending": None} if counted is None else counted._asdict())

    async def holder(self, request: Request) -> Response:
        first_key = await self._reader.holder(_shard(request), _hex(request, "name"))
        return JsonResponse({"first_key": None if first_key is None else first_key.hex()})

    async def import_record(self, request: Request) -> Response:
        shard, offset = _shard(request), _offset(request)
        if sha256 := _hex(request, "sha256"):
            record = await self._reader.import_of(shard, sha256.hex(), offset)
        else:
            record = await self._reader.import_record(shard, _offset(request, "wanted"), offset)
        return JsonResponse({"import": None if record is None else import_to_json(record)})

    async def imports(self, request: Request) -> Response:
        query = request.query_params
        limit = _offset(request, "limit") if "limit" in query else None
        start = _offset(request, "start") if "start" in query else None
        after = None if start is None else start - 1
        below = query.get("below", "")
        count, records = await self._reader.imports(_shard(request), query.get("state"), below, limit, after)
        return JsonResponse({"count": count, "imports": await in_slices(records, import_to_json)})

    async def imported_ids(self, request: Request) -> Response:
        command_offset, first, most = (_offset(request, name) for name in ("wanted", "first", "most"))
        ids = await self._reader.imported_ids(_shard(request), command_offset, first, most)
        return JsonResponse({"ids": None if ids is None else ids.decode()})

    async def search(self, request: Request) -> Response:
        try:
            document = orjson.loads(await read_body(request, _SEARCH_BYTES))
            query = query_from_json(document["query"])
            after = {int(shard): bytes.fromhex(key) for shard, key in document["after"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Rejected("bad_json", f"not a search: {error}") from error
        parts = shorten(await self._reader.search(query, after), query.limit)
        names = _reads_names(request)
        return JsonResponse({str(shard): search_part_to_json(part, names=names) for shard, part in parts.items()})

    async def figures(self, request: Request) -> Response:
        return JsonResponse([one.to_json() for one in await self._backend.figures()])

    async def windows(self, request: Request) -> Response:
        first, most = _offset(request, "first"), _offset(request, "most")
        return JsonResponse([list(one) for one in await self._backend.sealed_windows(first, most)])


class _About(NamedTuple):
    """See `ProbeSource`."""

    gateway: NodeBackend
    registry: CollectorRegistry


def _reads_names(request: Request) -> bool:
    return request.headers.get(READS_HEADER) == NAMES


def _shard(request: Request) -> int:
    shard: int = request.path_params["shard"]
    return shard


def _offset(request: Request, name: str = "offset") -> int:
    text = request.query_params.get(name, "")
    if not _NUMBER.fullmatch(text):
        raise Rejected("bad_query", f"{name} must be a whole number", name)
    return int(text)


def _hex(request: Request, name: str) -> bytes:
    try:
        return bytes.fromhex(request.query_params.get(name, ""))
    except ValueError as error:
        raise Rejected("bad_query", f"{name} must be hexadecimal", name) from error


def _key(request: Request) -> bytes:
    key = _hex(request, "first_key")
    if len(key) != KEY_BYTES:
        raise Rejected("bad_query", f"first_key must have {KEY_BYTES} bytes", "first_key")
    return key


async def _first_keys(request: Request) -> list[bytes]:
    try:
        keys = [bytes.fromhex(key) for key in orjson.loads(await read_body(request, _KEYS_BYTES))["first_keys"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Rejected("bad_json", f"not a list of keys: {error}") from error
    if any(len(key) != KEY_BYTES for key in keys):
        raise Rejected("bad_json", f"first_keys must have {KEY_BYTES} bytes each", "first_keys")
    return keys


async def _on_rejected(request: Request, error: Any) -> Response:
    return problem_response(rejection(error))


async def _on_unavailable(request: Request, error: Any) -> Response:
    return unavailable_response(error)
