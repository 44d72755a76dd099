"""Endpoints about the server: its limits, its state, and draining of nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.callers.access import Grant
from duemq.model.errors import Rejected
from duemq.model.frames.frame import PROTOCOL
from duemq.model.messages.import_command import MAX_FILES, MAX_ROWS
from duemq.model.readiness import Readiness, Reason
from duemq.model.timing import shown
from duemq.model.topics.topic_patterns import topic_matcher
from duemq.proxy.access import GRANT, batch_bytes_of
from duemq.proxy.api.endpoint import Service
from duemq.web import probes
from duemq.web.body import header
from duemq.web.json_response import JsonResponse
from duemq.web.problem import problem, problem_response

_NODE = re.compile(r"[A-Za-z0-9._-]{1,128}")


async def root(service: Service, request: Request) -> Response:
    """Redirect browsers to the console, and return the paths to programs. The paths are relative, because a proxy may
    add a prefix."""
    if "text/html" in (header(request, b"accept") or "").lower():
        response = Response(status_code=303, headers={"Location": "console/"})
    else:
        response = JsonResponse({"console": "console/", "openapi": "openapi.json"})
    response.raw_headers += [(b"vary", b"accept"), (b"cache-control", b"no-store")]
    return response


async def limits(service: Service, request: Request) -> Response:
    own, importing = service.ingress.limits, service.importing
    grant: Grant = request.scope[GRANT]
    return JsonResponse({
        "shards": len(service.gateway.cluster()["shards"]), "topics": _topics(own.topics, grant),
        "max_delay_ms": own.time.max_delay_ms, "max_payload_bytes": own.max_payload_bytes,
        "max_key_bytes": own.max_key_bytes, "max_headers": own.max_headers,
        "max_headers_bytes": own.max_headers_bytes, "max_batch_items": own.max_batch_items,
        "max_batch_bytes": batch_bytes_of(request, own.max_batch_bytes),
        "imports": {
            "enabled": importing.enabled, "max_files": MAX_FILES, "max_file_rows": MAX_ROWS,
            "min_lead_ms": importing.lead_ms,
        },
        "now_ms": service.clock(),
    })  # fmt: skip


async def frames(service: Service, request: Request) -> Response:
    """Answer a request that does not ask for the upgrade. The connection itself accepts upgrades before requests are
    routed."""
    protocol = PROTOCOL.decode()
    document = problem("upgrade_required", f"this path speaks {protocol}: docs/reference/frames.md")
    return problem_response(document, {"Upgrade": protocol, "Connection": "upgrade"})


def _topics(allowed: Sequence[str], grant: Grant) -> list[str]:
    """The topics and patterns that the caller may send to; none: any topic."""
    if not grant.topics:
        return list(allowed)
    matches = topic_matcher(allowed) if allowed else (lambda pattern: True)
    own = [pattern for pattern in grant.topics if matches(pattern)]
    return own + [pattern for pattern in allowed if pattern not in own and grant.covers(pattern)] or list(grant.topics)


async def readyz(service: Service, request: Request) -> Response:
    if service.access.why_not_ready() is not None:
        return probes.ready_response(Readiness(Reason.KEYS_UNKNOWN))
    return await probes.readyz(service, request)


async def drain_node(service: Service, request: Request) -> Response:
    name = _node_of(request)
    await service.gateway.drain(name)
    nodes = service.gateway.cluster()["nodes"]
    busy = any(node["name"] == name and node["master_of"] for node in nodes)
    return JsonResponse({"name": name, "draining": True}, 202 if busy else 200)


async def resume_node(service: Service, request: Request) -> Response:
    name = _node_of(request)
    await service.gateway.resume(name)
    return JsonResponse({"name": name, "draining": False})


def _node_of(request: Request) -> str:
    name: str = request.path_params["node"]
    if not _NODE.fullmatch(name):
        raise Rejected("unknown_node", f"there is no node {shown(name)}", "node")
    return name
