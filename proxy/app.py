"""The HTTP API as an ASGI application: request ids, same-origin checks, API keys, routing, problem documents.

Handlers are plain functions of (service, request) that return a response as finished bytes. There is no middleware
stack, because this is a hot path, and one call can do all of that work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from duemq.cluster.admin.administration import Administration
from duemq.cluster.admin.trail import TrailEntry
from duemq.model.callers.access import EVERYTHING, NOTHING, Grant
from duemq.model.errors import BadConfig, Rejected, Unavailable
from duemq.model.settings import networks_of
from duemq.model.timing import shown
from duemq.proxy.access import GRANT, TOUCHED, UNCHANGED, Access, caller_name
from duemq.proxy.api.endpoint import FoundRoute, Router, Service
from duemq.proxy.fresh_letters import FreshLetters
from duemq.proxy.gateway.base import Gateway
from duemq.proxy.gateway.limited_gateway import LimitedGateway
from duemq.proxy.history import History
from duemq.proxy.login.settings import LoginSettings
from duemq.proxy.rate_limit import RATE_LIMIT, RateLimited
from duemq.proxy.relay_access import RelayAccess
from duemq.proxy.request.ingress import Ingress
from duemq.proxy.response.ending import Endings
from duemq.proxy.settings import ConsoleSettings
from duemq.proxy.table import ENDPOINTS
from duemq.storage.imports.policy import ImportPolicy
from duemq.web.admission.admission import Admission, share_of
from duemq.web.body import header
from duemq.web.connection.exchange import respond
from duemq.web.problem import problem, problem_response, rejection, unavailable_response
from duemq.web.public_scheme import PublicScheme
from duemq.web.request_id import RequestIds
from duemq.web.same_origin import SameOrigin
from duemq.web.settings import HttpSettings

if TYPE_CHECKING:
    from duemq.proxy.login.tokens import Issuer

log = logging.getLogger("duemq.http")

_AUDITED = "duemq.audited"  # key in a request's scope: the path of an audited endpoint
_DENIED = frozenset((401, 403))
_MAYBE_DONE = frozenset((500, 504))
_METHODS = ", ".join(sorted({endpoint.method for endpoint in ENDPOINTS} | {"HEAD", "OPTIONS"}))


def create_app(
    gateway: Gateway,
    ingress: Ingress,
    settings: HttpSettings,
    registry: CollectorRegistry,
    clock: Callable[[], int],
    closing: asyncio.Event,
    importing: ImportPolicy | None = None,
    admin: Administration | None = None,
    login: LoginSettings | None = None,
    console: ConsoleSettings | None = None,
    relay: RelayAccess | None = None,
) -> Application:
    """Create the application. `clock` returns epoch ms. `importing`: which files may be imported; None: no files.
    `admin` None: only the keys in the settings are valid, and there is no trail. `login`: the issuer of tokens.
    `relay` None: test messages cannot be sent.

    Set `closing` before the server stops, so that long polls answer at once and event streams end.
    """
    max_wait_ms = int(settings.max_wait_s * 1000)
    keys_needed = settings.access == "keys"
    issuer = _issuer_of(login)
    access = Access(settings.api_keys, clock, admin, issuer, required=keys_needed, read_consumes=settings.read_consumes)
    endings = Endings(closing, access.is_granted)
    if admin is not None:
        for kind in ("keys", "sessions"):  # only changes of these end a grant
            admin.log.on_change(endings.check, kind)
    service = Service(
        gateway, ingress, registry, clock, closing, endings, max_wait_ms, access, History(gateway, clock),
        console or ConsoleSettings(), importing or ImportPolicy(), relay=relay or RelayAccess(),
        fresh_letters=FreshLetters(gateway, ingress.limits.purgeable, clock),
    )  # fmt: skip
    # No Host check is needed if every request must carry a key.
    same_origin = SameOrigin(settings.hosts, settings.origins, any_host=access.asks_for_keys)
    admission = Admission(settings.max_requests, settings.max_inflight_bytes)
    public_scheme = PublicScheme(login.url if login else "", networks_of(settings.trusted_proxies))
    return Application(service, admission, same_origin, public_scheme, open_metrics=settings.open_metrics)


def _issuer_of(login: LoginSettings | None) -> Issuer | None:
    if login is None or not login.issuer:
        return None
    try:
        from duemq.proxy.login.tokens import Issuer
    except ModuleNotFoundError as error:
        raise BadConfig(
            f"login.issuer needs {error.name}, which is not installed: pip install 'duemq[login]'"
        ) from error
    return Issuer(login)


class Application:
    """See `create_app`."""

    def __init__(
        self, service: Service, admission: Admission, same_origin: SameOrigin, public_scheme: PublicScheme, *,
        open_metrics: bool = False,
    ) -> None:  # fmt: skip
        self.service, self.admission, self._same_origin = service, admission, same_origin
        self._public_scheme = public_scheme
        self.history, self.consumer_names = service.history, service.consumer_names
        self._router = Router(ENDPOINTS)
        self._open = frozenset(("/metrics",) if open_metrics else ())  # endpoints that need no key on this server
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
        code = ""
        try:
            response = await self._answer(request)
        except Rejected as error:
            code = error.code
            headers = {"WWW-Authenticate": "Bearer"} if code == "unauthorised" else None
            response = problem_response(rejection(error), headers)
        except Unavailable as error:
            response = unavailable_response(error)
        except RateLimited as error:
            response = problem_response(problem("rate_limited", str(error)), {"Retry-After": str(error.retry_after_s)})
        except ClientDisconnect:
            return
        except Exception:
            name = request_id.decode()
            log.exception(
                "request %s failed: %s %s", name, scope["method"], shown(scope["path"]), extra={"action": "http.failed"}
            )
            response = problem_response(problem("internal", f"the server failed; its log has more under {name}"))
        if (_AUDITED in scope and UNCHANGED not in scope) or response.status_code in _DENIED:
            await self._record(request, response.status_code, code, request_id.decode())
        response.raw_headers.append((b"x-request-id", request_id))
        response.raw_headers += self._same_origin.shares_with(scope)
        if not scope["path"].startswith("/console"):  # the console's pages set this header themselves
            response.raw_headers.append((b"x-content-type-options", b"nosniff"))
        if response.status_code >= 400 and all(name != b"cache-control" for name, _ in response.raw_headers):
            response.raw_headers.append((b"cache-control", b"no-store"))
        if (limit := scope.get(RATE_LIMIT)) is not None:
            response.raw_headers += limit.headers()
        if log.isEnabledFor(logging.DEBUG):
            _log_access(request, response, request_id.decode())
        await respond(response, scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        self._same_origin.check(request.scope)
        if (preflight := self._same_origin.preflight(request.scope)) is not None:
            return preflight
        grant = EVERYTHING
        access, path = self.service.access, request.scope["path"]
        if path.startswith("/console"):
            request.scope["scheme"] = self._public_scheme.of(request.scope)  # cookies depend on the scheme
            request.scope[GRANT] = grant = access.grant(request) or await access.token_grant(request) or NOTHING
            if grant is NOTHING:
                await _admit_stranger(request)
            return await self._answer_console(request, self._limited(request, grant))
        target = self._router.find(request)
        is_closed = path.startswith("/v1/") if target is None else target.scope is not None and path not in self._open
        if is_closed:
            granted = access.grant(request) or await access.token_grant(request)
            if granted is None:
                await share_of(request).wait_as_stranger(_address(request))
                detail = "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY"
                raise Rejected("unauthorised", detail)
            request.scope[GRANT] = grant = granted
            if grant.topics or grant.rate:
                return await self._route(request, target, grant, self._limited(request, grant))
        else:
            await _admit_stranger(request)
        return await self._route(request, target, grant, self.service)

    async def _answer_console(self, request: Request, service: Service) -> Response:
        # Imported when the first page is requested, because most processes never show one.
        from duemq.proxy.console.app import answer

        response, audited = await answer(service, request)
        if audited is not None:
            request.scope[_AUDITED] = audited
        return response

    def _limited(self, request: Request, grant: Grant) -> Service:
        """The service restricted to the caller's topics and rate."""
        if not grant.topics and not grant.rate:
            return self.service
        limit = self.service.access.rate_limit(grant)
        if limit is not None:
            request.scope[RATE_LIMIT] = limit
            limit.enter()
        gateway = LimitedGateway(self.service.gateway, grant, limit.charge if limit else lambda _: None)
        return replace(self.service, gateway=gateway)

    async def _route(self, request: Request, target: FoundRoute | None, grant: Grant, service: Service) -> Response:
        match = self._router.open(request, target, grant)
        if match.audited is not None:
            request.scope[_AUDITED] = match.audited
        if match.handler is not None:
            return await match.handler(service, request)
        method, path = request.scope["method"], request.scope["path"]
        if method == "OPTIONS" and path == "*":  # about the server as a whole (RFC 9110, 9.3.7)
            return Response(status_code=204, headers={"Allow": _METHODS})
        if match.allowed:
            allowed = ", ".join(match.allowed)
            return problem_response(
                problem("method_not_allowed", f"{method} is not a method of this path, which knows {allowed}"),
                {"Allow": allowed},
            )
        hint = "a slash in the name of a message is %2F; " if path.startswith(("/v1/messages/", "/v1/dlq/")) else ""
        return problem_response(
            problem("not_found", f"there is nothing at {path[:200]}; {hint}/openapi.json names every path")
        )

    async def _record(self, request: Request, status: int, code: str, request_id: str) -> None:
        """Record an act or a denial in the trail. An act whose outcome is unknown is recorded as done."""
        if (admin := self.service.access.admin) is None:
            return
        scope = request.scope
        by, path = caller_name(request), scope["path"]
        action = f"{scope['method']} {scope.get(_AUDITED, path)}"
        target = ", ".join(scope.get(TOUCHED, ())) or path
        entry = TrailEntry(self.service.clock(), by, _address(request), action, target, status, code, request_id)
        if status < 400 or status in _MAYBE_DONE:
            await admin.trail.act(entry)
        else:
            admin.trail.deny(entry)


async def _admit_stranger(request: Request) -> None:
    share, address = share_of(request), _address(request)
    await share.wait_as_stranger(address)
    share.count_as_stranger(address)


def _address(request: Request) -> str:
    """The caller's IP address, or an empty string if the connection has none (a Unix socket)."""
    client = request.scope.get("client")
    return client[0] if client else ""


def _log_access(request: Request, response: Response, request_id: str) -> None:
    log.debug(
        "request %s: %s %s answered %d",
        request_id,
        request.method,
        shown(request.scope["path"]),
        response.status_code,
        extra={"action": "http.request", "client_request_id": header(request, b"x-request-id")},
    )
