"""Names of messages, chosen by clients or made from an Idempotency-Key. They identify repeats."""

from __future__ import annotations

import re

from starlette.requests import Request

from duemq.model.errors import Rejected
from duemq.model.messages.names import NO_NAME, Name, of_caller, of_client, of_idempotency_key
from duemq.model.timing import shown
from duemq.model.topics.rules import NAME_RULE, is_name
from duemq.proxy.access import caller_of, namespace_of
from duemq.web.body import headers_of

IDEMPOTENCY_KEY = "Idempotency-Key"

_HEADER = IDEMPOTENCY_KEY.lower().encode()
_QUOTED, _ESCAPE = re.compile(r'"((?:[^"\\]|\\["\\])*)"'), re.compile(r"\\(.)")


def client_name(request: Request, text: str) -> Name:
    """The stored name for a name chosen by the client. Raises Rejected `bad_field`."""
    if not is_name(text):
        raise Rejected("bad_field", f"a name has {NAME_RULE}, not {shown(text)}", "name")
    caller = namespace_of(request)
    return of_caller(caller, text) if caller else of_client(text)


def idempotency_name(request: Request, key: str, field: str = IDEMPOTENCY_KEY) -> Name:
    """The stored name for an idempotency key. Raises Rejected `bad_field`.

    The same idempotency key has another stored name for each API key. Stored names are digests, because a name may have
    at most 255 bytes.
    """
    if not 0 < len(key) <= 255 or not key.isprintable():
        raise Rejected("bad_field", f"{field} has 1 to 255 printable characters", field)
    return of_idempotency_key(caller_of(request), key)


def name_in_header(request: Request) -> Name:
    """The name from a request's Idempotency-Key; empty if it has none. Raises Rejected."""
    if _HEADER not in headers_of(request.scope):
        return NO_NAME
    keys = [value for name, value in request.scope["headers"] if name == _HEADER]
    if len(keys) > 1:
        raise Rejected("bad_header", "Idempotency-Key is given twice", IDEMPOTENCY_KEY)
    try:
        key = keys[0].strip(b" \t").decode()
    except UnicodeDecodeError as error:
        raise Rejected("bad_header", f"the value of {IDEMPOTENCY_KEY} is not UTF-8", IDEMPOTENCY_KEY) from error
    if key.startswith('"'):  # a string as in RFC 8941; a key without quotes is accepted, too
        quoted = _QUOTED.fullmatch(key)
        if quoted is None:
            raise Rejected("bad_field", f"{shown(key)} is not a quoted string (RFC 8941)", IDEMPOTENCY_KEY)
        key = _ESCAPE.sub(r"\1", quoted[1])
    return idempotency_name(request, key)
