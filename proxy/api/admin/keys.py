"""Lists, creates, rotates and revokes API keys. A key's text is shown only once, to its creator."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from duemq.cluster.admin.api_keys import DEFAULT_OVERLAP_MS, ApiKeys
from duemq.model.errors import Rejected
from duemq.model.timing import parse_duration
from duemq.proxy.access import UNCHANGED, caller_name
from duemq.proxy.api.endpoint import Service
from duemq.proxy.request.json_body import check_fields, read_json
from duemq.web.body import SMALL_BODY_BYTES
from duemq.web.json_response import JsonResponse


async def list_keys(service: Service, request: Request) -> Response:
    keys = service.access.keys
    return JsonResponse({"keys": [] if keys is None else keys.described()})


async def post_key(service: Service, request: Request) -> Response:
    fields = await read_json(request, SMALL_BODY_BYTES)
    return JsonResponse(await _keys(service).make(fields, caller_name(request), checked=True), 201)


async def delete_key(service: Service, request: Request) -> Response:
    keys, id_ = _keys(service), request.path_params["id"]
    if (key := keys.by_id.get(id_)) is not None and key.revoked_at is not None:
        request.scope[UNCHANGED] = True
    return JsonResponse(await keys.revoke(id_, caller_name(request)))


async def rotate_key(service: Service, request: Request) -> Response:
    fields = await read_json(request, SMALL_BODY_BYTES)
    check_fields(fields, ("overlap",))
    overlap_ms = parse_duration(fields["overlap"], "overlap") if "overlap" in fields else DEFAULT_OVERLAP_MS
    return JsonResponse(await _keys(service).rotate(request.path_params["id"], overlap_ms, caller_name(request)))


def _keys(service: Service) -> ApiKeys:
    if service.access.keys is None:
        raise Rejected("not_supported", "this server keeps no API keys but those of its settings")
    return service.access.keys
