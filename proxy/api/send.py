"""Accepting one message, also under a name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import Response

from duemq.model.errors import ClockOutOfBounds, DiskFull, OutcomeUnknown, Rejected, RejectedNow, Unavailable
from duemq.model.message import CLIENT_NAME, Draft, fingerprint
from duemq.proxy.api.endpoint import API_KEY, JSON, Service
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.request.ingress import check_idempotency_key, check_name, unquoted
from duemq.proxy.request.json_body import check_values, parse_json
from duemq.proxy.request.unread import is_json, not_json
from duemq.proxy.response.render import receipt_json
from duemq.web.body import header, read_body
from duemq.web.reply import JsonResponse

IDEMPOTENCY_PREFIX = b"i:"

_FIELD_BYTES = 256 << 10  # of a JSON message, for all but its payload
_ESCAPED = 6  # JSON may spell each byte of a payload as \\u00NN
_OURS = b"duemq-"


class SentMessage(NamedTuple):
    """A message as it came: `body` parsed (None for a raw one) and as bytes.

    `dashed`: the duemq-* headers of a raw one, as they came before the body: what comes behind it is no header.
    """

    parsed: dict[str, Any] | None
    body: bytes
    dashed: Sequence[tuple[bytes, bytes]] = ()

    def fingerprint(self, content: bytes) -> bytes:
        """Of what stands in the body."""
        return fingerprint(content, b"\n".join(sorted(name + b":" + value for name, value in self.dashed)))


async def post_message(service: Service, request: Request) -> Response:
    key = _idempotency_key(request)
    sent = await _read_message(service, request)
    if key is None:
        return JsonResponse(receipt_json(await _accept(service, request, sent)), 201)
    name = idempotency_name(request, key)
    receipt = await _accept(service, request, sent, name, sent.fingerprint(sent.body))
    if receipt.conflict:
        raise idempotency_conflict(receipt, "Idempotency-Key")
    if receipt.known:
        return JsonResponse(receipt_json(receipt) | {"duplicate": True})
    return JsonResponse(receipt_json(receipt), 201)


async def put_message(service: Service, request: Request) -> Response:
    name: str = request.path_params["id"]
    named = CLIENT_NAME + check_name(name)
    condition = header(request, b"if-none-match")
    if condition not in (None, "*"):
        raise Rejected("bad_header", "If-None-Match can only be *: messages have no entity tags", "If-None-Match")
    sent = await _read_message(service, request)
    content = sent.body if sent.parsed is None else canonical(sent.parsed)
    receipt = await _accept(service, request, sent, named, sent.fingerprint(content))
    if not receipt.known and not receipt.conflict:
        return JsonResponse(receipt_json(receipt), 201)
    if condition is not None:
        raise Rejected("name_taken", f"there is a message named {name}: {receipt.id}", "name", id=receipt.id)
    if receipt.conflict:
        raise name_conflict(receipt, name)
    return JsonResponse(receipt_json(receipt) | {"duplicate": True})


def canonical(message: dict[str, Any]) -> bytes:
    """A message however its JSON was spelt. Raises Rejected for what orjson reads and does not write again."""
    try:
        return orjson.dumps(message, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        raise Rejected("bad_field", f"no field of a message is nested like that: {error}") from error


def idempotency_name(request: Request, key: bytes) -> bytes:
    """What a message with this Idempotency-Key is known by.

    Per API key, and as a digest: it is stored with the message, where a name has at most 255 bytes.
    """
    return IDEMPOTENCY_PREFIX + fingerprint(request.scope.get(API_KEY, b""), key)


def idempotency_conflict(receipt: Receipt, field: str) -> Rejected:
    detail = f"this {field} was used for another message, {receipt.id}"
    return Rejected("idempotency_conflict", detail, field, id=receipt.id)


def name_conflict(receipt: Receipt, name: str) -> Rejected:
    detail = f"there is a message named {name} with other content: {receipt.id}"
    return Rejected("name_conflict", detail, "name", id=receipt.id)


async def _accept(
    service: Service, request: Request, sent: SentMessage, name: bytes = b"", said: bytes = b""
) -> Receipt:
    """The receipt of one message. `said`: the fingerprint of what is sent under the name.

    A repeat gets what the first one got, whatever time it is now, and whatever limits there are.
    """
    try:
        draft = _draft(service, request, sent)
        if name:
            draft = draft._replace(name=name, fingerprint=said)
        (answer,) = await service.gateway.send((draft,))
        if isinstance(answer, Rejected):
            raise _error_of(answer)
        return answer
    except (RejectedNow, ClockOutOfBounds, DiskFull):
        if not name:
            raise
        (first,) = await service.gateway.named([(name, said)])
        if first is None:
            raise
        return first


def _error_of(answer: Rejected) -> Rejected | Unavailable:
    if answer.code == OutcomeUnknown.code:
        return OutcomeUnknown(answer.detail)
    return Unavailable(answer.detail) if answer.code == Unavailable.code else answer


def _draft(service: Service, request: Request, sent: SentMessage) -> Draft:
    if sent.parsed is not None:
        return service.ingress.draft(sent.parsed, service.clock())
    try:
        return service.ingress.draft_from_raw(sent.dashed, sent.body, service.clock())
    except Rejected as error:
        if error.code == "missing_topic":
            # What curl does without -H: it is worth a word.
            media_type = (header(request, b"content-type") or "no type").partition(";")[0]
            hint = f"a body of {media_type} is the payload itself and its topic the header duemq-topic"
            raise Rejected(error.code, f"{hint}; a JSON message needs Content-Type: {JSON}", "topic") from error
        raise


async def _read_message(service: Service, request: Request) -> SentMessage:
    limits = service.ingress.limits
    media: bytes | None = None
    dashed: list[tuple[bytes, bytes]] = []
    for name, value in request.scope["headers"]:
        if name == b"content-type":
            media = value
        elif name.startswith(_OURS):
            dashed.append((name, value))
    if is_json(media):
        if dashed:
            first = dashed[0][0].decode("latin-1")[:80]
            raise Rejected("bad_header", f"{first}: a JSON message has its fields in its body", first)
        body = await read_body(request, _ESCAPED * limits.max_payload_bytes + _FIELD_BYTES)
        await check_values(body)
        return SentMessage(parse_json(body), bytes(body))
    if media is None and not dashed:
        raise not_json(media)
    body = await read_body(request, limits.max_payload_bytes)
    return SentMessage(None, bytes(body), dashed)


def _idempotency_key(request: Request) -> bytes | None:
    keys = [value for name, value in request.scope["headers"] if name == b"idempotency-key"]
    if len(keys) > 1:
        raise Rejected("bad_header", "Idempotency-Key is given twice", "Idempotency-Key")
    return check_idempotency_key(unquoted(keys[0].decode("latin-1").strip())) if keys else None
