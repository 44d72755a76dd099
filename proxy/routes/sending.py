"""Accepting messages: one, one under a name, and many."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import Response

from duemq.delay.gateway import Receipt
from duemq.model.errors import Rejected, Unavailable
from duemq.model.message import CLIENT_NAME, Draft, fingerprint
from duemq.proxy.body import header, read_body
from duemq.proxy.endpoint import API_KEY, JSON, Service
from duemq.proxy.ingress import check_idempotency_key, check_name, parse_json
from duemq.proxy.problem import rejection
from duemq.proxy.render import receipt_json
from duemq.proxy.reply import JsonResponse

IDEMPOTENCY_PREFIX = b"i:"

_FIELD_BYTES = 256 << 10  # of a JSON message, for all but its payload
_ESCAPED = 6  # JSON may spell each byte of a payload as \\u00NN
_ITEMS_PER_TURN = 250  # how many of a batch are checked before others get a turn: about 1 ms


class Sent(NamedTuple):
    """A message as it came: `body` parsed (None for a raw one) and as bytes."""

    draft: Draft
    parsed: dict[str, Any] | None
    body: bytes
    dashed: bytes  # the duemq-* headers of a raw body


async def post_message(service: Service, request: Request) -> Response:
    sent = await _read_message(service, request)
    draft, key = sent.draft, header(request, b"idempotency-key")
    if key is not None:
        # Per API key, and as a digest: it is stored with the message, where a name has at most 255 bytes.
        name = IDEMPOTENCY_PREFIX + fingerprint(request.scope.get(API_KEY, b""), check_idempotency_key(key))
        draft = draft._replace(name=name, fingerprint=fingerprint(sent.body, sent.dashed))
    receipt = await _send(service, draft)
    if receipt.conflict:
        detail = f"this Idempotency-Key was used for another message, {receipt.id}"
        raise Rejected("idempotency_conflict", detail, "Idempotency-Key", id=receipt.id)
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
    content = sent.body if sent.parsed is None else orjson.dumps(sent.parsed, option=orjson.OPT_SORT_KEYS)
    draft = sent.draft._replace(name=named, fingerprint=fingerprint(content, sent.dashed))
    receipt = await _send(service, draft)
    if not receipt.known and not receipt.conflict:
        return JsonResponse(receipt_json(receipt), 201)
    if condition is not None:
        raise Rejected("name_taken", f"there is a message named {name}: {receipt.id}", "name", id=receipt.id)
    if receipt.conflict:
        detail = f"there is a message named {name} with other content: {receipt.id}"
        raise Rejected("name_conflict", detail, "name", id=receipt.id)
    return JsonResponse(receipt_json(receipt) | {"duplicate": True})


async def post_batch(service: Service, request: Request) -> Response:
    if header(request, b"idempotency-key") is not None:
        detail = "a batch has no Idempotency-Key: send the messages singly, or PUT them under names"
        raise Rejected("bad_header", detail, "Idempotency-Key")
    ingress = service.ingress
    items = ingress.batch(parse_json(await read_body(request, ingress.limits.max_batch_bytes, "batch_too_large")))
    now, draft_of = service.clock(), ingress.draft
    drafts: list[Draft] = []
    places: list[int] = []
    results: list[Any] = [None] * len(items)
    for at, item in enumerate(items):
        try:
            drafts.append(draft_of(item, now))
            places.append(at)
        except Rejected as error:
            results[at] = {"error": rejection(error)}
        if at % _ITEMS_PER_TURN == _ITEMS_PER_TURN - 1:
            await asyncio.sleep(0)
    answers = await service.gateway.send(drafts) if drafts else []
    accepted = 0
    for at, answer in zip(places, answers, strict=True):
        if isinstance(answer, Rejected):
            results[at] = {"error": rejection(answer)}
        else:
            results[at] = receipt_json(answer)
            accepted += 1
    return JsonResponse({"results": results, "accepted": accepted, "rejected": len(items) - accepted})


async def _send(service: Service, draft: Draft) -> Receipt:
    """The receipt of one message. Raises Rejected where its target would not take it."""
    (answer,) = await service.gateway.send((draft,))
    if isinstance(answer, Rejected):
        raise Unavailable(answer.detail) if answer.code == Unavailable.code else answer
    return answer


async def _read_message(service: Service, request: Request) -> Sent:
    limits = service.ingress.limits
    media_type = (header(request, b"content-type") or "").partition(";")[0].strip().lower()
    if media_type == JSON or media_type.endswith("+json") or not (media_type or _dashed_headers(request)):
        body = await read_body(request, _ESCAPED * limits.max_payload_bytes + _FIELD_BYTES)
        parsed = parse_json(body)
        return Sent(service.ingress.draft(parsed, service.clock()), parsed, body, b"")
    body = await read_body(request, limits.max_payload_bytes)
    try:
        draft = service.ingress.draft_from_raw(request.scope["headers"], body, service.clock())
    except Rejected as error:
        if error.code == "missing_topic":
            # What curl does without -H: it is worth a word.
            hint = f"a body of type {media_type} is the payload itself and its topic the header duemq-topic"
            raise Rejected(error.code, f"{hint}; a JSON message needs Content-Type: {JSON}", "topic") from error
        raise
    return Sent(draft, None, body, b"\n".join(_dashed_headers(request)))


def _dashed_headers(request: Request) -> list[bytes]:
    return sorted(name + b":" + value for name, value in request.scope["headers"] if name.startswith(b"duemq-"))
