"""Topics, and the latest records of one."""

from __future__ import annotations

from base64 import b64decode
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from duemq.bus.topic_cursor import MAX_PARTITIONS, encode_cursor
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.api_calls import call_api
from duemq.proxy.console.caller import sees_payloads
from duemq.proxy.console.views import render

_LATEST: Final = 50
_PREVIEW: Final = 200


async def get_topics(service: Service, request: Request) -> Response:
    listed = await call_api(service, request, "GET", "/v1/topics")
    return render(request, "topics.html", topics=listed["topics"], topic=None)


async def get_topic(service: Service, request: Request) -> Response:
    name: str = request.path_params["topic"]
    topic = await call_api(service, request, "GET", f"/v1/topics/{name}")
    records = []
    if topic["cursor"] is not None and topic["partitions"] <= MAX_PARTITIONS:
        each = max(_LATEST // topic["partitions"], 1)
        ends = zip(topic["start_offsets"], topic["end_offsets"], strict=True)
        after = encode_cursor(name, [max(start, end - each) for start, end in ends])
        query = {"after": after, "max": str(_LATEST)}
        records = (await call_api(service, request, "GET", f"/v1/topics/{name}/records", query))["records"]
    visible = sees_payloads(service, request)
    latest = sorted(records, key=lambda record: record["timestamp_ms"], reverse=True)
    shown = [
        {"key": None, "key_base64": None} | record | {"preview": preview(record) if visible else ""}
        for record in latest
    ]
    return render(request, "topics.html", topics=[], topic=topic, visible=visible, records=shown)


def preview(record: dict[str, Any]) -> str:
    """The beginning of a payload."""
    if "payload_base64" in record:
        data = b64decode(record["payload_base64"])
        return data[: _PREVIEW // 3].hex(" ")
    text: str = record["payload"] or ""
    return text if len(text) <= _PREVIEW else text[:_PREVIEW] + "…"
