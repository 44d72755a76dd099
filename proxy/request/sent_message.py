"""One message as it was sent: as JSON, or as a raw body with `duemq-*` headers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import orjson
from starlette.requests import Request

from duemq.model.errors import Rejected
from duemq.model.messages.message import Draft
from duemq.model.messages.names import fingerprint
from duemq.proxy.request.ingress import Ingress, MessageLimits
from duemq.proxy.request.json_body import is_json, not_json, read_both
from duemq.proxy.request.json_text import PAYLOAD_JSON, payload_text
from duemq.web.body import headers_of, read_body

_FIELD_BYTES = 256 << 10  # of a JSON message, for all but its payload
_ESCAPED = 6  # JSON may spell each byte of a payload as \\u00NN
_OURS = b"duemq-"


class SentMessage(NamedTuple):
    """`parsed`: a JSON message, with `payload_json` as it was spelt; None for a raw one, whose payload is
    `body` and whose fields are `fields`.

    `fields`: the duemq-* headers that came before the body: what comes behind it is no header.
    """

    parsed: dict[str, Any] | None
    body: bytes
    media: bytes | None
    fields: Sequence[tuple[bytes, bytes]] = ()

    def draft(self, ingress: Ingress, now: int) -> Draft:
        """Check the message. Raises Rejected."""
        if self.parsed is not None:
            return ingress.draft(self.parsed, now)
        try:
            return ingress.draft_from_raw(self.fields, self.body, now)
        except Rejected as error:
            if error.code != "missing_topic":
                raise
            # What curl does without -H: it is worth a word.
            media_type = (self.media or b"no type").decode("latin-1").partition(";")[0]
            hint = f"a body of {media_type} is the payload itself and its topic the header duemq-topic"
            raise Rejected(
                error.code, f"{hint}; a JSON message needs Content-Type: application/json", "topic"
            ) from error

    def fingerprint(self, *, as_spelt: bool) -> bytes:
        """Differs where another message was sent; `as_spelt`: also where its JSON was spelt in another way."""
        named = [(name + b":", value) for name, value in self.fields]  # those of one name stay in their order
        content = self.body if as_spelt or self.parsed is None else canonical(self.parsed)
        return fingerprint(content, b"\n".join(name + value for name, value in sorted(named, key=itemgetter(0))))


async def read_message(request: Request, limits: MessageLimits) -> SentMessage:
    """Read one message, of up to as many bytes as the limits allow. Raises Rejected."""
    media = headers_of(request.scope).get(b"content-type")
    fields = [pair for pair in request.scope["headers"] if pair[0].startswith(_OURS)]
    if is_json(media):
        if fields:
            first = fields[0][0].decode("latin-1")[:80]
            raise Rejected("bad_header", f"{first}: a JSON message has its fields in its body", first)
        parsed, body = await read_both(request, _ESCAPED * limits.max_payload_bytes + _FIELD_BYTES)
        if PAYLOAD_JSON in parsed:
            parsed[PAYLOAD_JSON] = payload_text(body)
        return SentMessage(parsed, bytes(body), media)
    if media is None and not fields:
        raise not_json(media)
    return SentMessage(None, bytes(await read_body(request, limits.max_payload_bytes)), media, fields)


def canonical(message: dict[str, Any]) -> bytes:
    """A message however its JSON was spelt. Raises Rejected for what orjson reads and does not write again."""
    try:
        return orjson.dumps(message, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        raise Rejected("bad_field", f"no field of a message is nested like that: {error}") from error
