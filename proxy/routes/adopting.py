"""Adopting files of messages: handed over by their path, taken in by each replica for itself."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from duemq.delay.gateway import Adopting
from duemq.delay.work import lines_of
from duemq.model.adoption import Adopt
from duemq.model.errors import Rejected, Unavailable
from duemq.model.timing import shown
from duemq.proxy.body import SMALL_BODY_BYTES, read_body
from duemq.proxy.endpoint import Service
from duemq.proxy.ingress import parse_json
from duemq.proxy.render import times
from duemq.proxy.reply import JsonResponse
from duemq.storage.adoptions import ADOPTED, REFUSED, WANTED

STATES: Final = (WANTED, ADOPTED, REFUSED)
_INSPECT: Final = lines_of("duemq.storage.intake_process")
_FIELDS: Final = ("path", "link", "sha256", "size", "window", "rows")
_OF_FILE: Final = frozenset(("sha256", "size", "window", "rows"))


async def post_adoption(service: Service, request: Request) -> Response:
    adopt = await _adopt(service, parse_json(await read_body(request, SMALL_BODY_BYTES)))
    policy, now = service.adopting, service.clock()
    if adopt.window < now + policy.lead_ms:
        raise Rejected("past_due", f"{adopt.path}: {policy.too_near}", "path")
    if adopt.window > now + policy.furthest_ms:
        raise Rejected("delay_too_long", f"{adopt.path}: {policy.too_far}", "path")
    found = await service.gateway.adopt(adopt)
    return JsonResponse(_shown(found), 200 if found.known else 202, {"Location": f"/v1/adoptions/{found.id}"})


async def _adopt(service: Service, body: dict[str, Any]) -> Adopt:
    """What to say in the log of the file that a request names; it is read from end to end, unless all is said of it."""
    for name in body:
        if name not in _FIELDS:
            known = ", ".join(_FIELDS)
            raise Rejected("unknown_field", f"{shown(name)} is not a field here; known are {known}", name[:80])
    path, link = body.get("path"), body.get("link", False)
    if type(path) is not str or not path.startswith("/") or "\x00" in path:
        raise Rejected("bad_field", "path must be the absolute path of a file, as the nodes see it", "path")
    if type(link) is not bool:
        raise Rejected("bad_field", f"link must be true or false, not {shown(link)}", "link")
    said: Adopt | None = None
    if given := body.keys() & _OF_FILE:
        if missing := sorted(_OF_FILE - given):
            detail = f"{missing[0]} is missing: all or none of {', '.join(sorted(_OF_FILE))}"
            raise Rejected("bad_field", detail, missing[0])
        said = Adopt.of({"path": path, "link": link} | {name: body[name] for name in given})
    if (reason := await asyncio.to_thread(service.adopting.refuse_folder, path)) is not None:
        raise Rejected("forbidden", reason, "path")
    return said or await _inspected(service, path, link)


async def _inspected(service: Service, path: str, link: bool) -> Adopt:
    job = {"inspect": path, "limits": asdict(service.adopting.limits)}
    async with aclosing(_INSPECT(job)) as answers:
        async for line in answers:
            found = orjson.loads(line)
            if "reason" in found:
                row = {} if found["row"] is None else {"row": found["row"]}
                raise Rejected("bad_delay_file", found["reason"], found["column"] or "path", **row)
            return Adopt(path, found["sha256"], found["size"], found["window"], found["rows"], link)
    raise Unavailable(f"{path} could not be read")


async def list_adoptions(service: Service, request: Request) -> Response:
    state = request.query_params.get("state")
    if unknown := next((name for name in request.query_params if name != "state"), None):
        raise Rejected("bad_query", f"{shown(unknown)} is not a parameter here; known is state", unknown[:80])
    if state is not None and state not in STATES:
        raise Rejected("bad_query", f"state must be one of {', '.join(STATES)}, not {shown(state)}", "state")
    return JsonResponse({"adoptions": [_shown(one) for one in await service.gateway.adoptions(state)]})


async def get_adoption(service: Service, request: Request) -> Response:
    id_: str = request.path_params["id"]
    found = await service.gateway.adoption(id_)
    if found is None:
        raise Rejected("unknown_adoption", f"there is no adoption {shown(id_)}", "id")
    return JsonResponse(_shown(found))


def _shown(one: Adopting) -> dict[str, Any]:
    """`pending`: what the shard says of it is not known yet."""
    said: dict[str, Any] = {"id": one.id, "shard": one.shard, "state": "pending", "duplicate": one.known}
    if (found := one.adoption) is None:
        return said
    adopt = found.adopt
    said |= {
        "state": found.state, "path": adopt.path, "rows": adopt.rows, "size": adopt.size, "sha256": adopt.sha256,
        **times("window", adopt.window), **times("since", found.at),
    }  # fmt: skip
    return said | {"reason": found.reason} if found.reason else said
