"""About the server itself: cluster, health, readiness, metrics, the API's description."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from duemq.delay.backend import Backend
from duemq.delay.gateway import Gateway
from duemq.model.adoption import MOST_FILES, MOST_ROWS
from duemq.model.errors import Rejected, Unavailable
from duemq.model.timing import shown
from duemq.proxy.body import header
from duemq.proxy.connections import DRAINING
from duemq.proxy.endpoint import Service
from duemq.proxy.problem import problem, problem_response
from duemq.proxy.reply import JsonResponse

_NODE = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Told(Protocol):
    """What a process tells of itself is read from these: `Service` has them, and so has a node's door."""

    @property
    def gateway(self) -> Gateway | Backend: ...
    @property
    def registry(self) -> CollectorRegistry: ...


async def cluster(service: Told, request: Request) -> Response:
    return JsonResponse(service.gateway.cluster())


async def limits(service: Service, request: Request) -> Response:
    own, adopting = service.ingress.limits, service.adopting
    return JsonResponse({
        "shards": len(service.gateway.cluster()["shards"]), "topics": list(own.topics),
        "max_delay_ms": own.time.max_delay_ms, "max_payload_bytes": own.max_payload_bytes,
        "max_key_bytes": own.max_key_bytes, "max_headers": own.max_headers,
        "max_headers_bytes": own.max_headers_bytes, "max_batch_items": own.max_batch_items,
        "max_batch_bytes": own.max_batch_bytes,
        "adoption": {
            "enabled": adopting.enabled, "max_files": MOST_FILES, "max_file_rows": MOST_ROWS,
            "min_lead_ms": adopting.lead_ms,
        },
    })  # fmt: skip


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


async def healthz(service: Told, request: Request) -> Response:
    return JsonResponse({"status": "ok"})


async def readyz(service: Told, request: Request) -> Response:
    if DRAINING in request.scope:
        return problem_response(problem("closing", "the server was asked to stop: send what is new to another one"))
    if reason := service.gateway.why_not_ready():
        raise Unavailable(reason)
    return JsonResponse({"status": "ready", "targets": service.gateway.troubles()})


async def metrics(service: Told, request: Request) -> Response:
    found = _Collected(service.registry)
    try:
        encode, media_type = choose_encoder(header(request, b"accept") or "")
        text = await asyncio.to_thread(encode, found)  # 1,000 topics are 20,000 lines
    except (TypeError, ValueError):  # a version that is no number
        text, media_type = await asyncio.to_thread(generate_latest, found), CONTENT_TYPE_PLAIN_0_0_4
    return Response(text, headers={"Content-Type": media_type})


class _Collected(Collector):
    """What a registry shows at one moment, to be encoded later."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families = list(registry.collect())

    def collect(self) -> Iterable[Metric]:
        return self._families
