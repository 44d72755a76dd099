"""Accepts one message, with or without a name: as JSON, or as a raw body with `duemq-*` headers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import Response

from duemq.model.errors import ClockOutOfBounds, DiskFull, OutcomeUnknown, Rejected, RejectedNow, Unavailable
from duemq.model.messages.message import Draft
from duemq.model.messages.names import Name, fingerprint
from duemq.proxy.api.endpoint import Service
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.request.caller_names import IDEMPOTENCY_KEY, client_name, name_in_header
from duemq.proxy.request.ingress import Ingress, MessageLimits
from duemq.proxy.request.json_body import is_json, not_json, read_both
from duemq.proxy.request.json_text import PAYLOAD_JSON, payload_text
from duemq.proxy.response.render import receipt_json
from duemq.web.body import header, headers_of, read_body
from duemq.web.json_response import JsonResponse


async def post_message(service: Service, request: Request) -> Response:
    name = name_in_header(request)
    sent = await _read_message(request, service.ingress.limits)
    receipt = await _accept(service, sent, name, sent.fingerprint(as_spelt=True) if name else b"")
    if receipt.conflict:
        raise idempotency_conflict(receipt, IDEMPOTENCY_KEY)
    if receipt.known:
        return JsonResponse(receipt_json(receipt) | {"duplicate": True})
    return JsonResponse(receipt_json(receipt), 201)


async def put_message(service: Service, request: Request) -> Response:
    text: str = request.path_params["id"]
    name = client_name(request, text)
    condition = header(request, b"if-none-match")
    if condition not in (None, "*"):
        raise Rejected("bad_header", "If-None-Match can only be *: messages have no entity tags", "If-None-Match")
    sent = await _read_message(request, service.ingress.limits)
    receipt = await _accept(service, sent, name, sent.fingerprint(as_spelt=False))
    if not receipt.known and not receipt.conflict:
        return JsonResponse(receipt_json(receipt), 201)
    if condition is not None:
        raise _name_taken("name_taken", f"there is a message named {text}", "name", receipt)
    if receipt.conflict:
        raise name_conflict(receipt, text)
    return JsonResponse(receipt_json(receipt) | {"duplicate": True})


def idempotency_conflict(receipt: Receipt, field: str) -> Rejected:
    return _name_taken("idempotency_conflict", f"this {field} was used for another message", field, receipt)


def name_conflict(receipt: Receipt, name: str) -> Rejected:
    return _name_taken("name_conflict", f"there is a message named {name} with other content", "name", receipt)


def _name_taken(code: str, detail: str, field: str, receipt: Receipt) -> Rejected:
    """The error for a name that is in use, with the id of the message that has it, if the caller may see that
    message."""
    if not receipt.id:
        return Rejected(code, detail, field)
    return Rejected(code, f"{detail}: {receipt.id}", field, id=receipt.id)


async def _accept(service: Service, sent: _SentMessage, name: Name, content: bytes) -> Receipt:
    """Accept one message, and return its receipt. `content`: the fingerprint of the message, to store with its name.

    A repeat gets the receipt of the first message, regardless of the current time and limits.
    """
    try:
        draft = sent.draft(service.ingress, service.clock())
        if name:
            draft = draft._replace(name=name, fingerprint=content)
        (answer,) = await service.gateway.send((draft,))
        if isinstance(answer, Receipt):
            return answer
        match answer.code:
            case OutcomeUnknown.code:
                raise OutcomeUnknown(answer.detail)
            case Unavailable.code:
                raise Unavailable(answer.detail)
        raise answer
    except (RejectedNow, ClockOutOfBounds, DiskFull):
        if not name:
            raise
        (first,) = await service.gateway.named([(name, content)])
        if first is None:
            raise
        return first


_FIELD_BYTES = 256 << 10  # the largest size of a JSON message without its payload
_ESCAPED = 6  # JSON may write each byte of a payload as \\u00NN
_OURS = b"duemq-"


class _SentMessage(NamedTuple):
    """A message as sent. `parsed`: a JSON message, with the exact text of `payload_json`; None for a raw message, whose
    payload is `body` and whose fields are `fields`.

    `fields`: the duemq-* headers before the body; trailers after the body are ignored.
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
            # curl without -H sends such a content type, so explain its effect.
            media_type = (self.media or b"no type").decode("latin-1").partition(";")[0]
            hint = f"a body of {media_type} is the payload itself and its topic the header duemq-topic"
            raise Rejected(
                error.code, f"{hint}; a JSON message needs Content-Type: application/json", "topic"
            ) from error

    def fingerprint(self, *, as_spelt: bool) -> bytes:
        """A fingerprint that differs between different messages; with `as_spelt`, also between different JSON texts of
        the same message."""
        named = [(name + b":", value) for name, value in self.fields]  # equal names keep their order
        content = self.body if as_spelt or self.parsed is None else canonical(self.parsed)
        return fingerprint(content, b"\n".join(name + value for name, value in sorted(named, key=itemgetter(0))))


async def _read_message(request: Request, limits: MessageLimits) -> _SentMessage:
    """Read one message, within the limits. Raises Rejected."""
    media = headers_of(request.scope).get(b"content-type")
    fields = [pair for pair in request.scope["headers"] if pair[0].startswith(_OURS)]
    if is_json(media):
        if fields:
            first = fields[0][0].decode("latin-1")[:80]
            raise Rejected("bad_header", f"{first}: a JSON message has its fields in its body", first)
        parsed, body = await read_both(request, _ESCAPED * limits.max_payload_bytes + _FIELD_BYTES)
        if PAYLOAD_JSON in parsed:
            parsed[PAYLOAD_JSON] = payload_text(body)
        return _SentMessage(parsed, bytes(body), media)
    if media is None and not fields:
        raise not_json(media)
    return _SentMessage(None, bytes(await read_body(request, limits.max_payload_bytes)), media, fields)


def canonical(message: dict[str, Any]) -> bytes:
    """A canonical form of a message, independent of its JSON text. Raises Rejected for values that orjson reads but
    cannot write."""
    try:
        return orjson.dumps(message, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        raise Rejected("bad_field", f"no field of a message is nested that deeply: {error}") from error
