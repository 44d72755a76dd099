"""Who looks at a page, and what he may see and do."""

from __future__ import annotations

from starlette.requests import Request

from duemq.model.access import Grant, Scope
from duemq.proxy.access import GRANT
from duemq.proxy.api.endpoint import Service


def grant_of(request: Request) -> Grant:
    """As the application found it; it does so for each request of the console."""
    grant: Grant = request.scope[GRANT]
    return grant


def sees_payloads(service: Service, request: Request) -> bool:
    """Whether payloads and values of headers are shown."""
    return not service.console.mask_payloads or grant_of(request).allows(Scope.OPERATE)


def csrf_token(request: Request) -> str:
    """The token that shows that a form came from a page of this console. A stub until sessions exist."""
    return ""
