"""Who looks at a page, and what he may see and do."""

from __future__ import annotations

from hmac import compare_digest
from typing import Final

from starlette.requests import Request

from duemq.model.callers.access import Grant, Scope
from duemq.model.callers.session import csrf_of
from duemq.model.errors import Rejected
from duemq.proxy.access import GRANT, SESSION
from duemq.proxy.api.endpoint import Service

CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"


def grant_of(request: Request) -> Grant:
    """As the application found it; it does so for each request of the console."""
    grant: Grant = request.scope[GRANT]
    return grant


def sees_payloads(service: Service, request: Request) -> bool:
    """Whether payloads and values of headers are shown."""
    return not service.console.mask_payloads or grant_of(request).allows(Scope.OPERATE)


def csrf_token(request: Request) -> str:
    """What a form has to bring that is sent in the session of this request; empty without a session."""
    text: str | None = request.scope.get(SESSION)
    return "" if text is None else csrf_of(text)


def check_csrf(request: Request, sent: str) -> None:
    """Raises Rejected `forbidden` for a form that is sent in a session and does not come from one of its pages."""
    token = csrf_token(request)
    sent = request.headers.get(CSRF_HEADER) or sent
    if token and not compare_digest(token.encode(), sent.encode()):
        raise Rejected("forbidden", "This form belongs to another session: load its page again.", CSRF_FIELD)
