"""Lists delay files, by window."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.timing import parse_instant
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.forms import instant_text
from duemq.proxy.console.views import render
from duemq.proxy.request.query import read_query

_ROWS: Final = 300  # more than there can be shards, so that each page has more than one window


async def get_files(service: Service, request: Request) -> Response:
    """List the windows from a time on; by default from the first window."""
    text = read_query(request, ("from",)).get("from", "")
    first = parse_instant(instant_text(text), "from", text=True) if text else 0
    windows = list(await service.gateway.sealed_windows(first, _ROWS + 1))
    more = windows[_ROWS:]
    now = service.history.now
    return render(
        request, "cluster/files.html", windows=windows[:_ROWS], first=text, sealed=now.total("sealed"),
        files=now.total("delay_files"), next=urlencode({"from": more[0].window}) if more else "",
    )  # fmt: skip
