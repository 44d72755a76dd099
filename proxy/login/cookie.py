"""The cookies of the console: HttpOnly, SameSite=Lax, and on HTTPS bound to this host (`__Host-`)."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.callers.session import COOKIE_TEXT
from duemq.web.body import header

SESSION: Final = "duemq_session"
LOGIN: Final = "duemq_login"  # the browser sends it when it returns from the provider
LOGIN_S: Final = 600

_HOST: Final = "__Host-"


def read_cookie(request: Request, name: str) -> str:
    """The value of a cookie; empty if it is missing. On HTTPS only the host-bound cookie is valid, because another host
    in the domain may have set the plain one. If HTTPS is not detected, the host-bound cookie takes precedence."""
    values: dict[str, str] = {}
    for pair in (header(request, b"cookie") or "").split(";"):
        key, _, value = pair.strip().partition("=")
        values.setdefault(key, value)
    return values.get(_HOST + name) or ("" if is_https(request) else values.get(name, ""))


def session_text(request: Request) -> str:
    """The text of the session cookie if it has the right form; else empty."""
    text = read_cookie(request, SESSION)
    return text if COOKIE_TEXT.fullmatch(text) else ""


def set_cookie(response: Response, request: Request, name: str, value: str, max_age_s: int) -> None:
    """Set a cookie, or delete it if `max_age_s` is 0."""
    secure = is_https(request)
    full = (_HOST if secure else "") + name
    text = f"{full}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"
    response.raw_headers.append((b"set-cookie", text.encode()))


def is_https(request: Request) -> bool:
    """Whether the browser uses HTTPS, from `PublicScheme` or a form's `Origin`."""
    return request.scope["scheme"] == "https" or (header(request, b"origin") or "").startswith("https://")
