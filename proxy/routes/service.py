"""About the server itself: cluster, health, readiness, metrics, the API's description."""

from __future__ import annotations

from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from duemq.model.errors import Unavailable
from duemq.proxy.body import header
from duemq.proxy.endpoint import Service
from duemq.proxy.reply import JsonResponse


async def cluster(service: Service, request: Request) -> Response:
    return JsonResponse(service.gateway.cluster())


async def healthz(service: Service, request: Request) -> Response:
    return JsonResponse({"status": "ok"})


async def readyz(service: Service, request: Request) -> Response:
    if reason := service.gateway.why_not_ready():
        raise Unavailable(reason)
    return JsonResponse({"status": "ready"})


async def metrics(service: Service, request: Request) -> Response:
    encode, media_type = choose_encoder(header(request, b"accept") or "")
    return Response(encode(service.registry), headers={"Content-Type": media_type})
