"""Login with an API key or through the provider in `login.issuer`, and logout."""

from __future__ import annotations

import re
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.callers.session import digest_of
from duemq.model.errors import Rejected
from duemq.proxy.access import GRANT, SESSION, UNCHANGED, Credential, caller_name
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.caller import grant_of
from duemq.proxy.console.forms import read_form
from duemq.proxy.console.views import redirect, render
from duemq.proxy.login import cookie
from duemq.proxy.login.settings import CALLBACK_PARAMETERS
from duemq.proxy.request.query import read_query

_FORM_BYTES: Final = 4 << 10
_PAGE = re.compile(r"[A-Za-z0-9._~:/?&=%+-]{0,1000}")


async def get_login(service: Service, request: Request) -> Response:
    return _page(service, request, _next(read_query(request, ("next",)).get("next", "")))


async def post_login(service: Service, request: Request) -> Response:
    form = await read_form(request, _FORM_BYTES)
    credential = service.access.credential(form.get("key").encode("utf-8", "replace")) if form.get("key") else None
    page = _next(form.get("next"))
    if credential is None:
        wrong = "This key is not valid here: it is mistyped, expired or revoked."
        return _page(service, request, page, wrong, by_key=True)
    return await _begin(service, request, credential, page)


async def get_provider(service: Service, request: Request) -> Response:
    """Send the browser to the provider."""
    if (issuer := service.access.issuer) is None or not issuer.settings.client_id:
        raise Rejected("not_found", "This server has no provider to log in by.")
    from duemq.proxy.login import openid  # needs the packages of the extra `login`

    page = _next(read_query(request, ("next",)).get("next", ""))
    url, value = await openid.begin(issuer, page)
    response = Response(status_code=303, headers={"Location": url})
    cookie.set_cookie(response, request, cookie.LOGIN, value, cookie.LOGIN_S)
    return response


async def get_callback(service: Service, request: Request) -> Response:
    """Finish the login when the browser comes back from the provider."""
    if (issuer := service.access.issuer) is None:
        raise Rejected("not_found", "This server has no provider to log in by.")
    from duemq.proxy.login import openid

    query = read_query(request, CALLBACK_PARAMETERS)
    try:
        verified, page = await openid.end(issuer, query, cookie.read_cookie(request, cookie.LOGIN))
        response = await _begin(service, request, service.access.person(verified), _next(page))
    except Rejected as error:
        return _page(service, request, "", f"Login refused: {error.detail}")
    cookie.set_cookie(response, request, cookie.LOGIN, "", 0)
    return response


async def post_logout(service: Service, request: Request) -> Response:
    await read_form(request, _FORM_BYTES)
    text: str | None = request.scope.get(SESSION)
    if text is None:
        request.scope[UNCHANGED] = True
    elif service.access.admin is not None:
        await service.access.admin.sessions.end(digest_of(text), caller_name(request))
    response = redirect(request, "login")
    cookie.set_cookie(response, request, cookie.SESSION, "", 0)
    return response


async def _begin(service: Service, request: Request, credential: Credential, page: str) -> Response:
    request.scope[GRANT] = credential.grant  # the trail records the caller
    service.access.charge_login(credential.grant)
    text, good_ms = await service.access.begin_session(credential)
    response = redirect(request, page)
    cookie.set_cookie(response, request, cookie.SESSION, text, -(-good_ms // 1000))
    return response


def _page(service: Service, request: Request, page: str, wrong: str = "", *, by_key: bool = False) -> Response:
    """The login page. `wrong`: why a login, `by_key` or through the provider, was refused."""
    issuer = service.access.issuer
    provider = issuer is not None and bool(issuer.settings.client_id)
    needed = not grant_of(request).scopes
    return render(
        request, "login.html", 401 if wrong else 200, page=page, wrong=wrong, by_key=by_key, provider=provider,
        needed=needed, keeps_keys=service.access.admin is not None,
    )  # fmt: skip


def _next(page: str) -> str:
    """Where to go after a login: only to a page of the console."""
    return page if _PAGE.fullmatch(page) and ".." not in page and "//" not in page else ""
