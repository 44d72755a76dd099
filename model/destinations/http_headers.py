"""Which names and values may be headers of an HTTP request, and which headers only duemq may set."""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e]{0,8190}[\x21-\x7e])?)?")
_FRAMING: Final = frozenset((
    "host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect",
    "proxy-connection", "http2-settings", "idempotency-key",
))  # fmt: skip
_OURS: Final = ("webhook-", "duemq-", "ce-", ":")
_SECRET: Final = frozenset(("authorization", "proxy-authorization", "proxy-authenticate", "cookie", "cookie2"))
_TRUSTED: Final = frozenset((
    # Receivers trust these headers, because a proxy in front of them sets them, so a message must not set them.
    "forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip", "fastly-client-ip",
    "fly-client-ip", "client-ip", "x-cluster-client-ip", "x-host", "x-http-method", "x-http-method-override",
    "x-method-override", "user-agent",
    "content-type",  # read separately from a message; `content_type` is not
))  # fmt: skip
_TRUSTED_BEGIN: Final = (
    "x-forwarded-", "proxy-", "sec-", "x-original-", "x-rewrite-", "x-middleware-", "x-envoy-",
    # The caller's identity, which access proxies pass in these headers.
    "remote-", "x-remote-", "x-auth-", "x-authenticated-", "x-authentik-", "x-goog-", "x-amzn-oidc-",
    "x-ms-client-principal", "x-ms-token-", "cf-access-", "x-pomerium-", "x-vouch-", "x-webauth-", "tailscale-",
    "ssl-client-", "x-ssl-", "x-client-cert", "x-client-verify", "x-client-dn",
)  # fmt: skip


def plain(name: str) -> str:
    """A name as receivers may read it: servers that turn headers into variables do not distinguish `_` and `-`."""
    return name.lower().replace("_", "-")


def legal_name(name: str) -> bool:
    """Whether a name is a token as in RFC 9110, of up to 256 characters."""
    return _NAME.fullmatch(name) is not None


def legal_value(value: str) -> bool:
    """Whether a value will arrive unchanged: visible ASCII with inner spaces, up to 8 KiB. So it has no CR, LF or
    NUL."""
    return _VALUE.fullmatch(value) is not None


def framing(name: str) -> bool:
    """Whether only HTTP itself or duemq may set this header."""
    read = plain(name)
    return read in _FRAMING or read.startswith(_OURS)


def secret(name: str) -> bool:
    """Whether this header is a credential. Such headers are given only in `Credentials`."""
    return plain(name) in _SECRET


def of_messages(name: str) -> bool:
    """Whether a header of a message may be a header of the request."""
    read = plain(name)
    return not (framing(read) or read in _SECRET or read in _TRUSTED or read.startswith(_TRUSTED_BEGIN)) and legal_name(
        name
    )
