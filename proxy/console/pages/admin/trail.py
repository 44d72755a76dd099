"""The trail: who did or was denied what, to which message, from where, and what came of it; newest first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from duemq.proxy.api.endpoint import Service
from duemq.proxy.api.table import ENDPOINTS
from duemq.proxy.console.api_calls import call_api
from duemq.proxy.console.forms import given
from duemq.proxy.console.views import render
from duemq.proxy.request.query import read_query

_PAGES: Final = {
    "dlq": "messages/", "messages": "messages/", "destinations": "destinations/", "jobs": "jobs/", "topics": "topics/",
    "keys": "keys#",
}  # fmt: skip
_PATH: Final = re.compile(r"(?:[A-Z]+ )?/v1/(\w+)(?:/([^/: ,]+))?(?::[a-z-]+)?((?: [^ ,/]+)*)")


async def get_trail(service: Service, request: Request) -> Response:
    from duemq.proxy.console.endpoints import CONSOLE_ENDPOINTS  # which names this page

    fields = read_query(request, ("cursor",))
    page = await call_api(service, request, "GET", "/v1/trail", {"limit": "100", **given(fields, "cursor")})
    names = {}
    if service.access.keys is not None:
        names = {key.id: key.name for key in service.access.keys.by_id.values()}
    summaries = {f"{one.method} {one.path}": one.summary for one in (*ENDPOINTS, *CONSOLE_ENDPOINTS)}
    entries = [
        one | {"links": list(_links(one["target"])), "summary": summaries.get(one["action"], "")}
        for one in page["entries"]
    ]
    return render(
        request, "admin/trail.html", entries=entries, names=names,
        next=urlencode({"cursor": page["cursor"]}) if page["cursor"] else "",
    )  # fmt: skip


def _links(target: str) -> Iterator[dict[str, Any]]:
    """What a target names that has a page: its text, and the page as from the root of the console."""
    for kind, one, more in _PATH.findall(target):
        for name in ([one] if one else []) + more.split():
            if kind in _PAGES and not (kind == "dlq" and name == "topics"):
                yield {"text": name, "page": _PAGES[kind] + name}
