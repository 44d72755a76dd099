"""Refuses requests that pages of other sites make a browser send, and requests with a foreign host name.

A browser sends the origin of a request (`Sec-Fetch-Site`, `Origin`); other clients send neither header. If no API key
protects the server, a foreign name in `Host` reveals a page whose own name was made to resolve to this server (DNS
rebinding).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import ip_address

from starlette.responses import Response
from starlette.types import Scope

from duemq.model.errors import Rejected
from duemq.model.timing import shown
from duemq.web.body import headers_of

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
# A load balancer may use any host name for these, and the responses reveal nothing.
_PROBES = frozenset(("/livez", "/healthz", "/readyz"))
_OWN_PAGES = frozenset((None, b"same-origin", b"none"))  # `none`: typed or bookmarked by the user
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]/@\s]*)(?::[0-9]*)?")
# The public DNS has no names with these suffixes (RFC 6761, RFC 6762, and ICANN's resolution on .internal).
_PRIVATE = (".localhost", ".local", ".internal", ".svc")
_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_FIELD_NAMES = re.compile(r"[A-Za-z0-9_-]+(?:, ?[A-Za-z0-9_-]+)*")
_KEPT = {"Access-Control-Max-Age": "600"}  # how long (s) a browser may cache the response
_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}


class SameOrigin:
    """`hosts`: further names of this server, `*.example.com` for a whole domain. `origins`: the origins whose pages may
    send requests.

    `any_host` returns whether any `Host` is accepted now, because every request needs a key.
    """

    def __init__(
        self, hosts: Iterable[str] = (), origins: Iterable[str] = (), *, any_host: Callable[[], bool] = lambda: False
    ) -> None:
        names = {host.lower() for host in hosts}
        self._names = {name for name in names if not name.startswith("*.")} | {socket.gethostname().lower()}
        self._below = (*_PRIVATE, *(name[1:] for name in names if name.startswith("*.")))
        self._origins = {origin.lower().encode() for origin in origins}
        self._any_host = any_host
        self._is_own = lru_cache(maxsize=256)(self._names_us)

    def check(self, scope: Scope) -> None:
        """Check a request. Raises Rejected `foreign_host` or `foreign_origin`."""
        safe = scope["method"] in SAFE_METHODS
        any_host = self._any_host()
        if safe and any_host:
            return
        headers = headers_of(scope)
        host = headers.get(b"host", b"")
        if not any_host and not self._is_own(host) and scope["path"] not in _PROBES:
            raise Rejected(
                "foreign_host",
                f"this server is not known as {shown(host.decode('latin-1'))}: name it in http.hosts, or set API keys",
            )
        if safe or (b"origin" not in headers and b"sec-fetch-site" not in headers):
            return
        last = dict(scope["headers"])
        origin, site = last.get(b"origin"), last.get(b"sec-fetch-site")
        own = site in _OWN_PAGES and (origin is None or _is_same(origin, host))
        if not own and origin not in self._origins:
            page = "another site" if origin is None else shown(origin.decode("latin-1"))
            raise Rejected(
                "foreign_origin", f"a page of {page} may not send this; http.origins can name those that may"
            )

    def preflight(self, scope: Scope) -> Response | None:
        """The response to a CORS preflight request from a page in `origins`; None for any other request."""
        if scope["method"] != "OPTIONS" or not self.shares_with(scope):
            return None
        headers = headers_of(scope)
        if b"access-control-request-method" not in headers:
            return None
        names = headers.get(b"access-control-request-headers", b"").decode("latin-1")
        allowed = {"Access-Control-Allow-Headers": names} if _FIELD_NAMES.fullmatch(names) else {}
        return Response(status_code=204, headers={"Access-Control-Allow-Methods": _METHODS, **_KEPT} | allowed)

    def shares_with(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """The CORS headers that let a page in `origins` read the response; none for other pages. They do not allow
        cookies: such a page must present a key."""
        if not self._origins or (origin := headers_of(scope).get(b"origin")) not in self._origins:
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"*"),
            (b"vary", b"origin"),
        ]

    def _names_us(self, host: bytes) -> bool:
        match = _HOST.fullmatch(host.decode("latin-1").lower())
        if match is None:
            return False
        name = match[1].removesuffix(".")
        if "." not in name and not name.startswith("["):  # such names are not public: containers, localhost
            return True
        if name in self._names or name.endswith(self._below):
            return True
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


def _is_same(origin: bytes, host: bytes) -> bool:
    """Whether the page came from this host and port. TLS may end at a proxy, so either scheme is accepted."""
    scheme, _, authority = origin.lower().partition(b"://")
    default = _DEFAULT_PORTS.get(scheme)
    return default is not None and authority == host.lower().removesuffix(default)
