"""Which names and values may be headers of an HTTP request, and which of them only duemq gives."""

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
    # Receivers believe these of whoever stands before them: who sends messages must not speak in that name.
    "forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip", "x-original-url",
    "x-rewrite-url", "x-http-method", "x-http-method-override", "x-method-override", "user-agent",
    "content-type",  # of a message it is read apart; content_type is not
))  # fmt: skip
_TRUSTED_BEGIN: Final = ("x-forwarded-", "proxy-", "sec-")


def legal_name(name: str) -> bool:
    """Whether it is a token of RFC 9110 of up to 256 characters."""
    return _NAME.fullmatch(name) is not None


def legal_value(value: str) -> bool:
    """Whether it arrives as it is: visible ASCII with spaces between, up to 8 KiB. So no CR, LF or NUL."""
    return _VALUE.fullmatch(value) is not None


def framing(name: str) -> bool:
    """Whether HTTP itself needs it, or duemq gives it: nobody else may. Underscores count as dashes, for servers that
    make variables of headers do not tell them apart."""
    plain = name.lower().replace("_", "-")
    return plain in _FRAMING or plain.startswith(_OURS)


def secret(name: str) -> bool:
    """Whether it opens the endpoint: it is given with the credentials only."""
    return name.lower().replace("_", "-") in _SECRET


def of_messages(name: str) -> bool:
    """Whether a header of a message may be a header of the request."""
    plain = name.lower().replace("_", "-")
    return not (
        framing(plain) or plain in _SECRET or plain in _TRUSTED or plain.startswith(_TRUSTED_BEGIN)
    ) and legal_name(name)
