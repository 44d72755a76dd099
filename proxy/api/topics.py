"""Topics, their records, and the positions of named consumers."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from duemq.bus.base import Bus, TopicInfo
from duemq.bus.topic_cursor import MAX_PARTITIONS, cursor_in, decode_cursor, encode_cursor
from duemq.cluster.topics.internal_topics import is_internal
from duemq.model.callers.access import Grant
from duemq.model.errors import Rejected
from duemq.model.messages.names import CursorName, consumer_cursor
from duemq.model.timing import shown
from duemq.model.topics.rules import CONSUMER
from duemq.proxy.access import GRANT, UNCHANGED, caller_id, caller_name
from duemq.proxy.api.endpoint import JSON, Service
from duemq.proxy.request.json_body import check_fields, read_json
from duemq.proxy.request.message_ref import check_topic
from duemq.proxy.request.query import read_number, read_query, read_wait
from duemq.proxy.response.record_page import PageResponse, read_piece
from duemq.proxy.response.record_stream import EVENTS, LINES, RecordStream
from duemq.proxy.response.topic_reader import Page, TopicReader, readable
from duemq.web.admission.admission import share_of
from duemq.web.body import SMALL_BODY_BYTES, header
from duemq.web.json_response import JsonResponse

MAX_RECORDS, DEFAULT_RECORDS = 10_000, 1000
LAST_CURSOR = "x-duemq-last-cursor"
_TOPICS_PER_TURN = 20  # rendered before other tasks run: about 1 ms
_PARAMETERS = ("after", "consumer", "max", "wait")


async def list_topics(service: Service, request: Request) -> Response:
    grant: Grant = request.scope[GRANT]
    infos = sorted(await service.gateway.bus.topics(), key=lambda info: info.name)
    texts: list[bytes] = []
    for at, info in enumerate(infos, 1):
        if not is_internal(info.name) and grant.covers(info.name):
            texts.append(orjson.dumps(_topic_json(service, info)))
        if at % _TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)
    return Response(b'{"topics":[%b]}' % b",".join(texts), media_type=JSON)


async def get_topic(service: Service, request: Request) -> Response:
    topic, gateway = topic_of(request), service.gateway
    info, counted = await asyncio.gather(gateway.bus.topic(topic), gateway.pending(topic))
    if info is None and counted is not None and counted.pending:
        info = TopicInfo(topic, 0, (), ())  # the first delivery creates it
    if info is None:
        trouble = service.gateway.trouble(topic)
        why = f"messages to it are refused: {trouble}" if trouble else "nothing was delivered to it yet"
        raise Rejected("unknown_topic", f"there is no topic {topic}: {why}", "topic", trouble=trouble)
    counts = {
        "pending": None if counted is None else counted.pending,
        "pending_unread": None if counted is None else counted.unread,
    }
    return JsonResponse(_topic_json(service, info) | counts)


async def get_records(service: Service, request: Request) -> Response:
    topic, bus = topic_of(request), service.gateway.bus
    query = read_query(request, _PARAMETERS)
    most = read_number(query, "max", DEFAULT_RECORDS, MAX_RECORDS)
    wait_ms = read_wait(query, service.max_wait_ms)
    accepted = header(request, b"accept") or ""
    streamed = next((form for form in (EVENTS, LINES) if form in accepted), None) if request.method == "GET" else None
    after = query.get("after", header(request, b"last-event-id") if streamed == EVENTS else None)
    offsets = await _start(service, topic, after, query.get("consumer"))
    if streamed is not None:
        return RecordStream(streamed, bus, topic, offsets, service.endings, share_of(request))
    reader = TopicReader(bus, topic, offsets)
    first = await read_piece(reader, most, share_of(request))
    if not first and wait_ms:
        first = await _wait(service, request, topic, reader, most, wait_ms / 1000)
    return PageResponse(reader, first, most, share_of(request), service.endings)


async def get_consumer_cursor(service: Service, request: Request) -> Response:
    topic = topic_of(request)
    consumer = _cursor_of(request.path_params["consumer"], "bad_field")
    place = await service.gateway.bus.get_consumer_cursor(topic, consumer)
    return Response(status_code=204) if place is None else JsonResponse({"cursor": cursor_in(place)})


async def put_consumer_cursor(service: Service, request: Request) -> Response:
    topic = topic_of(request)
    consumer = _cursor_of(request.path_params["consumer"], "bad_field")
    body = await read_json(request, SMALL_BODY_BYTES)
    check_fields(body, ("cursor",))
    cursor = body.get("cursor")
    if type(cursor) is not str:
        raise Rejected("bad_field", "cursor is needed: the text that came with the records", "cursor")
    bus = service.gateway.bus
    info = await _readable(bus, topic)
    decode_cursor(cursor, topic, info, "cursor")
    stored, expected = await bus.get_consumer_cursor(topic, consumer), header(request, LAST_CURSOR.encode())
    if info is None and stored is None:
        request.scope[UNCHANGED] = True
        return Response(status_code=204)  # the start is the default, so invented topics store nothing
    if stored is not None and expected is not None and cursor_in(stored) != expected:
        name = request.path_params["consumer"]
        detail = (
            f"another process commits as consumer {name} of topic {topic}: one at a time may. Give each a consumer "
            "name, or look up the cursor and continue there"
        )
        raise Rejected("consumer_in_use", detail, "consumer")
    if stored is None:
        await service.consumer_names.add(bus, caller_id(request), topic, consumer)
    await bus.set_consumer_cursor(topic, consumer, cursor.encode())
    admin = service.access.admin
    if admin is not None and admin.trail.is_repeat((caller_name(request), topic, consumer)):
        request.scope[UNCHANGED] = True  # the trail records its commits once an hour
    return Response(status_code=204)


async def delete_consumer_cursor(service: Service, request: Request) -> Response:
    topic, bus = topic_of(request), service.gateway.bus
    consumer = _cursor_of(request.path_params["consumer"], "bad_field")
    if await bus.get_consumer_cursor(topic, consumer) is None:
        request.scope[UNCHANGED] = True
    else:
        await bus.set_consumer_cursor(topic, consumer, b"")
    await service.consumer_names.remove(bus, caller_id(request), topic, consumer)
    return Response(status_code=204)


async def _start(service: Service, topic: str, after: str | None, consumer: str | None) -> list[int]:
    """Where to read from: `after` overrides the consumer's cursor; without both, the start."""
    bus = service.gateway.bus
    source = "after"
    if consumer is not None:
        cursor_name = _cursor_of(consumer, "bad_query")
        if after is None:
            place = await bus.get_consumer_cursor(topic, cursor_name)
            if place is not None:
                after, source = cursor_in(place), "consumer"
    info = await _readable(bus, topic)
    if after is None:
        return list(info.start_offsets) if info else []
    return decode_cursor(after, topic, info, source)


async def _readable(bus: Bus, topic: str) -> TopicInfo | None:
    """See `readable`. Raises Rejected `not_supported` for a topic with too many partitions for a cursor."""
    info = await readable(bus, topic)
    if info is not None and info.partitions > MAX_PARTITIONS:
        detail = f"topic {topic} has {info.partitions} partitions; over HTTP one of up to {MAX_PARTITIONS} can be read"
        raise Rejected("not_supported", detail, "topic")
    return info


async def _wait(service: Service, request: Request, topic: str, reader: TopicReader, most: int, wait_s: float) -> Page:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    subscription = service.gateway.bus.subscribe(topic)
    try:
        share = share_of(request)
        async with service.endings.watch(request.scope, request.receive) as end:
            # Once more before the first wait: records between reading and subscribing wake no reader.
            page = await read_piece(reader, most, share)
            while not page and await end.or_growth(subscription, deadline - loop.time()):
                page = await read_piece(reader, most, share)
            end.check_grant()
            return page
    finally:
        subscription.close()


def topic_of(request: Request) -> str:
    """The topic in the path. Raises Rejected `bad_topic` or `forbidden`."""
    topic = check_topic(request.path_params["topic"])
    if is_internal(topic):
        raise Rejected("forbidden", f"{topic} is duemq's own log; it is not for consumers", "topic")
    return topic


def _cursor_of(consumer: str, code: str) -> CursorName:
    if not CONSUMER.fullmatch(consumer):
        detail = f"a consumer's name has 1 to 128 characters of A-Z a-z 0-9 . _ : -, not {shown(consumer)}"
        raise Rejected(code, detail, "consumer")
    return consumer_cursor(consumer)


def _topic_json(service: Service, info: TopicInfo) -> dict[str, Any]:
    known = not info.trouble
    return {
        "topic": info.name,
        "partitions": info.partitions,
        "records": info.records if known else None,
        "start_offsets": info.start_offsets,
        "end_offsets": info.end_offsets,
        "cursor": encode_cursor(info.name, info.end_offsets)
        if known and 0 < info.partitions <= MAX_PARTITIONS
        else None,
        "trouble": info.trouble or service.gateway.trouble(info.name),
        "lateness": service.gateway.topic_lateness(info.name),
    }
