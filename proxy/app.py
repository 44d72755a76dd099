"""The HTTP API as an ASGI application: request ids, pages of others, API keys, routing, problem documents.

Handlers are plain functions of (service, request) and answer with finished bytes. There is no middleware stack: all of
what it would do fits in one call, and this is a hot path.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from duemq.cluster.admin.api_keys import ApiKeys
from duemq.cluster.admin.jobs import Jobs
from duemq.model.access import EVERYTHING
from duemq.model.errors import Rejected, Unavailable
from duemq.model.timing import shown
from duemq.proxy.access import GRANT, Access
from duemq.proxy.api.endpoint import Router, Service
from duemq.proxy.api.table import ENDPOINTS
from duemq.proxy.gateway.base import Gateway
from duemq.proxy.request.ingress import Ingress
from duemq.storage.imports.policy import ImportPolicy
from duemq.web.admission import Admission
from duemq.web.body import header
from duemq.web.exchange import respond
from duemq.web.problem import problem, problem_response, rejection, unavailable_response
from duemq.web.request_id import RequestIds
from duemq.web.same_origin import SameOrigin
from duemq.web.settings import HttpSettings

log = logging.getLogger("duemq.http")

_METHODS = ", ".join(sorted({endpoint.method for endpoint in ENDPOINTS} | {"HEAD", "OPTIONS"}))


def create_app(
    gateway: Gateway,
    ingress: Ingress,
    settings: HttpSettings,
    registry: CollectorRegistry,
    clock: Callable[[], int],
    closing: asyncio.Event,
    importing: ImportPolicy | None = None,
    api_keys: ApiKeys | None = None,
    jobs: Jobs | None = None,
) -> Application:
    """The application. `clock` gives epoch ms. `importing`: what files may be imported; None: none. `api_keys`: None:
    there are those of the settings alone. `jobs`: None: there are none.

    Set `closing` before the server stops: then long polls answer at once and event streams end.
    """
    max_wait_ms = int(settings.max_wait_s * 1000)
    keys_needed = settings.access == "keys"
    access = Access(settings.api_keys, clock, api_keys, required=keys_needed)
    service = Service(
        gateway, ingress, registry, clock, closing, max_wait_ms, access, importing or ImportPolicy(), jobs
    )
    # Without a key nobody gets further, by whatever name he calls.
    same_origin = SameOrigin(settings.hosts, settings.origins, any_host=keys_needed or bool(settings.api_keys))
    return Application(service, Admission(settings.max_requests, settings.max_inflight_bytes), same_origin)


class Application:
    """See `create_app`."""

    def __init__(self, service: Service, admission: Admission, same_origin: SameOrigin) -> None:
        self._service, self.admission, self._same_origin = service, admission, same_origin
        self._router = Router(ENDPOINTS)
        self._next_id = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the application serves HTTP only, not {scope['type']}")
        request_id = self._next_id()
        try:
            share = self.admission.enter(scope)
        except Unavailable as error:
            response = unavailable_response(error)
            response.raw_headers.append((b"x-request-id", request_id))
            await response(scope, receive, send)
            return
        try:
            await self._serve(request_id, scope, receive, send)
        finally:
            share.close()

    async def _serve(self, request_id: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except Rejected as error:
            response = problem_response(rejection(error))
        except Unavailable as error:
            response = unavailable_response(error)
        except ClientDisconnect:
            return
        except Exception:
            name = request_id.decode()
            log.exception(
                "request %s failed: %s %s", name, scope["method"], shown(scope["path"]), extra={"action": "http.failed"}
            )
            response = problem_response(problem("internal", f"the server failed; its log has more under {name}"))
        response.raw_headers.append((b"x-request-id", request_id))
        if log.isEnabledFor(logging.DEBUG):
            _log_access(request, response, request_id.decode())
        await respond(response, scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        self._same_origin.check(request.scope)
        grant = EVERYTHING
        if request.scope["path"].startswith("/v1/"):
            granted = self._service.access.grant(request)
            if granted is None:
                detail = "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY"
                return problem_response(problem("unauthorised", detail), {"WWW-Authenticate": "Bearer"})
            request.scope[GRANT] = grant = granted
        match = self._router.find(request, grant)
        if match.handler is not None:
            return await match.handler(self._service, request)
        method, path = request.scope["method"], request.scope["path"]
        if method == "OPTIONS" and path == "*":  # about the server as a whole (RFC 9110, 9.3.7)
            return Response(status_code=204, headers={"Allow": _METHODS})
        if match.allowed:
            allowed = ", ".join(match.allowed)
            return problem_response(
                problem("method_not_allowed", f"{method} is not a method of this path, which knows {allowed}"),
                {"Allow": allowed},
            )
        return problem_response(
            problem("not_found", f"there is nothing at {path[:200]}; /openapi.json names every path")
        )


def _log_access(request: Request, response: Response, request_id: str) -> None:
    log.debug(
        "request %s: %s %s answered %d",
        request_id,
        request.method,
        shown(request.scope["path"]),
        response.status_code,
        extra={"action": "http.request", "client_request_id": header(request, b"x-request-id")},
    )
