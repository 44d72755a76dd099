"""The console: HTML pages at `/console`, rendered by the same server as the API.

The application has already determined the caller's grant, and has refused requests from other sites' pages.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Final
from urllib.parse import urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from duemq.model.callers.access import Scope
from duemq.model.errors import OutcomeUnknown, Rejected, Unavailable
from duemq.proxy.api.endpoint import Router, Service
from duemq.proxy.console.caller import grant_of
from duemq.proxy.console.endpoints import CONSOLE_ENDPOINTS, PREFIX
from duemq.proxy.console.live import MEDIA_TYPE as EVENTS
from duemq.proxy.console.pages.problems import counters
from duemq.proxy.console.views import COUNTERS, DOCS_URL, is_partial, redirect, render
from duemq.proxy.rate_limit import RateLimited
from duemq.web.problem import CODES

log = logging.getLogger(__name__)

# Only resources from this server: no inline scripts or styles, no frames, no other targets for forms.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


@cache
def _router() -> Router:
    return Router(CONSOLE_ENDPOINTS)


async def answer(service: Service, request: Request) -> tuple[Response, str | None]:
    """The response to a request below `/console`, including errors, and the path of the route if the trail must record
    the request."""
    audited: list[str] = []
    try:
        response = await _answer(service, request, audited)
    except Rejected as error:
        response = _refusal(request, error)
    except Unavailable as error:
        response = _notice(request, CODES[error.code].status, CODES[error.code].title, error.detail)
        if not isinstance(error, OutcomeUnknown):
            response.headers["Retry-After"] = str(error.retry_after_s)
    except RateLimited as error:
        response = _notice(request, 429, CODES["rate_limited"].title, str(error))
        response.headers["Retry-After"] = str(error.retry_after_s)
    except ClientDisconnect:
        raise
    except Exception:
        log.exception("the console failed: %s", request.scope["path"][:200], extra={"action": "http.failed"})
        response = _notice(request, 500, "A fault in the server", "Its log has more.")
    response.raw_headers += _HEADERS
    if all(name != b"cache-control" for name, _ in response.raw_headers):
        response.raw_headers.append((b"cache-control", b"no-store"))
    return response, audited[0] if audited else None


async def _answer(service: Service, request: Request, audited: list[str]) -> Response:
    path: str = request.scope["path"]
    if path == PREFIX:  # relative, because a proxy may have added a prefix
        return Response(status_code=308, headers={"Location": PREFIX.removeprefix("/") + "/"})
    request.scope[DOCS_URL] = service.console.docs_url
    match = _router().open(request, _router().find(request), grant_of(request))
    if match.audited is not None:
        audited.append(match.audited)
    if match.handler is not None:
        if grant_of(request).allows(Scope.READ) and "assets/" not in path and not is_partial(request):
            await service.fresh_letters.refresh()
            request.scope[COUNTERS] = counters(service, grant_of(request))
        return await match.handler(service, request)
    if match.allowed:
        response = _notice(request, 405, "Method not allowed on this page", f"It allows {', '.join(match.allowed)}.")
        response.headers["Allow"] = ", ".join(match.allowed)
        return response
    raise Rejected("not_found", "There is no such page.")


def _refusal(request: Request, error: Rejected) -> Response:
    if error.code == "forbidden" and not grant_of(request).scopes:
        if request.method == "GET" and not is_partial(request) and request.headers.get("accept") != EVENTS:
            return redirect(request, f"login?{urlencode({'next': _page_of(request)})}")
        return _notice(request, 401, "Sign in first", "This page needs an API key or an account.")
    status, title = CODES[error.code]
    return _notice(request, status, title, error.detail)


def _page_of(request: Request) -> str:
    """The page that a request is for, relative to the root of the console."""
    path, query = request.scope["path"].removeprefix(f"{PREFIX}/"), request.scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _notice(request: Request, status: int, title: str, detail: str) -> Response:
    return render(request, "notice.html", status, title=title, detail=detail)
