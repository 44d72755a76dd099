"""Destinations beyond the log: declare, change, pause and test them. Credentials are never returned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from duemq.cluster.admin.destination_registry import FIELDS, DestinationRegistry
from duemq.model.callers.access import Grant, Scope
from duemq.model.destinations.destination import Destination
from duemq.model.destinations.pull import PULL
from duemq.model.errors import Rejected, Unavailable
from duemq.model.timing import shown
from duemq.proxy.access import GRANT, UNCHANGED, caller_name
from duemq.proxy.api.endpoint import Service
from duemq.proxy.destinations.positions import begin_at, read_start
from duemq.proxy.request.json_body import check_fields, read_json
from duemq.web.body import SMALL_BODY_BYTES
from duemq.web.json_response import JsonResponse

_BESIDE: Final = ("credentials", "start")
_NEW_FIELDS: Final = ("name", *FIELDS, "paused", *_BESIDE, "replace")
_CHANGES: Final = (*FIELDS, *_BESIDE)


async def list_destinations(service: Service, request: Request) -> Response:
    grant: Grant = request.scope[GRANT]
    registry = registry_of(service)
    listed = [_json(service, request, each) for each in registry.listed() if is_covered(grant, each)]
    return JsonResponse({"destinations": listed})


async def post_destination(service: Service, request: Request) -> Response:
    body = await read_json(request, SMALL_BODY_BYTES)
    check_fields(body, _NEW_FIELDS)
    replace = body.get("replace", False)
    if type(replace) is not bool:
        raise Rejected("bad_field", f"replace is true or false, not {shown(replace)}", "replace")
    fields = {name: value for name, value in body.items() if name not in (*_BESIDE, "replace")}
    if fields.get("url") == PULL and service.relay.leases is None:
        raise Rejected("not_supported", "no relay of this server leases messages: here a group would have no reader")
    begin = begin_at(service.gateway.bus, read_start(body.get("start", "last")), service.relay.ended)
    destination = await registry_of(service).declare(
        fields, _credentials_in(body), caller_name(request), replace=replace, begin=begin
    )
    return JsonResponse(_json(service, request, destination), 201, {"Location": f"destinations/{destination.name}"})


async def get_destination(service: Service, request: Request) -> Response:
    return JsonResponse(_json(service, request, _find(service, request)))


async def patch_destination(service: Service, request: Request) -> Response:
    body = await read_json(request, SMALL_BODY_BYTES)
    check_fields(body, _CHANGES)
    changes = {name: value for name, value in body.items() if name in FIELDS}
    begin = begin_at(service.gateway.bus, read_start(body.get("start", "last")), service.relay.ended)
    registry, name = registry_of(service), request.path_params["name"]
    await registry.update(name, changes, caller_name(request), _credentials_in(body), begin=begin)
    return JsonResponse(_json(service, request, registry.find(name)))


async def delete_destination(service: Service, request: Request) -> Response:
    await registry_of(service).remove(request.path_params["name"], caller_name(request))
    return Response(status_code=204)


async def pause_destination(service: Service, request: Request) -> Response:
    return await _step(service, request, registry_of(service).pause)


async def resume_destination(service: Service, request: Request) -> Response:
    return await _step(service, request, registry_of(service).resume)


async def _step(service: Service, request: Request, step: Callable[[str, str], Awaitable[Destination]]) -> Response:
    before = _find(service, request)
    after = await step(before.name, caller_name(request))
    if after == before:
        request.scope[UNCHANGED] = True
    return JsonResponse(_json(service, request, after))


async def test_destination(service: Service, request: Request) -> Response:
    destination = _find(service, request)
    reply = await service.relay.test(destination, registry_of(service).credentials_of(destination.name))
    return JsonResponse(reply._asdict())


def registry_of(service: Service) -> DestinationRegistry:
    """Raises Rejected `not_supported`, and Unavailable while the declarations are unknown."""
    admin = service.access.admin
    if admin is None:
        raise Rejected("not_supported", "this server has no destinations")
    if not admin.log.ready.is_set():
        raise Unavailable(admin.log.trouble or "the administrative log is being read")
    return admin.destinations


def _find(service: Service, request: Request) -> Destination:
    destination = registry_of(service).find(name := request.path_params["name"])
    if not is_covered(request.scope[GRANT], destination):
        raise Rejected("unknown_destination", f"there is no destination {shown(name)} of this key's topics", "name")
    return destination


def is_covered(grant: Grant, destination: Destination) -> bool:
    """Whether the grant covers all topics of a destination."""
    return all(map(grant.covers, (destination.own_topic, *destination.topics)))


def _credentials_in(body: Mapping[str, Any]) -> dict[str, Any] | None:
    if "credentials" not in body:
        return None
    credentials = body["credentials"]
    if type(credentials) is not dict:  # do not quote it: it may be a secret
        raise Rejected("bad_field", "credentials are an object with names such as password", "credentials")
    return credentials


def _without_secrets(url: str) -> str:
    """Scheme, host and the first part of the path: the rest is often the secret of a web hook."""
    if url == PULL:
        return url
    parts = urlsplit(url)
    first = "/".join(parts.path.split("/")[:2])
    start = f"{parts.scheme}://{parts.netloc}{first}"
    return url if url in (start, start + "/") else f"{start}/..."


def _json(service: Service, request: Request, destination: Destination) -> dict[str, Any]:
    """A destination in the API: only the names of its credentials."""
    grant: Grant = request.scope[GRANT]
    state = "disabled" if destination.disabled else "paused" if destination.paused else "active"
    figures = service.relay.figures(destination.name)
    fields = destination.value()
    del fields["start_id"]  # useless to its owner
    if not grant.allows(Scope.OPERATE):
        fields["url"] = _without_secrets(fields["url"])
    return fields | {
        "system": destination.system, "state": state, "topic": destination.own_topic, "group": destination.group,
        "credentials": registry_of(service).credentials_of(destination.name).names,
        "figures": None if figures is None else dict(figures),
    }  # fmt: skip
