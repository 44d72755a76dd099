"""The story of a message after its delivery, at each reader of its topic."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from duemq.cluster.admin.administration import Administration
from duemq.cluster.shards.shard_reader import MessageState
from duemq.model.callers.access import Grant
from duemq.model.messages.dead_letters import REDRIVEN_FROM, REDRIVEN_ID
from duemq.proxy.access import GRANT
from duemq.proxy.api.endpoint import Service
from duemq.proxy.rate_limit import charge
from duemq.proxy.request.message_ref import message_ref, unknown
from duemq.proxy.story.readers import MAX_READERS, is_return, is_told, readers_of
from duemq.web.admission.admission import share_of
from duemq.web.json_response import JsonResponse


async def get_story(service: Service, request: Request) -> Response:
    gateway, ref = service.gateway, message_ref(request)
    state = await gateway.state(ref)
    if state is None:
        raise unknown(ref)
    document: dict[str, Any] = {
        "id": state.id, "status": state.status, "topic": state.topic, "place": None, "readers": [],
        "hidden_readers": False, "complete": True, **_origin(state),
    }  # fmt: skip
    if state.status != "delivered":
        return JsonResponse(document)
    # Parsing consumers' records needs their code, which is slow to import and rarely needed.
    await asyncio.to_thread(import_module, "duemq.proxy.story.story")
    from duemq.proxy.story.records import Budget
    from duemq.proxy.story.story import StoryBuilder

    budget = Budget(share_of(request), lambda count: charge(request.scope, count))
    destinations, jobs = _known(service.access.admin)
    walk = StoryBuilder(gateway, budget, jobs, service.relay.figures)
    record = await walk.records.of(state)
    if record is not None:
        document["place"] = {"partition": record.partition, "offset": record.offset}
        topics = [info.name for info in await gateway.bus.topics()]
        readers = readers_of(state.topic, destinations, topics)
        grant: Grant = request.scope[GRANT]
        visible = [reader for reader in readers if is_told(grant, reader)]
        document["hidden_readers"] = len(visible) < len(readers)
        stories = [await walk.tell(reader, record, state) for reader in visible[:MAX_READERS]]
        document["readers"] = [story for story in stories if story is not None]
        walk.is_complete &= len(visible) <= MAX_READERS
    document["complete"] = walk.is_complete and not budget.is_spent
    return JsonResponse(document)


def _known(admin: Administration | None) -> tuple[Any, Any]:
    """The destinations and jobs that this process knows."""
    if admin is None or not admin.log.ready.is_set():
        return (), ()
    return admin.destinations.listed(), admin.jobs.listed()


def _origin(state: MessageState) -> dict[str, Any]:
    """The message from which this one was made, if a reader sent this one back or it is a redriven dead letter."""
    texts = {name: (value or b"").decode(errors="replace") for name, value in state.headers}
    if is_return(state):
        return {"return_of": texts["x-duemq-id"], "redriven_from": None}
    if REDRIVEN_FROM in texts:
        return {"return_of": None, "redriven_from": {"id": texts.get(REDRIVEN_ID), "letter": texts[REDRIVEN_FROM]}}
    return {"return_of": None, "redriven_from": None}
