"""The table of endpoints, which routes requests and produces the OpenAPI document."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import unquote

from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path

from duemq.model.callers.access import Grant, Scope
from duemq.model.errors import OutcomeUnknown, Rejected, Unavailable
from duemq.model.timing import shown
from duemq.proxy.access import Access
from duemq.proxy.fresh_letters import FreshLetters
from duemq.proxy.gateway.base import Gateway
from duemq.proxy.gateway.limited_gateway import no_topic
from duemq.proxy.history import History
from duemq.proxy.relay_access import RelayAccess
from duemq.proxy.request.consumer_names import ConsumerNames
from duemq.proxy.request.file_checker import FileChecker
from duemq.proxy.request.ingress import Ingress
from duemq.proxy.request.request_rules import RequestRules, unexpected_body
from duemq.proxy.response.ending import Endings
from duemq.proxy.settings import ConsoleSettings
from duemq.storage.imports.policy import ImportPolicy
from duemq.web.admission.admission import share_of
from duemq.web.body import body_under_way
from duemq.web.problem import problem_response, rejection

JSON = "application/json"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Service:
    """The services that handlers use. `clock` returns epoch ms; `closing` is set when the server begins to stop.
    `endings`: for long answers. `history`, `fresh_letters`: for the console's charts, and its dead letters that wait
    for a decision."""

    gateway: Gateway
    ingress: Ingress
    registry: CollectorRegistry
    clock: Callable[[], int]
    closing: asyncio.Event
    endings: Endings
    max_wait_ms: int
    access: Access
    history: History
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
    importing: ImportPolicy = field(default_factory=ImportPolicy)
    inspector: FileChecker = field(default_factory=FileChecker)
    relay: RelayAccess = field(default_factory=RelayAccess)
    consumer_names: ConsumerNames = field(default_factory=ConsumerNames)
    fresh_letters: FreshLetters = field(kw_only=True)


Handler = Callable[[Service, Request], Awaitable[Response]]


@dataclass(frozen=True)
class Parameter:
    """A query parameter, or (`place="header"`) a request header. `schema` is JSON Schema."""

    name: str
    description: str
    schema: Mapping[str, Any]
    place: str = "query"
    required: bool = False


@dataclass(frozen=True)
class ResponseSpec:
    """The meaning of a status, and the shape of its body: one model, or one per media type."""

    description: str
    body: type[BaseModel] | Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Endpoint:
    """One method of one path. `scope`: the scope it requires; None: open to every caller. It has no default: a route
    without one keeps the server from starting. `errors`: its error codes of `web/problem.py`, in addition to those
    implied by its parameters and body; `notes`: further information for callers, in Markdown. `audited`: its acts are
    written to the trail, like each change that needs the scope operate or admin. `all_topics`: it is refused to callers
    for some topics only."""

    method: str
    path: str
    handler: Handler
    summary: str
    tag: str
    answers: Mapping[int, ResponseSpec]
    errors: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    body: type[BaseModel] | None = None
    raw_body: bool = False
    examples: Mapping[str, Any] = field(default_factory=dict)
    notes: str = ""
    audited: bool = False
    all_topics: bool = False
    scope: Scope | None = field(kw_only=True)

    def __post_init__(self) -> None:
        more = ["bad_query", "bad_header", "unsupported_media_type"]
        if self.body is None:
            more.append("unexpected_body")
        if self.scope is not None:
            more.append("forbidden")
        if self.method != "GET" and "unavailable" in self.errors:
            more.append("outcome_unknown")
        if self.method != "GET" and self.scope in (Scope.OPERATE, Scope.ADMIN):
            object.__setattr__(self, "audited", True)
        object.__setattr__(self, "errors", tuple(dict.fromkeys((*self.errors, *more))))


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """The target of a request. Without a handler: `allowed` has the path's methods; none = no such path.

    `audited`: the path of an endpoint whose acts are written to the trail.
    """

    handler: Handler | None
    allowed: tuple[str, ...] = ()
    audited: str | None = None


class FoundRoute(NamedTuple):
    """The endpoint of a request, and the parameters of its path."""

    route: _Route
    parameters: dict[str, str]

    @property
    def scope(self) -> Scope | None:
        """The required scope; None: open to every caller."""
        return self.route.scope


class _WithoutColon(StringConvertor):
    regex = "[^/:]+"


register_url_convertor("plain", _WithoutColon())


def route_path(path: str) -> str:
    """The path of an endpoint for starlette. A `{name}` or `{group}` has no colon: the part after a colon is a call
    with separate methods."""
    return path.replace("{name}", "{name:plain}").replace("{group}", "{group:plain}")


class _Route:
    """An endpoint, prepared for requests."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.pattern, _, _ = compile_path(route_path(endpoint.path))
        self.slashes = endpoint.path.count("/")
        self.methods = ("GET", "HEAD") if endpoint.method == "GET" else (endpoint.method,)
        audited = endpoint.path if endpoint.audited else None
        self.match, self.rules = RouteMatch(_handler_of(endpoint), (), audited), _rules_of(endpoint)
        self.scope, self.all_topics = endpoint.scope, endpoint.all_topics


class Router:
    """Finds the endpoint of a request. Frequent paths should come first."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._routes = [_Route(one) for one in endpoints]
        # Few share a method and a number of slashes, and parameters have no slashes.
        self._few: dict[tuple[str, int], list[_Route]] = {}
        for route in self._routes:
            for method in route.methods:
                self._few.setdefault((method, route.slashes), []).append(route)

    def find(self, request: Request) -> FoundRoute | None:
        """The endpoint of a request; None if there is none. Raises Rejected `malformed_request`."""
        path, has_slash = _path_of(request)
        for route in self._few.get((request.scope["method"], path.count("/")), ()):
            if (path_match := route.pattern.fullmatch(path)) is not None:
                parameters = path_match.groupdict()
                if has_slash:
                    parameters = {name: unquote(value) for name, value in parameters.items()}
                return FoundRoute(route, parameters)
        if _CONTROL.search(path):  # a gateway may read this as another path, even if a parameter would refuse it
            raise Rejected("malformed_request", f"there is nothing at {shown(path)}, which has a control character")
        return None

    def open(self, request: Request, target: FoundRoute | None, grant: Grant) -> RouteMatch:
        """Put the path's parameters into the request. Raises Rejected `forbidden` if the grant does not suffice, and
        for anything the endpoint does not accept."""
        if target is None:
            path, _ = _path_of(request)
            allowed = {method for route in self._routes if route.pattern.fullmatch(path) for method in route.methods}
            return RouteMatch(None, tuple(sorted(allowed)))
        route, parameters = target
        if route.scope is not None and not grant.allows(route.scope):
            raise Rejected("forbidden", f"this key does not have the scope {route.scope}")
        if route.all_topics and grant.topics:
            raise Rejected("forbidden", "this needs a key for all topics")
        request.scope["path_params"] = parameters
        if "topic" in parameters and not grant.covers(parameters["topic"]):
            raise no_topic(parameters["topic"])
        match = route.match
        assert match.handler is not None
        return replace(match, handler=_without_body(match.handler)) if route.rules.check(request.scope) else match


def _path_of(request: Request) -> tuple[str, bool]:
    """The path for routing, and whether a parameter has a slash, which it keeps as %2F."""
    path: str = request.scope["path"]
    raw: bytes = request.scope.get("raw_path") or b""
    return (raw.decode("ascii"), True) if b"%2f" in raw.lower() else (path, False)


def _rules_of(endpoint: Endpoint) -> RequestRules:
    query = [parameter.name for parameter in endpoint.parameters if parameter.place == "query"]
    idempotent = any(parameter.name == "Idempotency-Key" for parameter in endpoint.parameters)
    return RequestRules(query, body=endpoint.body is not None, raw=endpoint.raw_body, idempotent=idempotent)


def _handler_of(endpoint: Endpoint) -> Handler:
    if endpoint.method == "GET" and endpoint.path.startswith("/v1/"):
        return _reading(endpoint.handler)
    return endpoint.handler


def _reading(handler: Handler) -> Handler:
    """Wraps an endpoint that changes nothing: its answers are not cached, and no failure leaves the outcome unknown."""

    async def read(service: Service, request: Request) -> Response:
        try:
            response = await handler(service, request)
        except Rejected as error:  # a cache may keep a 404, too
            response = problem_response(rejection(error))
        except OutcomeUnknown as error:
            raise Unavailable(error.detail) from error
        if all(name != b"cache-control" for name, _ in response.raw_headers):
            response.raw_headers.append((b"cache-control", b"no-store"))
        return response

    return read


def _without_body(handler: Handler) -> Handler:
    """For a request with a body of unknown length."""

    async def checked(service: Service, request: Request) -> Response:
        async with body_under_way(share_of(request)):
            more = True
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                if message.get("body"):
                    raise unexpected_body()
                more = message.get("more_body", False)
        return await handler(service, request)

    return checked
