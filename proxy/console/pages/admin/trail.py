"""The trail: who did or was denied what, from where, and what came of it; newest first."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.api_calls import call_api
from duemq.proxy.console.forms import given
from duemq.proxy.console.views import render
from duemq.proxy.request.query import read_query


async def get_trail(service: Service, request: Request) -> Response:
    fields = read_query(request, ("cursor",))
    page = await call_api(service, request, "GET", "/v1/trail", {"limit": "100", **given(fields, "cursor")})
    names = {}
    if service.access.keys is not None:
        names = {key.id: key.name for key in service.access.keys.by_id.values()}
    return render(
        request, "admin/trail.html", entries=page["entries"], names=names,
        next=urlencode({"cursor": page["cursor"]}) if page["cursor"] else "",
    )  # fmt: skip
