"""Logs people in through their provider, by OpenID Connect's code flow with PKCE (RFC 7636).

All values that must come back unchanged are in a cookie in the browser, so any process can finish a login that another
process began.
"""

from __future__ import annotations

import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

import httpx

from duemq.model.errors import Rejected, Unavailable
from duemq.proxy.login.tokens import Issuer, VerifiedToken

CALLBACK: Final = "/console/login/callback"

_COOKIE = re.compile(r"(?P<state>[\w-]{43})\.(?P<nonce>[\w-]{43})\.(?P<verifier>[\w-]{43})\.(?P<page>[\w-]*)", re.ASCII)


async def begin(issuer: Issuer, page: str) -> tuple[str, str]:
    """Begin a login. Returns the URL to which the browser is sent, and the value of its cookie, which contains the page
    to show afterwards. Raises Unavailable."""
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    settings = issuer.settings
    challenge = _text_of(sha256(verifier.encode()).digest())
    query = {
        "response_type": "code", "client_id": settings.client_id, "redirect_uri": _redirect_uri(issuer),
        "scope": settings.scopes, "state": state, "nonce": nonce, "code_challenge": challenge,
        "code_challenge_method": "S256",
    }  # fmt: skip
    endpoint = await _endpoint(issuer, "authorization_endpoint")
    return (
        f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}",
        f"{state}.{nonce}.{verifier}.{_text_of(page.encode())}",
    )


async def end(issuer: Issuer, query: Mapping[str, str], cookie: str) -> tuple[VerifiedToken, str]:
    """Finish a login. Returns the verified person, from the provider's answer to the code, and the page to show. Raises
    Rejected `unauthorised`, Unavailable."""
    begun = _COOKIE.fullmatch(cookie)
    if begun is None or not compare_digest(begun["state"].encode(), query.get("state", "").encode()):
        raise Rejected("unauthorised", "this login was not begun in this browser, or too long ago: begin again")
    if not issuer.use_state(begun["state"]):
        raise Rejected("unauthorised", "this login has ended: begin again")
    if "error" in query or "code" not in query:
        raise Rejected("unauthorised", f"the provider refused: {query.get('error', 'it sent no code')[:200]}")
    settings = issuer.settings
    if query.get("iss", settings.issuer) != settings.issuer:  # RFC 9207
        raise Rejected("unauthorised", "the answer is another provider's")
    fields = {
        "grant_type": "authorization_code", "code": query["code"], "redirect_uri": _redirect_uri(issuer),
        "client_id": settings.client_id, "code_verifier": begun["verifier"],
    }  # fmt: skip
    auth: httpx.Auth = httpx.Auth()  # a public client, which PKCE protects
    if settings.client_secret:
        auth = httpx.BasicAuth(quote_plus(settings.client_id), quote_plus(settings.client_secret))  # RFC 6749, 2.3.1
    tokens = await issuer.post_form(await _endpoint(issuer, "token_endpoint"), fields, auth)
    if "error" in tokens:
        raise Rejected("unauthorised", f"the provider does not accept this code: {str(tokens['error'])[:200]}")
    claims = await issuer.id_claims(str(tokens.get("id_token", "")))
    if claims is None or claims.get("nonce") != begun["nonce"]:
        raise Rejected("unauthorised", "the provider's token is not valid here")
    if not issuer.role_values(claims):
        claims = await _with_userinfo(issuer, claims, str(tokens.get("access_token", "")))
    verified = issuer.by_role(claims)
    if verified is None:
        raise Rejected("unauthorised", "the provider names no role of login.roles for this person")
    return verified, _read_page(begun["page"])


async def _with_userinfo(issuer: Issuer, claims: Mapping[str, Any], access_token: str) -> Mapping[str, Any]:
    """The claims, with those from the provider's userinfo added. Many providers leave the claims of scopes out of the
    ID token, and return them for the access token (OpenID Connect Core 1.0, 5.4). The ID token's claims take
    precedence. Raises Rejected, Unavailable."""
    if not access_token or "userinfo_endpoint" not in await issuer.document():
        return claims
    userinfo = await issuer.userinfo(await _endpoint(issuer, "userinfo_endpoint"), access_token)
    if userinfo.get("sub") != claims["sub"]:  # 5.3.2: it may be about another person
        raise Rejected("unauthorised", "the provider's userinfo is not about the person who logged in")
    return {**userinfo, **claims}


def _read_page(text: str) -> str:
    try:
        return urlsafe_b64decode(text + "==").decode()
    except ValueError:  # the browser may have changed the cookie
        return ""


def _text_of(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _redirect_uri(issuer: Issuer) -> str:
    return issuer.settings.url.rstrip("/") + CALLBACK


async def _endpoint(issuer: Issuer, name: str) -> str:
    url = (await issuer.document()).get(name)
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        raise Unavailable(f"{issuer.settings.issuer} publishes no {name}")
    return url
