"""The viewer of a page, and the viewer's rights."""

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
    """The grant that the application determined for this request."""
    grant: Grant = request.scope[GRANT]
    return grant


def sees_payloads(service: Service, request: Request) -> bool:
    """Whether payloads and values of headers are shown."""
    return not service.console.mask_payloads or grant_of(request).allows(Scope.OPERATE)


def csrf_token(request: Request) -> str:
    """The CSRF token for forms in the session of this request; empty without a session."""
    text: str | None = request.scope.get(SESSION)
    return "" if text is None else csrf_of(text)


def check_csrf(request: Request, sent: str) -> None:
    """Raises Rejected `forbidden` for a form that was not loaded in the session of this request."""
    token = csrf_token(request)
    sent = request.headers.get(CSRF_HEADER) or sent
    if token and not compare_digest(token.encode(), sent.encode()):
        raise Rejected("forbidden", "This form belongs to another session: load its page again.", CSRF_FIELD)
