"""Lists topics, and the records of a topic: the latest, or those from an offset or a time on; all, or those with a
key."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from duemq.bus.topic_cursor import MAX_PARTITIONS, encode_cursor
from duemq.model.timing import parse_instant
from duemq.model.topics.group_topics import DEAD, RETRY
from duemq.model.topics.topic_names import OWN
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.api_calls import call_api
from duemq.proxy.console.caller import sees_payloads
from duemq.proxy.console.forms import given, instant_text
from duemq.proxy.console.views import render
from duemq.proxy.request.query import read_number, read_query

QUERY: Final = "key offset from after"
_LATEST: Final = 50
_SEARCHED: Final = 1_000  # records searched for a key
_PREVIEW: Final = 200
_OF_DUEMQ: Final = (RETRY, DEAD, OWN)
_COUNTED, _TOGETHER, _PATIENCE_S = 50, 10, 1.0  # how many topics' messages to count, how many at a time, how long
_MAX_OFFSET: Final = 10**10 - 1


async def get_topics(service: Service, request: Request) -> Response:
    """List the topics that senders use; with `all` also those for retries and dead letters."""
    shows_all = bool(read_query(request, ("all",)).get("all"))
    listed = (await call_api(service, request, "GET", "/v1/topics"))["topics"]
    topics = [one for one in listed if shows_all or not one["topic"].startswith(_OF_DUEMQ)]
    return render(
        request, "topics.html", topics=topics, topic=None, hidden=len(listed) - len(topics), shows_all=shows_all,
        pending=await _pending(service, [one["topic"] for one in topics[:_COUNTED]]),
    )  # fmt: skip


async def _pending(service: Service, topics: list[str]) -> dict[str, int]:
    """The number of pending messages per topic, if known within a second."""
    counts: dict[str, int] = {}
    try:
        async with asyncio.timeout(_PATIENCE_S):
            for start in range(0, len(topics), _TOGETHER):
                some = topics[start : start + _TOGETHER]
                counted = await asyncio.gather(*map(service.gateway.pending, some))
                counts |= {topic: one.pending for topic, one in zip(some, counted, strict=True) if one is not None}
    except TimeoutError:
        pass
    return counts


async def get_topic(service: Service, request: Request) -> Response:
    name: str = request.path_params["topic"]
    fields = read_query(request, QUERY.split())
    topic = await call_api(service, request, "GET", f"/v1/topics/{name}")
    records, cursor = list[dict[str, Any]](), None
    most = _SEARCHED if fields.get("key") else _LATEST
    if topic["cursor"] is not None and topic["partitions"] <= MAX_PARTITIONS:
        after = fields.get("after") or encode_cursor(name, await _start(service, topic, fields, most))
        query = {"after": after, "max": str(most)}
        page = await call_api(service, request, "GET", f"/v1/topics/{name}/records", query)
        records, cursor = page["records"], page["cursor"] if len(page["records"]) == most else None
    is_latest = not given(fields, "offset", "from", "after")
    if is_latest:
        cursor = None
        records.sort(key=lambda one: (one["timestamp_ms"], one["partition"], one["offset"]), reverse=True)
    visible = sees_payloads(service, request)
    shown = [
        {"key": None, "key_base64": None, "header_list": None} | one | {"preview": preview(one) if visible else ""}
        for one in records
        if not fields.get("key") or fields["key"] in (one.get("key"), one.get("key_base64"))
    ]
    return render(
        request, "topics.html", topics=[], topic=topic, visible=visible, records=shown[:_LATEST], is_latest=is_latest,
        fields=dict.fromkeys(QUERY.split(), "") | fields, searched=len(records),
        next=urlencode(given(fields, "key") | {"after": cursor}) if cursor else "",
    )  # fmt: skip


async def _start(service: Service, topic: dict[str, Any], fields: Mapping[str, str], most: int) -> list[int]:
    """The offset at which to begin in each partition. Raises Rejected `bad_query`, `bad_time`, `naive_time`."""
    ends = list(zip(topic["start_offsets"], topic["end_offsets"], strict=True))
    if fields.get("offset"):
        offset = read_number(fields, "offset", 0, _MAX_OFFSET, 0)
        return [min(max(offset, start), end) for start, end in ends]
    if fields.get("from"):
        since, bus = parse_instant(instant_text(fields["from"]), "from", text=True), service.gateway.bus
        firsts = await asyncio.gather(*(bus.first_since(topic["topic"], at, since) for at in range(len(ends))))
        return [min(max(offset, start), end) for offset, (start, end) in zip(firsts, ends, strict=True)]
    each = max(most // len(ends), 1)
    return [max(start, end - each) for start, end in ends]


def preview(record: dict[str, Any]) -> str:
    """The beginning of a payload."""
    if "payload_base64" in record:
        data = b64decode(record["payload_base64"])
        return data[: _PREVIEW // 3].hex(" ")
    text: str = record["payload"] or ""
    return text if len(text) <= _PREVIEW else text[:_PREVIEW] + "…"
