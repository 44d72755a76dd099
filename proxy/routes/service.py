"""About the server itself: cluster, health, readiness, metrics, the API's description."""

from __future__ import annotations

import re

from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from duemq.model.errors import Rejected, Unavailable
from duemq.model.timing import shown
from duemq.proxy.body import header
from duemq.proxy.endpoint import Service
from duemq.proxy.reply import JsonResponse

_NODE = re.compile(r"[A-Za-z0-9._-]{1,128}")


async def cluster(service: Service, request: Request) -> Response:
    return JsonResponse(service.gateway.cluster())


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


async def healthz(service: Service, request: Request) -> Response:
    return JsonResponse({"status": "ok"})


async def readyz(service: Service, request: Request) -> Response:
    if reason := service.gateway.why_not_ready():
        raise Unavailable(reason)
    return JsonResponse({"status": "ready"})


async def metrics(service: Service, request: Request) -> Response:
    encode, media_type = choose_encoder(header(request, b"accept") or "")
    return Response(encode(service.registry), headers={"Content-Type": media_type})
