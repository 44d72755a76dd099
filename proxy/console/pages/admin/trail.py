"""The trail: acts and denials, each with its caller, target, address and result; newest first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from duemq.proxy.api.endpoint import Endpoint, Service, route_path
from duemq.proxy.console.api_calls import call_api
from duemq.proxy.console.forms import given
from duemq.proxy.console.views import render
from duemq.proxy.request.query import read_query
from duemq.proxy.table import ENDPOINTS

_PAGES: Final = {
    "dlq": "messages/", "messages": "messages/", "destinations": "destinations/", "jobs": "jobs/", "topics": "topics/",
    "keys": "keys#",
}  # fmt: skip
_PATH: Final = re.compile(r"(?:[A-Z]+ )?/v1/(\w+)(?:/([^/: ,]+))?(?::[a-z-]+)?((?: [^ ,/]+)*)")


async def get_trail(service: Service, request: Request, pages: Iterable[Endpoint]) -> Response:
    """The page of the trail. `pages`: the endpoints of the console, whose summaries describe the recorded requests."""
    fields = read_query(request, ("cursor",))
    page = await call_api(service, request, "GET", "/v1/trail", {"limit": "100", **given(fields, "cursor")})
    names = {}
    if service.access.keys is not None:
        names = {key.id: key.name for key in service.access.keys.by_id.values()}
    summaries = {f"{one.method} {one.path}": one.summary for one in (*ENDPOINTS, *pages)}
    entries = [
        one
        | {"links": list(_links(one["target"])), "summary": _summary(one["target"]) or summaries.get(one["action"], "")}
        for one in page["entries"]
    ]
    return render(
        request, "admin/trail.html", entries=entries, names=names,
        next=urlencode({"cursor": page["cursor"]}) if page["cursor"] else "",
    )  # fmt: skip


@cache
def _routes() -> list[tuple[re.Pattern[str], str]]:
    return [
        (re.compile(rf"{one.method} {compile_path(route_path(one.path))[0].pattern.strip('^$')}"), one.summary)
        for one in ENDPOINTS
    ]


def _summary(target: str) -> str:
    """A summary of the first call in a target; empty if the target is the path of a form."""
    call = " ".join(target.partition(",")[0].split(" ")[:2])
    return next((summary for pattern, summary in _routes() if pattern.fullmatch(call)), "")


def _links(target: str) -> Iterator[dict[str, Any]]:
    """The items in a target that have pages: for each, its text and its page, relative to the root of the console."""
    for kind, one, more in _PATH.findall(target):
        for name in ([one] if one else []) + more.split():
            if kind in _PAGES and not (kind == "dlq" and name == "topics"):
                yield {"text": name, "page": _PAGES[kind] + name}
