"""Searches messages by id, name, key, label, topic, time and state. Pages follow a cursor; matches are not counted."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import orjson
from starlette.requests import Request
from starlette.responses import Response

from duemq.bus.topic_cursor import encode_cursor
from duemq.model.callers.access import Scope
from duemq.model.errors import Rejected, Unavailable
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.api_calls import call_api
from duemq.proxy.console.caller import grant_of, sees_payloads
from duemq.proxy.console.forms import given, instant_text
from duemq.proxy.console.views import redirect, render
from duemq.proxy.request.query import PREFIXES, STATUSES, read_query

FILTERS: Final = ("topic", "key", "label", "due_from", "due_to", *PREFIXES)
QUERY: Final = f"ref search status {' '.join(FILTERS)} returns limit cursor"
_FIELDS: Final = tuple(QUERY.split())
LIMITS: Final = ("25", "50", "100", "250")
PATIENCE_S: Final = 0.15  # how long a search without matches continues before it reports its progress
_SHOWN_BYTES: Final = 64 << 10
_INDENTED_BYTES: Final = 4 * _SHOWN_BYTES  # of indented JSON: deep nesting makes it hundreds of times as long
_FORMS: Final = ("auto", "json", "text", "hex")
_HEX_ROW: Final = 16
_ABSENT: Final = dict.fromkeys(
    (
        "key", "key_base64", "reason", "delivered_at", "cancelled_at", "dead_at", "expires_at", "attempts",
        "changes_left_out", "header_list",
    )
)  # fmt: skip  # fields that the API may omit
_DONE: Final = {
    "cancel": "It is cancelled and will not be delivered.",
    "move": "It has its new time.",
    "deliver-now": "It is delivered now.",
    "redrive": "It is scheduled again.",
    "schedule": "It is scheduled.",
    "duplicate": "It had been scheduled already: nothing was done.",
    "pending": "The answer of its shard is not known yet. Load the page again in a moment.",
}


async def get_messages(service: Service, request: Request) -> Response:
    fields = read_query(request, _FIELDS)
    wrong, listed = "", dict[str, Any](messages=[], cursor=None)
    try:
        if ref := fields.get("ref", "").strip():
            state = await call_api(service, request, "GET", f"/v1/messages/{quote(ref, safe='')}")
            return redirect(request, f"messages/{quote(state['id'])}")
        query = api_filter(fields) | given({"search": fields.get("search", "").strip()}, "search")
        query["returns"] = "true" if fields.get("returns") else "false"
        listed = await _search(service, request, query)
        if is_only_match(listed, query):
            return redirect(request, f"messages/{quote(listed['messages'][0]['id'])}")
    except Rejected as error:  # keep the typed values on the page
        wrong = error.detail
    shown = {name: value for name, value in fields.items() if name != "cursor"}
    matching = {name: value for name, value in shown.items() if name not in ("search", "returns")}
    return render(
        request, "messages.html", 400 if wrong else 200, fields=dict.fromkeys(_FIELDS, "") | fields,
        wrong=wrong, statuses=STATUSES, messages=[_ABSENT | one for one in listed["messages"]],
        limits=LIMITS, by_job=grant_of(request).allows(Scope.OPERATE),
        filtered=bool(given(fields, *FILTERS)), chosen=bool(given(fields, "status", "returns", *FILTERS)),
        indexed=listed.get("indexed"),
        next=urlencode(shown | {"cursor": listed["cursor"]}) if listed["cursor"] else "", query=urlencode(matching),
    )  # fmt: skip


async def _search(service: Service, request: Request, query: dict[str, str]) -> Any:
    """The next page with matches, or the last page that the search reached in its time."""
    until = time.monotonic() + PATIENCE_S
    while True:
        listed = await call_api(service, request, "GET", "/v1/messages", query)
        if listed["messages"] or listed["cursor"] is None or time.monotonic() >= until:
            return listed
        query |= {"cursor": listed["cursor"]}


def is_only_match(listed: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    """Whether a search found one message, by its id or name."""
    text, messages = query.get("search"), listed["messages"]
    return (
        bool(text)
        and "cursor" not in query
        and listed["cursor"] is None
        and len(messages) == 1
        and text not in (messages[0].get("key"), *messages[0]["labels"])
    )


def api_filter(fields: dict[str, str]) -> dict[str, str]:
    """The query to the API for the fields of the page."""
    query = given(fields, "status", *FILTERS, "cursor")
    query["limit"] = fields.get("limit") or LIMITS[1]
    return query | {name: instant_text(query[name]) for name in ("due_from", "due_to") if name in query}


async def get_message(service: Service, request: Request) -> Response:
    query = read_query(request, ("as", "done"))
    ref: str = request.path_params["id"]
    state = await call_api(service, request, "GET", f"/v1/messages/{quote(ref, safe='')}")
    grant = grant_of(request)
    form = query.get("as", "auto")
    payload, visible = payload_of(state), sees_payloads(service, request)
    story, untold = None, ""
    try:
        story = await call_api(service, request, "GET", f"/v1/messages/{quote(state['id'])}/story")
        if story["place"] is not None and (record := await _record_of(service, request, story)) is not None:
            payload, state = payload_of(record), state | {"payload": record.get("payload", "")}
    except (Rejected, Unavailable) as error:
        untold = error.detail
    form, text = formatted(payload or b"", form if form in _FORMS else "auto") if visible else ("", "")
    return render(
        request, "message.html", message=_ABSENT | state, visible=visible, changes=changes_of(state),
        bytes=None if payload is None else len(payload), form=form, text=text,
        cut=payload is not None and len(payload) > _SHOWN_BYTES, is_null=is_null(state),
        done=_DONE.get(query.get("done", ""), ""), story=story, untold=untold,
        can_change=state["status"] == "scheduled" and grant.allows(Scope.CANCEL),
        can_redrive=state["status"] == "dead" and grant.allows(Scope.OPERATE), now=service.clock(),
    )  # fmt: skip


async def _record_of(service: Service, request: Request, story: dict[str, Any]) -> dict[str, Any] | None:
    """The record of a delivered message, if it still exists."""
    path, place = f"/v1/topics/{story['topic']}", story["place"]
    topic = await call_api(service, request, "GET", path)
    if topic["cursor"] is None:
        return None
    offsets = list(topic["end_offsets"])
    offsets[place["partition"]] = place["offset"]
    query = {"after": encode_cursor(story["topic"], offsets), "max": "1"}
    records: list[dict[str, Any]] = (await call_api(service, request, "GET", f"{path}/records", query))["records"]
    return next((one for one in records if one["offset"] == place["offset"]), None)


def changes_of(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The changes of a message, oldest first, with all fields that the page shows."""
    return [{"from": None, "to": None, "by": None} | change for change in state.get("changes", ())]


def payload_of(state: dict[str, Any]) -> bytes | None:
    """The payload of a message; None if it is null or no longer kept."""
    if "payload_base64" in state:
        return b64decode(state["payload_base64"])
    payload: str | None = state.get("payload")
    return None if payload is None else payload.encode()


def is_null(state: dict[str, Any]) -> bool:
    """Whether the payload is null, which differs from an empty payload and from one that is no longer kept."""
    return state.get("payload", "") is None


def is_cut(payload: bytes) -> bool:
    """Whether only the beginning of a payload is shown."""
    return len(payload) > _SHOWN_BYTES


def formatted(payload: bytes, form: str) -> tuple[str, str]:
    """The form in which a payload is shown, and the text for at most its first 64 KiB.

    `auto` is JSON for an object or a list, text for UTF-8, else hexadecimal.
    """
    if form in ("auto", "json") and payload[:1].strip() in (b"{", b"[") and len(payload) <= _SHOWN_BYTES:
        try:
            text = orjson.dumps(orjson.loads(payload), option=orjson.OPT_INDENT_2)
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # not JSON, or nested too deeply to write
            text = b""
        if 0 < len(text) <= _INDENTED_BYTES:
            return "json", text.decode()
    part = payload[:_SHOWN_BYTES]
    if form != "hex":
        try:
            return "text", part.decode()
        except UnicodeDecodeError as error:
            cut_in_two = len(part) < len(payload) and error.start >= len(part) - 3
            if form != "auto" or cut_in_two:
                return "text", part.decode(errors="backslashreplace")
    return "hex", _hex(part)


def _hex(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), _HEX_ROW):
        row = data[start : start + _HEX_ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{_HEX_ROW * 3}} {letters}")
    return "\n".join(lines)
