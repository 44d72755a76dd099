"""Accepts one message, with or without a name."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.errors import ClockOutOfBounds, DiskFull, OutcomeUnknown, Rejected, RejectedNow, Unavailable
from duemq.model.messages.names import Name
from duemq.proxy.api.endpoint import Service
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.request.names import IDEMPOTENCY_KEY, client_name, name_in_header
from duemq.proxy.request.sent_message import SentMessage, read_message
from duemq.proxy.response.render import receipt_json
from duemq.web.body import header
from duemq.web.json_response import JsonResponse


async def post_message(service: Service, request: Request) -> Response:
    name = name_in_header(request)
    sent = await read_message(request, service.ingress.limits)
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
    sent = await read_message(request, service.ingress.limits)
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
    """Names the message that has the name, unless the caller may not know it."""
    if not receipt.id:
        return Rejected(code, detail, field)
    return Rejected(code, f"{detail}: {receipt.id}", field, id=receipt.id)


async def _accept(service: Service, sent: SentMessage, name: Name, content: bytes) -> Receipt:
    """The receipt of one message. `content`: the fingerprint of the message under the name.

    A repeat gets the first one's receipt, regardless of the current time and limits.
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
