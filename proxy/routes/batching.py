"""Accepting many messages in one request, each of them with or without a name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from duemq.delay.gateway import Receipt
from duemq.model.errors import OutcomeUnknown, Rejected, RejectedNow, Unavailable
from duemq.model.message import CLIENT_NAME, Draft, fingerprint
from duemq.model.timing import shown
from duemq.proxy.body import header
from duemq.proxy.endpoint import Service
from duemq.proxy.ingress import check_idempotency_key, check_name
from duemq.proxy.json_body import read_json
from duemq.proxy.problem import rejection
from duemq.proxy.render import receipt_json
from duemq.proxy.reply import JsonResponse
from duemq.proxy.routes.sending import canonical, idempotency_conflict, idempotency_name, name_conflict

NAMING = ("name", "idempotency_key")
"""What an item may have beside the fields of a message: one of them."""

_ITEMS_PER_TURN = 250  # how many of a batch are checked before others get a turn: about 1 ms


class _Naming(NamedTuple):
    """The name of an item as its sender gave it (None: an idempotency key), as shards know it, and its fingerprint."""

    text: str | None
    name: bytes
    said: bytes


async def post_batch(service: Service, request: Request) -> Response:
    if header(request, b"idempotency-key") is not None:
        detail = "a batch has no Idempotency-Key: give each message its own idempotency_key or name"
        raise Rejected("bad_header", detail, "Idempotency-Key")
    ingress = service.ingress
    body = await read_json(request, ingress.limits.max_batch_bytes, ingress.most_values, "batch_too_large")
    items = ingress.batch(body)
    now, draft_of = service.clock(), ingress.draft
    drafts: list[Draft] = []
    places: list[int] = []
    results: list[Any] = [None] * len(items)
    namings: dict[int, _Naming] = {}
    for at, item in enumerate(items):
        try:
            if type(item) is dict and ("name" in item or "idempotency_key" in item):
                namings[at], item = _naming_of(request, item)
                naming = namings[at]
                drafts.append(draft_of(item, now)._replace(name=naming.name, fingerprint=naming.said))
            else:
                drafts.append(draft_of(item, now))
            places.append(at)
        except Rejected as error:
            results[at] = error
        if at % _ITEMS_PER_TURN == _ITEMS_PER_TURN - 1:
            await asyncio.sleep(0)
    answers = await service.gateway.send(drafts) if drafts else []
    for at, answer in zip(places, answers, strict=True):
        results[at] = answer
    if namings:
        await _find_first(service, results, namings)
    accepted = unknown = 0
    for at, result in enumerate(results):
        if isinstance(result, Rejected):
            unknown += result.code == OutcomeUnknown.code
            results[at] = {"error": rejection(result)}
        else:
            accepted += 1
            results[at] = receipt_json(result) | {"duplicate": True} if result.known else receipt_json(result)
    counts = {"accepted": accepted, "rejected": len(items) - accepted - unknown}
    return JsonResponse({"results": results} | counts | ({"unknown": unknown} if unknown else {}))


def _naming_of(request: Request, item: dict[str, Any]) -> tuple[_Naming, dict[str, Any]]:
    """The naming of an item, and the item without it."""
    if len(given := [field for field in NAMING if field in item]) > 1:
        raise Rejected("bad_field", "name and idempotency_key are both given: a message has one of them", given[1])
    field = given[0]
    text = item[field]
    if type(text) is not str:
        raise Rejected("bad_field", f"{field} must be text, not {shown(text)}", field)
    rest = {name: value for name, value in item.items() if name != field}
    # As of a PUT under the name: each of them may repeat the other.
    said = fingerprint(canonical(rest), b"")
    if field == "name":
        return _Naming(text, CLIENT_NAME + check_name(text), said), rest
    return _Naming(None, idempotency_name(request, check_idempotency_key(text, field)), said), rest


async def _find_first(service: Service, results: list[Any], namings: dict[int, _Naming]) -> None:
    """Have items that were refused as things stand get what the first one of their name got, and tell of conflicts."""
    late = [at for at in namings if isinstance(results[at], RejectedNow)]
    if late:
        found: Sequence[Receipt | Rejected | None]
        try:
            found = await service.gateway.named([(namings[at].name, namings[at].said) for at in late])
        except Unavailable as error:  # the others are accepted
            found = [Rejected(OutcomeUnknown.code, error.detail)] * len(late)
        for at, first in zip(late, found, strict=True):
            results[at] = first or results[at]
    for at, naming in namings.items():
        result = results[at]
        if isinstance(result, Receipt) and result.conflict:
            text = naming.text
            results[at] = (
                idempotency_conflict(result, "idempotency_key") if text is None else name_conflict(result, text)
            )
