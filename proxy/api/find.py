"""Finds messages: one by its id or name, lists of messages by filter, and dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from duemq.cluster.shards.shard_reader import MessageState, Query
from duemq.model.errors import Rejected
from duemq.proxy.access import namespace_of
from duemq.proxy.api.endpoint import Service
from duemq.proxy.api.search import search
from duemq.proxy.rate_limit import charge
from duemq.proxy.request.message_ref import message_ref, unknown
from duemq.proxy.request.query import (
    DEFAULT_LIMIT,
    FILTER_FIELDS,
    MAX_LIMIT,
    read_choice,
    read_filter,
    read_number,
    read_order,
    read_query,
)
from duemq.proxy.response.render import Json, state_json
from duemq.proxy.story.readers import is_return
from duemq.web.json_response import JsonResponse

_LIST = (*FILTER_FIELDS, "shard", "limit", "cursor")
_MAX_SHARDS = 1 << 16
_DEAD_LETTERS = tuple(name for name in _LIST if name != "status")


async def get_message(service: Service, request: Request) -> Response:
    return await show(service, request, message_ref(request))


async def show(service: Service, request: Request, ref: str) -> Response:
    """The state of a message. Raises Rejected `unknown_message`."""
    state = await service.gateway.state(ref)
    if state is None:
        raise unknown(ref)
    return JsonResponse(state_json(state, namespace_of(request), payload=True))


async def list_messages(service: Service, request: Request) -> Response:
    fields = read_query(request, (*_LIST, "order", "search", "returns"))
    returns = read_choice(fields, "returns", ("true", "false")) == "true"
    if "search" not in fields:
        return await _list(service, request, read_order(fields, _query(fields)), returns=returns)
    if other := next((name for name in ("key", "label", "order") if name in fields), None):
        raise Rejected(
            "bad_query", f"search looks for keys and labels, newest first: it does not go with {other}", other
        )
    query = replace(_query(fields), status=_query(fields).status if "status" in fields else None)
    page = await search(service.gateway, fields["search"], query, returns=returns)
    charge(request.scope, page.calls - 1)
    messages = _heads(page.messages, request)
    return JsonResponse({"messages": messages, "cursor": page.cursor, "indexed": page.indexed})


async def list_dead_letters(service: Service, request: Request) -> Response:
    return await _list(service, request, replace(_query(read_query(request, _DEAD_LETTERS)), status="dead"))


def _query(fields: Mapping[str, str]) -> Query:
    limit = read_number(fields, "limit", DEFAULT_LIMIT, MAX_LIMIT)
    shard = read_number(fields, "shard", 0, _MAX_SHARDS - 1, 0) if "shard" in fields else None
    return replace(read_filter(fields, "bad_query"), limit=limit, cursor=fields.get("cursor"), shard=shard)


async def _list(service: Service, request: Request, query: Query, *, returns: bool = True) -> Response:
    page = await service.gateway.find(query)
    states = [state for state in page.messages if returns or not is_return(state)]
    return JsonResponse({"messages": _heads(states, request), "cursor": page.cursor})


def _heads(states: Iterable[MessageState], request: Request) -> list[Json]:
    caller = namespace_of(request)
    return [state_json(state, caller, payload=False) for state in states]
