"""Moves, cancels, delivers now and redrives messages. The response has the ledger's answer, or says that it is not
known yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from duemq.model.errors import OutcomeUnknown, Rejected, Unavailable
from duemq.model.log.ledger import Answer
from duemq.model.messages.message import CANCEL, DELIVER_NOW, MOVE, MOVE_WITH_EXPIRY, PURGE, REDRIVE, Terms, is_topic
from duemq.model.timing import WHEN_FIELDS, shown
from duemq.model.topics.rules import is_name
from duemq.proxy.access import changed_by
from duemq.proxy.api.endpoint import Service
from duemq.proxy.api.find import show
from duemq.proxy.gateway.base import ChangeOutcome
from duemq.proxy.request.json_body import check_fields, read_json
from duemq.proxy.request.message_ref import check_topic, message_ref, unknown
from duemq.proxy.request.query import FILTER_FIELDS, MAX_LIMIT, read_filter, read_query
from duemq.proxy.response.render import times
from duemq.web.body import SMALL_BODY_BYTES
from duemq.web.json_response import JsonResponse
from duemq.web.problem import rejection

MAX_IDS: Final = 10_000
_MAX_IDS_BYTES: Final = 4 << 20
_MAX_MOVES_BYTES: Final = 8 << 20
_ITEMS_PER_TURN: Final = 250  # items read before other tasks run: about 1 ms
_STATUS_OF: Final = {
    Answer.OK: "cancelled",
    Answer.CANCELLED_BEFORE: "cancelled",
    Answer.DELIVERED: "already_delivered",
    Answer.DEAD: "already_dead",
    Answer.UNKNOWN: "unknown",
    None: "pending",
}
_NOT_MOVED: Final = frozenset((Answer.EXHAUSTED, Answer.MALFORMED))
_SHIFT: Final = "shift_expiry"
_MOVE_STATUS_OF: Final = _STATUS_OF | {Answer.OK: "moved", Answer.CANCELLED_BEFORE: "already_cancelled"}


async def patch_message(service: Service, request: Request) -> Response:
    ref, body = message_ref(request), await read_json(request, SMALL_BODY_BYTES)
    check_fields(body, (*WHEN_FIELDS, _SHIFT))
    kind, terms = _kind_of_move(body)
    due = service.ingress.when({name: value for name, value in body.items() if name != _SHIFT}, service.clock())
    (outcome,) = await service.gateway.change(kind, (ref,), due, terms=terms, by=changed_by(request))
    return await _moved(service, request, ref, outcome)


def _kind_of_move(body: dict[str, Any]) -> tuple[int, Terms | None]:
    return (MOVE_WITH_EXPIRY, Terms()) if _flag(body, _SHIFT) else (MOVE, None)


async def deliver_now(service: Service, request: Request) -> Response:
    ref = message_ref(request)
    (outcome,) = await service.gateway.change(DELIVER_NOW, (ref,), by=changed_by(request))
    return await _moved(service, request, ref, outcome)


async def _moved(service: Service, request: Request, ref: str, outcome: ChangeOutcome) -> Response:
    if outcome.answer in _NOT_MOVED:
        raise _not_moved(outcome)
    return await _changed(service, request, ref, outcome)


def _not_moved(outcome: ChangeOutcome) -> Rejected:
    """Why a message that could still be changed was not moved."""
    if outcome.answer is Answer.MALFORMED:
        return Rejected("not_supported", f"the node of message {outcome.id} is of an older version: upgrade it first")
    detail = f"message {outcome.id} would expire before it is due; a move with {_SHIFT} moves its expiry, too"
    return Rejected("bad_time", detail, "deliver_at", id=outcome.id)


async def redrive(service: Service, request: Request) -> Response:
    topic = read_query(request, ("topic",)).get("topic", "")
    if topic:
        check_open_topic(service, topic)
    return await _of_the_dead(service, request, REDRIVE, Terms("", service.ingress.limits.max_redrives, topic))


async def purge(service: Service, request: Request) -> Response:
    return await _of_the_dead(service, request, PURGE, Terms())


def check_open_topic(service: Service, topic: str) -> None:
    """Raises Rejected if messages may not go to this topic."""
    if not is_topic(check_topic(topic).encode()):
        raise Rejected("bad_topic", f"{topic} is one of duemq's own topics", "topic")
    service.ingress.check_open_topic(topic)


async def _of_the_dead(service: Service, request: Request, kind: int, terms: Terms) -> Response:
    ref = message_ref(request)
    (outcome,) = await service.gateway.change(kind, (ref,), terms=terms, by=changed_by(request))
    if outcome.answer is Answer.NOT_DEAD:
        state = await service.gateway.state(ref)
        if state is None:
            raise unknown(ref)
        if state.status == "delivered":
            raise _too_late(ChangeOutcome(state.id, Answer.DELIVERED, state.delivered_at), ref)
        if state.status == "cancelled":
            raise _too_late(ChangeOutcome(state.id, Answer.CANCELLED_BEFORE, state.cancelled_at), ref)
        raise Rejected("bad_field", f"message {state.id} is {state.status}, not a dead letter", "id")
    return await _changed(service, request, ref, outcome)


async def delete_message(service: Service, request: Request) -> Response:
    ref = message_ref(request)
    (outcome,) = await service.gateway.change(CANCEL, (ref,), by=changed_by(request))
    if outcome.answer is None or (outcome.answer is Answer.CANCELLED_BEFORE and not outcome.at):
        return _pending(outcome)  # unknown: the answer, or the time, which a repeat must return, too
    if _STATUS_OF.get(outcome.answer) != "cancelled":
        raise _too_late(outcome, ref)
    return JsonResponse({"id": outcome.id, "status": "cancelled", **times("cancelled_at", outcome.at)})


async def cancel_many(service: Service, request: Request) -> Response:
    body = await read_json(request, _MAX_IDS_BYTES, code="batch_too_large")
    check_fields(body, ("ids", "filter", "times"))
    timed = _flag(body, "times")
    if len(body.keys() & {"ids", "filter"}) != 1:
        raise Rejected("bad_field", "exactly one of ids and filter is needed", "filter" if "filter" in body else "ids")
    if "ids" in body:
        return _report(await _cancel_ids(service, body["ids"], timed, changed_by(request)), _STATUS_OF.values())
    return await _cancel_matching(service, request, body["filter"], timed)


async def move_many(service: Service, request: Request) -> Response:
    """Move each message to its own time. A bad time is an error only for its own message, as in a batch; the other
    messages are moved."""
    body = await read_json(request, _MAX_MOVES_BYTES, code="batch_too_large")
    check_fields(body, ("moves", "times", _SHIFT))
    kind, terms = _kind_of_move(body)
    timed, items = _flag(body, "times"), body.get("moves")
    if type(items) is not list:
        raise Rejected("bad_field", "moves must be a list of objects with an id and a time", "moves")
    if len(items) > MAX_IDS:
        detail = f"at most {MAX_IDS} messages can be moved in one call, not {len(items)}"
        raise Rejected("batch_too_large", detail, "moves")
    now, read = service.clock(), service.ingress.when
    refs: list[str] = []
    dues: list[int] = []
    places: list[int] = []
    results: list[dict[str, Any]] = [{}] * len(items)
    for at, item in enumerate(items):
        try:
            id_ = _id_of(item)
            due = read({name: value for name, value in item.items() if name != "id"}, now)
        except Rejected as error:
            results[at] = {"error": rejection(error)}
        else:
            if is_name(id_):
                refs.append(id_)
                dues.append(due)
                places.append(at)
            else:
                results[at] = {"id": id_, "status": "unknown"}
        if at % _ITEMS_PER_TURN == _ITEMS_PER_TURN - 1:
            await asyncio.sleep(0)
    by = changed_by(request)
    outcomes = await service.gateway.change(kind, refs, dues, times=timed, terms=terms, by=by) if refs else []
    for at, due, outcome in zip(places, dues, outcomes, strict=True):
        if outcome.answer in _NOT_MOVED:
            results[at] = {"error": rejection(_not_moved(outcome))}
            continue
        result = {"id": outcome.id, "status": _MOVE_STATUS_OF[outcome.answer]}
        ended = _timed(result["status"], outcome.at) if timed else {}
        results[at] = result | (times("deliver_at", due) if outcome.answer is Answer.OK else ended)
    return _report(results, (*_MOVE_STATUS_OF.values(), "rejected"))


def _id_of(move: Any) -> str:
    if type(move) is not dict:
        raise Rejected("bad_field", f"a move is a JSON object, not {shown(move)}", "moves")
    if type(id_ := move.get("id")) is not str:
        raise Rejected("bad_field", f"id must be the id or name of a message, not {shown(id_)}", "id")
    return id_


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if type(value) is not bool:
        raise Rejected("bad_field", f"{name} must be true or false, not {shown(value)}", name)
    return value


def _report(results: list[dict[str, Any]], statuses: Iterable[str]) -> Response:
    counts = dict.fromkeys(statuses, 0)
    for result in results:
        counts[result.get("status", "rejected")] += 1
    return JsonResponse({"results": results, "counts": counts})


def _check_filter(fields: Any) -> None:
    if type(fields) is not dict:
        raise Rejected("bad_field", "filter must be an object", "filter")
    if unknown_names := [name for name in fields if name not in FILTER_FIELDS]:
        known = ", ".join(FILTER_FIELDS)
        raise Rejected("unknown_field", f"{shown(unknown_names[0])} is not a filter; known are {known}", "filter")
    if not fields.keys() - {"status"}:
        raise Rejected("bad_field", "an empty filter would cancel everything; say what to cancel", "filter")


async def _cancel_ids(service: Service, ids: Any, timed: bool, by: str) -> list[dict[str, Any]]:
    if type(ids) is not list or not all(type(one) is str for one in ids):
        raise Rejected("bad_field", "ids must be a list of texts", "ids")
    if len(ids) > MAX_IDS:
        raise Rejected("batch_too_large", f"at most {MAX_IDS} ids can be cancelled in one call, not {len(ids)}", "ids")
    refs = [one for one in ids if is_name(one)]
    outcomes = await service.gateway.change(CANCEL, refs, times=timed, by=by) if refs else []
    answered = (_result(outcome, timed) for outcome in outcomes)
    if len(refs) == len(ids):
        return list(answered)
    return [next(answered) if is_name(one) else {"id": one, "status": "unknown"} for one in ids]


async def _cancel_matching(service: Service, request: Request, fields: Any, timed: bool) -> Response:
    """Cancel the matches page after page, as long as the client is connected.

    All matches are counted, but only the first ones are listed: a list of millions would take gigabytes.
    """
    _check_filter(fields)
    query, by = replace(read_filter(fields, "bad_field"), limit=MAX_LIMIT), changed_by(request)
    counts = dict.fromkeys(_STATUS_OF.values(), 0)
    results: list[dict[str, Any]] = []
    truncated = False
    while True:
        try:
            page = await service.gateway.find(query)
            ids = [state.id for state in page.messages]
            outcomes = await service.gateway.change(CANCEL, ids, times=timed, by=by) if ids else []
        except Unavailable as error:
            if not (done := sum(counts.values())) or isinstance(error, OutcomeUnknown):
                raise
            detail = f"{done} messages were looked at and {counts['cancelled']} cancelled; repeat it for the others"
            raise OutcomeUnknown(f"{detail}: {error.detail}") from error
        for outcome in outcomes:
            result = _result(outcome, timed)
            counts[result["status"]] += 1
            if len(results) < MAX_IDS:
                results.append(result)
            else:
                truncated = True
        if page.cursor is None:
            return JsonResponse({"results": results, "counts": counts} | ({"truncated": True} if truncated else {}))
        if await request.is_disconnected():
            raise ClientDisconnect
        query = replace(query, cursor=page.cursor)


def _result(outcome: ChangeOutcome, timed: bool) -> dict[str, Any]:
    result = {"id": outcome.id, "status": _STATUS_OF[outcome.answer]}
    return result | _timed(result["status"], outcome.at) if timed else result


def _timed(status: str, at: int) -> dict[str, Any]:
    """When the message ended, in the fields that are named after its status."""
    return times(f"{status.removeprefix('already_')}_at", at) if at else {}


async def _changed(service: Service, request: Request, ref: str, outcome: ChangeOutcome) -> Response:
    if outcome.answer is None:
        return _pending(outcome)
    if outcome.answer is not Answer.OK:
        raise _too_late(outcome, ref)
    try:
        return await show(service, request, outcome.id)
    except Unavailable:
        # The change was made, but no replica can show the message now. An error would suggest a retry.
        return _pending(outcome)


def _pending(outcome: ChangeOutcome) -> Response:
    # Relative to the request's path, /v1/messages/ID or /v1/dlq/ID:redrive, because a proxy may add a prefix.
    location = {"Location": f"../messages/{quote(outcome.id, safe='')}"}
    return JsonResponse({"id": outcome.id, "status": "pending"}, 202, location)


def _too_late(outcome: ChangeOutcome, ref: str) -> Rejected:
    """Why a change was refused."""
    id_ = outcome.id
    match outcome.answer:
        case Answer.DELIVERED:
            detail = f"message {id_} has been delivered"
            return Rejected("already_delivered", detail, id=id_, **_when("delivered_at", outcome.at))
        case Answer.CANCELLED_BEFORE:
            detail = f"message {id_} has been cancelled"
            return Rejected("already_cancelled", detail, id=id_, **_when("cancelled_at", outcome.at))
        case Answer.DEAD:
            detail = f"message {id_} is in the dead letters; GET tells why"
            return Rejected("already_dead", detail, id=id_, **_when("dead_at", outcome.at))
        case Answer.EXHAUSTED:
            detail = f"message {id_} was redriven as often as topics.max_redrives allows"
            return Rejected("redrives_exhausted", detail, id=id_)
        case Answer.PURGED:
            return Rejected("already_purged", f"message {id_} was purged from the dead letters", id=id_)
        case Answer.UNKNOWN:
            return unknown(ref)
    raise AssertionError(f"{outcome.answer!r} is no answer to a change")


def _when(name: str, at: int) -> dict[str, Any]:
    return times(name, at) if at else {}
