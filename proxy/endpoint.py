"""One table says which endpoints there are. Requests are routed by it, and the OpenAPI document is made from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from duemq.delay.adopt_policy import AdoptPolicy
from duemq.delay.gateway import Gateway
from duemq.proxy.ingress import Ingress

JSON = "application/json"
API_KEY = "duemq.api_key"  # where the front door puts the key of a request, as bytes, into its scope


@dataclass(frozen=True, slots=True)
class Service:
    """What handlers work with. `clock` gives epoch ms; `closing` is set when the server begins to stop."""

    gateway: Gateway
    ingress: Ingress
    registry: CollectorRegistry
    clock: Callable[[], int]
    closing: asyncio.Event
    max_wait_ms: int
    adopting: AdoptPolicy = field(default_factory=AdoptPolicy)


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
class Answer:
    """What a status means, and the shape of its body: one model, or one per media type."""

    description: str
    body: type[BaseModel] | Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Endpoint:
    """One method of one path. `errors` are the codes of `proxy/problem.py` that it may answer with; `notes` is what a
    caller has to know besides, in Markdown."""

    method: str
    path: str
    handler: Handler
    summary: str
    tag: str
    answers: Mapping[int, Answer]
    errors: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    body: type[BaseModel] | None = None
    raw_body: bool = False
    examples: Mapping[str, Any] = field(default_factory=dict)
    notes: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a request goes. Without a handler: `allowed` has the methods the path knows; none = no such path."""

    handler: Handler | None
    allowed: tuple[str, ...] = ()


class Router:
    """Finds the endpoint of a request. Paths asked for most often should come first."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._routes = [(Route(one.path, one.handler, methods=[one.method]), Found(one.handler)) for one in endpoints]

    def find(self, request: Request) -> Found:
        """Puts the path's parameters into the request."""
        scope = request.scope
        allowed: set[str] = set()
        for route, found in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                scope["path_params"] = child["path_params"]
                return found
            if match is Match.PARTIAL and route.methods:
                allowed |= route.methods
        return Found(None, tuple(sorted(allowed)))
