"""Groups: workers receive the messages of a topic, and acknowledge them (ADR 91)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.destinations.destination import Destination, System
from duemq.model.destinations.pull import (
    DEFAULT_ATTEMPTS,
    MAX_ATTEMPTS,
    MAX_DELAY_MS,
    MAX_VISIBILITY_MS,
    MIN_VISIBILITY_MS,
    PULL,
    PullOptions,
    group_name,
    retry_fields,
    split_name,
)
from duemq.model.errors import Rejected, Unavailable
from duemq.model.timing import format_duration, parse_duration, shown
from duemq.proxy.access import UNCHANGED, caller_name
from duemq.proxy.api.endpoint import Service
from duemq.proxy.api.topics import topic_of
from duemq.proxy.destinations.handlers import registry_of
from duemq.proxy.destinations.positions import begin_at, read_start
from duemq.proxy.rate_limit import charge
from duemq.proxy.relay_access import GroupLeases, LeasesOf, MessageLease
from duemq.proxy.request.json_body import check_fields, read_json
from duemq.proxy.request.query import read_number, read_query, read_wait
from duemq.proxy.response.render import content_json, times
from duemq.web.admission import share_of
from duemq.web.body import SMALL_BODY_BYTES
from duemq.web.json_response import JsonResponse, in_slices
from duemq.web.problem import problem

MAX_RECEIVED: Final = 1_000
"""Messages of one receive, and receipts of one request."""
_REASON_CHARACTERS: Final = 200
_BEGIN_S: Final = 5.0


async def put_group(service: Service, request: Request) -> Response:
    body = await read_json(request, SMALL_BODY_BYTES)
    check_fields(body, ("visibility", "attempts", "start"))
    topic, name = _group_of(request)
    _leases_of(service)
    attempts = body.get("attempts", DEFAULT_ATTEMPTS)
    if type(attempts) is not int or not 1 <= attempts <= MAX_ATTEMPTS:
        detail = f"attempts is a whole number from 1 to {MAX_ATTEMPTS}, not {shown(attempts)}"
        raise Rejected("bad_field", detail, "attempts")
    options = {"visibility": _visibility_in(body)} if "visibility" in body else {}
    start = body.get("start", "first")
    read_start(start)
    registry = registry_of(service)
    if (before := registry.by_name.get(name)) is None:
        group = await _declare(service, request, topic, name, options, attempts, start)
        return JsonResponse(_json(service, group), 201)
    changes = {"options": options, "retry": retry_fields(attempts)}
    after = await registry.update(name, changes, caller_name(request))
    if after == before:
        request.scope[UNCHANGED] = True
    return JsonResponse(_json(service, after))


async def get_group(service: Service, request: Request) -> Response:
    return JsonResponse(_json(service, _find(service, request)))


async def list_groups(service: Service, request: Request) -> Response:
    topic = topic_of(request)
    groups = [each for each in registry_of(service).listed() if each.system is System.PULL and topic in each.topics]
    return JsonResponse({"groups": [_json(service, each) for each in groups]})


async def delete_group(service: Service, request: Request) -> Response:
    await registry_of(service).remove(_find(service, request).name, caller_name(request))
    return Response(status_code=204)


async def receive(service: Service, request: Request) -> Response:
    request.scope[UNCHANGED] = True  # a receive is no act for the trail, unless it creates the group
    query = read_query(request, ("max", "wait", "visibility"))
    most = read_number(query, "max", 1, MAX_RECEIVED)
    wait_ms = read_wait(query, service.max_wait_ms)
    visibility = _visibility_in(query, "bad_query") if "visibility" in query else None
    topic, name = _group_of(request)
    leases_of = _leases_of(service)
    group = registry_of(service).by_name.get(name)
    if group is None:
        group = await _declare(service, request, topic, name, {}, DEFAULT_ATTEMPTS, "first")
        request.scope.pop(UNCHANGED)
    leases = await _at_work(leases_of, group)
    if visibility is None:
        assert isinstance(group.options, PullOptions)
        visibility = group.options.visibility
    received = await leases.receive(most, visibility, 0)
    if not received and wait_ms:
        received = await _wait(service, request, leases, most, visibility, wait_ms / 1000)
    try:
        share_of(request).take(sum(len(each.message.payload) for each in received))
    except Unavailable:
        leases.give_back([each.receipt for each in received])
        raise
    if received:
        charge(request.scope, len(received) - 1)
    return JsonResponse({"messages": await in_slices(received, _received_json)})


async def _wait(
    service: Service, request: Request, leases: GroupLeases, most: int, visibility: int, wait_s: float
) -> Sequence[MessageLease]:
    async with service.endings.watch(request.scope, request.receive) as end:
        receiving = asyncio.create_task(leases.receive(most, visibility, wait_s), name="receive")
        try:
            await end.or_done(receiving)
            if not receiving.done():
                end.check_grant()
                return ()
            received = receiving.result()
            if end.client_left:
                leases.give_back([each.receipt for each in received])
                return ()
            return received
        finally:
            receiving.cancel()
            await asyncio.wait({receiving})


async def ack(service: Service, request: Request) -> Response:
    body, receipts = await _read_receipts(request, ())
    leases = await _leases(service, request)
    return _results(body, receipts, await leases.ack(receipts), "acked")


async def nack(service: Service, request: Request) -> Response:
    body, receipts = await _read_receipts(request, ("delay", "reason", "dead_letter"))
    reason, dead = body.get("reason", ""), body.get("dead_letter", False)
    if type(reason) is not str or len(reason) > _REASON_CHARACTERS:
        raise Rejected("bad_field", f"reason is text of up to {_REASON_CHARACTERS} characters", "reason")
    if type(dead) is not bool:
        raise Rejected("bad_field", f"dead_letter is true or false, not {shown(dead)}", "dead_letter")
    delay_ms = parse_duration(body["delay"], "delay") if "delay" in body else None
    if delay_ms is not None and delay_ms > MAX_DELAY_MS:
        raise Rejected("delay_too_long", f"delay is at most {format_duration(MAX_DELAY_MS)}", "delay")
    if dead and delay_ms is not None:
        raise Rejected("bad_field", "a dead letter does not come again: leave delay out", "delay")
    leases = await _leases(service, request)
    done = await leases.nack(receipts, delay_ms, reason, dead=dead)
    return _results(body, receipts, done, "dead" if dead else "nacked")


async def extend(service: Service, request: Request) -> Response:
    body, receipts = await _read_receipts(request, ("visibility",))
    if "visibility" not in body:
        raise Rejected("bad_field", "visibility is needed: how long from now, such as 30s", "visibility")
    visibility = _visibility_in(body)
    leases = await _leases(service, request)
    return _results(body, receipts, leases.extend(receipts, visibility), "extended")


# --- requests -----------------------------------------------------------------------------------------------------


def _group_of(request: Request) -> tuple[str, str]:
    """Topic, and name of the destination."""
    topic = topic_of(request)
    return topic, group_name(topic, request.path_params["group"])


def _find(service: Service, request: Request) -> Destination:
    topic, name = _group_of(request)
    if (group := registry_of(service).by_name.get(name)) is None:
        detail = f"topic {topic} has no group {shown(request.path_params['group'])}: the first receive creates it"
        raise Rejected("unknown_group", detail, "group")
    return group


async def _read_receipts(request: Request, fields: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    body = await read_json(request, SMALL_BODY_BYTES)
    check_fields(body, ("receipt", "receipts", *fields))
    if ("receipt" in body) == ("receipts" in body):
        raise Rejected("bad_field", "give a receipt, or a list of receipts", "receipt")
    receipts = body["receipts"] if "receipts" in body else [body["receipt"]]
    if type(receipts) is not list or any(type(each) is not str for each in receipts):
        raise Rejected("bad_field", "a receipt is the text that came with the message", "receipts")
    if len(receipts) > MAX_RECEIVED:
        detail = f"{len(receipts)} receipts are given, the limit is {MAX_RECEIVED}"
        raise Rejected("batch_too_large", detail, "receipts")
    return body, receipts


def _visibility_in(fields: Mapping[str, Any], code: str = "bad_field") -> int:
    """ms."""
    try:
        ms = parse_duration(fields["visibility"], "visibility", text=code == "bad_query")
    except Rejected as error:
        raise Rejected(code, error.detail, "visibility") from error
    if not MIN_VISIBILITY_MS <= ms <= MAX_VISIBILITY_MS:
        least, most = map(format_duration, (MIN_VISIBILITY_MS, MAX_VISIBILITY_MS))
        raise Rejected(code, f"visibility is from {least} to {most}, not {shown(fields['visibility'])}", "visibility")
    return ms


# --- the relay ----------------------------------------------------------------------------------------------------


def _leases_of(service: Service) -> LeasesOf:
    if service.relay.leases is None:
        detail = "only `duemq serve` with its own log and relay.enabled leases messages; no proxy forwards them yet"
        raise Rejected("not_supported", detail)
    return service.relay.leases


async def _leases(service: Service, request: Request) -> GroupLeases:
    leases_of = _leases_of(service)
    return await _at_work(leases_of, _find(service, request))


async def _at_work(leases_of: LeasesOf, group: Destination) -> GroupLeases:
    if not group.active:
        raise Unavailable(f"the group is {group.disabled or 'paused'}")
    try:
        async with asyncio.timeout(_BEGIN_S):
            return await leases_of(group.name)
    except TimeoutError as error:
        raise Unavailable("the group is not at work yet") from error


async def _declare(
    service: Service, request: Request, topic: str, name: str, options: Mapping[str, int], attempts: int, start: str
) -> Destination:
    fields = {"name": name, "url": PULL, "topics": [topic], "options": options, "retry": retry_fields(attempts)}
    begin = begin_at(service.gateway.bus, read_start(start), service.relay.ended)
    registry = registry_of(service)
    try:
        return await registry.declare(fields, None, caller_name(request), begin=begin)
    except Rejected as error:
        if error.code not in ("destination_exists", "conflict") or name not in registry.by_name:
            raise
        return registry.find(name)  # another caller was first


# --- answers ------------------------------------------------------------------------------------------------------


def _results(body: Mapping[str, Any], receipts: Sequence[str], done: Sequence[bool], status: str) -> Response:
    """One result per receipt; for a single one without a list, its own answer."""
    detail = "the lease of this receipt has ended: the message comes again, or another worker has it"
    if "receipt" in body and not done[0]:
        raise Rejected("lease_ended", detail, "receipt")
    results: list[dict[str, Any]] = [
        {"receipt": receipt, "status": status}
        if is_done
        else {"receipt": receipt, "error": problem("lease_ended", detail, "receipts")}
        for receipt, is_done in zip(receipts, done, strict=True)
    ]
    return JsonResponse(results[0] if "receipt" in body else {"results": results})


def _received_json(received: MessageLease) -> dict[str, Any]:
    message = received.message
    document = {"receipt": received.receipt, "id": message.id, "topic": message.topic, "attempt": message.attempt}
    document |= times("lease_ends_at", received.until)
    if (due := message.due_ms) is not None:
        document |= times("due_at", due)
    return document | content_json(message.key, message.value, tuple(message.headers))


def _json(service: Service, group: Destination) -> dict[str, Any]:
    topic, name = split_name(group.name)
    assert isinstance(group.options, PullOptions)
    figures = service.relay.figures(group.name)
    state = "disabled" if group.disabled else "paused" if group.paused else "active"
    return {
        "topic": topic, "group": name, "destination": group.name, "state": state,
        "visibility": group.options.visibility, "attempts": group.retry.attempts,
        "retry_topic": group.retry_topic, "figures": None if figures is None else dict(figures),
    }  # fmt: skip
