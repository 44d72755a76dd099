"""Determines whether browsers reach this server by HTTPS. TLS may end at a proxy in front of the server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address

from starlette.types import Scope

from duemq.web.body import headers_of


class PublicScheme:
    """`url`: the URL by which browsers reach this server; empty: unknown. `proxies`: the proxies whose
    `X-Forwarded-Proto` is trusted."""

    def __init__(self, url: str, proxies: Sequence[IPv4Network | IPv6Network]) -> None:
        self._by_url = "https" if url.startswith("https://") else ""
        self._proxies = tuple(proxies)
        self._is_proxy = lru_cache(maxsize=1024)(self._is_among)

    def of(self, scope: Scope) -> str:
        """The scheme that the client of a request uses: `https` or `http`."""
        if self._by_url or not self._proxies or not (client := scope.get("client")) or not self._is_proxy(client[0]):
            return self._by_url or str(scope["scheme"])
        first = headers_of(scope).get(b"x-forwarded-proto", b"").partition(b",")[0]
        return "https" if first.strip().lower() == b"https" else str(scope["scheme"])

    def _is_among(self, address: str) -> bool:
        try:
            ip = ip_address(address)
        except ValueError:
            return False
        ip = getattr(ip, "ipv4_mapped", None) or ip
        return any(ip in network for network in self._proxies)
