"""The audit trail: administrators' acts, and denied requests."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from duemq.cluster.admin.trail import MAX_ENTRIES, TrailEntry
from duemq.model.errors import Rejected
from duemq.proxy.api.endpoint import Service
from duemq.proxy.request.query import read_number, read_query
from duemq.proxy.response.render import times
from duemq.web.json_response import JsonResponse

DEFAULT_ENTRIES: Final = 100


async def get_trail(service: Service, request: Request) -> Response:
    query = read_query(request, ("limit", "cursor"))
    limit = read_number(query, "limit", DEFAULT_ENTRIES, MAX_ENTRIES)
    if (admin := service.access.admin) is None:
        raise Rejected("not_supported", "this server keeps no trail")
    page = await admin.trail.read(limit, query.get("cursor"))
    return JsonResponse({"entries": [entry_json(entry) for entry in page.entries], "cursor": page.cursor})


def entry_json(entry: TrailEntry) -> dict[str, Any]:
    return {
        **times("at", entry.at), "by": entry.by, "from": entry.address, "action": entry.action, "target": entry.target,
        "result": entry.result, "code": entry.code, "request_id": entry.request_id, "times": entry.times,
    }  # fmt: skip
