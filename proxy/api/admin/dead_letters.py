"""Lists and shows the dead letters in a topic, such as a consumer group's `dlq.GROUP`."""

from __future__ import annotations

import re
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from duemq.cluster.topics.internal_topics import is_internal
from duemq.model.errors import Rejected, Unavailable
from duemq.model.messages.dead_letters import origin_of, redrives_in
from duemq.model.messages.record import StoredRecord, unpack_record
from duemq.proxy.api.endpoint import Service
from duemq.proxy.jobs.topic_work import place_of, source_of
from duemq.proxy.request.message_ref import check_topic
from duemq.proxy.request.query import DEFAULT_LIMIT, MAX_LIMIT, read_number, read_query
from duemq.proxy.response.render import records_bytes, times
from duemq.web.json_response import JsonResponse

_PLACE = re.compile(r"[0-9]{1,5}:[0-9]{1,15}")
_PAGE_BYTES = 4 << 20


async def list_topic(service: Service, request: Request) -> Response:
    """List the dead letters partition by partition, each from its oldest record on."""
    topic = _topic(request)
    fields = read_query(request, ("limit", "cursor"))
    limit, cursor = read_number(fields, "limit", DEFAULT_LIMIT, MAX_LIMIT), fields.get("cursor")
    if cursor is not None and not _PLACE.fullmatch(cursor):
        raise Rejected("bad_cursor", "cursor must be the one of the page before", "cursor")
    info = await source_of(service.gateway, topic)
    partition, offset = (0, 0) if cursor is None else place_of(cursor)
    letters: list[dict[str, Any]] = []
    while partition < info.partitions and len(letters) < limit:
        end = info.end_offsets[partition]
        offset = max(offset, info.start_offsets[partition])
        records: list[StoredRecord] = []
        if offset < end:
            records = await service.gateway.bus.read(topic, partition, offset, limit - len(letters), _PAGE_BYTES)
        for record in records:
            letters.append(_json(partition, record, whole=False))
            offset = record.offset + 1
        if not records or offset >= end:
            partition, offset = partition + 1, 0
        elif records:
            break  # the page is full
    more = partition < info.partitions
    return JsonResponse({"letters": letters, "cursor": f"{partition}:{offset}" if more else None})


async def show_record(service: Service, request: Request) -> Response:
    topic, place = _topic(request), request.path_params["place"]
    if not _PLACE.fullmatch(place):
        raise Rejected("unknown_message", "a dead letter of a topic is named PARTITION:OFFSET", "id")
    partition, offset = place_of(place)
    info = await source_of(service.gateway, topic)
    if partition < info.partitions and info.start_offsets[partition] <= offset < info.end_offsets[partition]:
        records = await service.gateway.bus.read(topic, partition, offset, 1)
        if records and records[0].offset == offset:
            return JsonResponse(_json(partition, records[0], whole=True))
        if not records:
            raise Unavailable(f"partition {partition} of {topic} cannot be read now")
    raise Rejected("unknown_message", f"topic {topic} does not have record {place}, or no longer has it", "id")


def _topic(request: Request) -> str:
    topic = check_topic(request.path_params["topic"])
    if is_internal(topic):
        raise Rejected("forbidden", f"{topic} is one of duemq's own logs")
    return topic


def _json(partition: int, stored: StoredRecord, *, whole: bool) -> dict[str, Any]:
    headers = unpack_record(stored.frame).headers
    origin = origin_of(headers)
    record = orjson.loads(records_bytes(partition, [stored])[0])
    if not whole:
        record = {name: value for name, value in record.items() if not name.startswith("payload")}
    return {
        "id": f"{partition}:{stored.offset}", **times("dead_at", stored.timestamp),
        "origin": None if origin is None else origin._asdict(), "redrives": redrives_in(headers), **record,
    }  # fmt: skip
