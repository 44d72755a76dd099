"""Accepts many messages in one request, each with or without a name."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.errors import OutcomeUnknown, Rejected, RejectedNow, Unavailable
from duemq.model.messages.message import Draft
from duemq.model.messages.names import Name, fingerprint
from duemq.model.timing import shown
from duemq.proxy.access import batch_bytes_of
from duemq.proxy.api.endpoint import Service
from duemq.proxy.api.send import canonical, idempotency_conflict, name_conflict
from duemq.proxy.gateway.base import Receipt
from duemq.proxy.request.caller_names import client_name, idempotency_name
from duemq.proxy.request.json_body import read_both
from duemq.proxy.request.json_text import PAYLOAD_JSON, payload_texts
from duemq.proxy.response.render import receipt_json
from duemq.web.json_response import JsonResponse
from duemq.web.problem import rejection

NAMING = ("name", "idempotency_key")
"""The fields that an item has in addition to those of a message. Only one of them may be set."""

_ITEMS_PER_TURN = 250  # items checked before other tasks run: about 1 ms


class _Naming(NamedTuple):
    """The name of an item as the client gave it (None: an idempotency key), its name in the shards, and the fingerprint
    of its content."""

    text: str | None
    name: Name
    content: bytes


async def post_batch(service: Service, request: Request) -> Response:
    ingress = service.ingress
    body, raw = await read_both(
        request, batch_bytes_of(request, ingress.limits.max_batch_bytes), ingress.most_values, "batch_too_large"
    )
    items = ingress.batch(body)
    has_json = any(type(item) is dict and PAYLOAD_JSON in item for item in items)
    payloads = payload_texts(raw) if has_json else repeat(None)
    del raw  # frees as much memory as all messages take
    now, draft_of = service.clock(), ingress.draft
    drafts: list[Draft] = []
    places: list[int] = []
    results: list[Any] = [None] * len(items)
    namings: dict[int, _Naming] = {}
    answers: dict[int, Receipt | Rejected] = {}
    for at, (item, payload) in enumerate(zip(items, payloads, strict=False)):
        if payload is not None:
            item[PAYLOAD_JSON] = payload
        try:
            if type(item) is dict and ("name" in item or "idempotency_key" in item):
                naming, message = _naming_of(request, item)
                namings[at] = naming
                drafts.append(draft_of(message, now)._replace(name=naming.name, fingerprint=naming.content))
            else:
                drafts.append(draft_of(item, now))
            places.append(at)
        except Rejected as error:
            answers[at] = error
        if at % _ITEMS_PER_TURN == _ITEMS_PER_TURN - 1:
            await asyncio.sleep(0)
    if has_json:
        deque(payloads, 0)  # also check the end of the list
    del body, items  # frees as much memory as the drafts take
    if drafts:
        answers.update(zip(places, await service.gateway.send(drafts), strict=True))
    if namings:
        await _answer_names(service, answers, namings)
    rejected = unknown = 0
    for at, answer in answers.items():
        if isinstance(answer, Rejected):
            results[at] = {"error": rejection(answer)}
            rejected += 1
            unknown += answer.code == OutcomeUnknown.code
        else:
            results[at] = receipt_json(answer) | {"duplicate": True} if answer.known else receipt_json(answer)
    counts = {"accepted": len(results) - rejected, "rejected": rejected - unknown}
    return JsonResponse({"results": results} | counts | ({"unknown": unknown} if unknown else {}))


def _naming_of(request: Request, item: dict[str, Any]) -> tuple[_Naming, dict[str, Any]]:
    """The naming of an item, and the item without its naming field."""
    if len(fields := [field for field in NAMING if field in item]) > 1:
        raise Rejected("bad_field", "name and idempotency_key are both given: a message has one of them", fields[1])
    field = fields[0]
    text = item[field]
    if type(text) is not str:
        raise Rejected("bad_field", f"{field} must be text, not {shown(text)}", field)
    rest = {name: value for name, value in item.items() if name != field}
    # The same fingerprint as for a PUT under the name, because either request may repeat the other.
    content = fingerprint(canonical(rest), b"")
    if field == "name":
        return _Naming(text, client_name(request, text), content), rest
    return _Naming(None, idempotency_name(request, text, field), content), rest


async def _answer_names(service: Service, answers: dict[int, Receipt | Rejected], namings: dict[int, _Naming]) -> None:
    """Answer each item refused as `RejectedNow` with the receipt of the first message with its name, and report
    conflicts."""
    if late := [at for at in namings if isinstance(answers[at], RejectedNow)]:
        firsts: Sequence[Receipt | Rejected | None]
        try:
            firsts = await service.gateway.named([(namings[at].name, namings[at].content) for at in late])
        except Unavailable as error:  # other items of the batch are already accepted
            firsts = [Rejected(OutcomeUnknown.code, error.detail)] * len(late)
        answers.update((at, first) for at, first in zip(late, firsts, strict=True) if first is not None)
    for at, naming in namings.items():
        answer = answers[at]
        if isinstance(answer, Receipt) and answer.conflict:
            if naming.text is None:
                answers[at] = idempotency_conflict(answer, "idempotency_key")
            else:
                answers[at] = name_conflict(answer, naming.text)
