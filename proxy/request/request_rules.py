"""The inputs that an endpoint accepts. A request with any other input is refused before anything is done."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.types import Scope

from duemq.model.errors import Rejected
from duemq.model.timing import shown
from duemq.proxy.request.json_body import is_json, not_json
from duemq.web.body import headers_of

_OURS: Final = b"duemq-"
_TYPE, _LENGTH, _CHUNKED = b"content-type", b"content-length", b"transfer-encoding"
_CODED, _IF_MATCH, _REPEAT = b"content-encoding", b"if-match", b"idempotency-key"
_LOOKED_AT: Final = frozenset((_TYPE, _LENGTH, _CHUNKED, _CODED, _IF_MATCH, _REPEAT))


_NOT_IDEMPOTENT: Final = (
    "an Idempotency-Key has no meaning here: POST /v1/messages and POST /v1/jobs take one, and each message of a batch "
    "has its own idempotency_key or name"
)


class RequestRules:
    """The inputs that one endpoint accepts: the `query` parameters; a `body`, which must be JSON unless `raw`; and an
    Idempotency-Key if `idempotent`."""

    def __init__(self, query: Collection[str], *, body: bool, raw: bool, idempotent: bool = False) -> None:
        self._query, self._body, self._raw, self._idempotent = tuple(query), body, raw, idempotent
        self._unusual = _LOOKED_AT - ({_TYPE, _LENGTH, _CHUNKED} if body else {_TYPE})
        if idempotent:
            self._unusual -= {_REPEAT}

    def check(self, scope: Scope) -> bool:
        """Check a request. Returns whether it may have a body of unknown length that must turn out to be empty.

        Raises Rejected `bad_query`, `bad_header`, `unexpected_body` or `unsupported_media_type`. This must be fast,
        because it runs for every request.
        """
        if scope["query_string"] and not self._query:
            raise Rejected("bad_query", "there are no query parameters here")
        headers = headers_of(scope)
        if (
            len(headers) == len(scope["headers"])  # no header is repeated
            and self._unusual.isdisjoint(headers)
            and (self._raw or _OURS not in b" ".join(headers))
        ):
            if self._body and not self._raw and not is_json(media := headers.get(_TYPE)):
                raise not_json(media)
            return False
        return self._check_each(scope)

    def _check_each(self, scope: Scope) -> bool:
        """See `check`. This handles headers that are rarely sent."""
        media: bytes | None = None
        chunked = False
        for name, value in scope["headers"]:
            if name in _LOOKED_AT:
                if name == _TYPE:
                    if media is not None:
                        raise Rejected("bad_header", "Content-Type is given twice", "Content-Type")
                    media = value
                elif name == _IF_MATCH:
                    raise Rejected("bad_header", "If-Match cannot be met: nothing here has an entity tag", "If-Match")
                elif name == _REPEAT:
                    if not self._idempotent:
                        raise Rejected("bad_header", _NOT_IDEMPOTENT, "Idempotency-Key")
                elif name == _CODED:
                    _check_coding(value)
                elif not self._body:
                    if name == _CHUNKED:
                        chunked = True
                    elif value.strip(b"0 "):
                        raise unexpected_body()
            elif not self._raw and name.startswith(_OURS):
                raise Rejected(
                    "bad_header",
                    f"{shown(name.decode('latin-1'))} is not read here: duemq-* headers are the fields of a message "
                    "whose payload is the body",
                    name.decode("latin-1")[:80],
                )
        if self._body and not self._raw and not is_json(media):
            raise not_json(media)
        return chunked


def unexpected_body() -> Rejected:
    return Rejected("unexpected_body", "this endpoint takes no body: it must be empty")


def _check_coding(value: bytes) -> None:
    if value.strip().lower() not in (b"", b"identity"):
        detail = f"a body is taken as it is, not coded as {shown(value.decode('latin-1'))}"
        raise Rejected("unsupported_media_type", detail, "Content-Encoding")
