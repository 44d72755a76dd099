"""Cancels, moves, delivers now, redrives and purges one message, the selected messages, or all that match a filter.

A page first asks for confirmation, with the number of messages; then the API makes the change.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.callers.access import Scope
from duemq.model.errors import Rejected, Unavailable
from duemq.model.messages.dead_letters import DESTINATION, home_of
from duemq.model.topics.group_topics import group_of_letters
from duemq.proxy.access import UNCHANGED
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.api_calls import call_api
from duemq.proxy.console.caller import grant_of, sees_payloads
from duemq.proxy.console.forms import MAX_SELECTED, FormFields, given, instant_text, read_form
from duemq.proxy.console.pages.messages import FILTERS, api_filter
from duemq.proxy.console.pages.topics import preview
from duemq.proxy.console.views import messages_text, redirect, render
from duemq.proxy.destinations.handlers import is_covered
from duemq.proxy.request.query import MAX_LIMIT, read_query

COUNT_S: Final = 1.0  # how long matches are counted before the page says "more"
_SIDE_BY_SIDE: Final = 50
_DESCRIBED: Final = 5  # messages described in a question
_PATIENCE_S: Final = 2.0  # for reading the log


class Kind(NamedTuple):
    """A kind of change: the text of its button, its effect on one message and on several, and their state after it."""

    verb: str
    one: str
    warning: str
    done: str


KINDS: Final = {
    "cancel": Kind(
        "Cancel", "It will not be delivered. This cannot be undone.",
        "They will not be delivered. This cannot be undone.", "cancelled",
    ),
    "move": Kind("Move", "It gets another due time.", "They get another due time.", "moved"),
    "deliver-now": Kind(
        "Deliver now", "It is delivered at once, whatever its due time.",
        "They are delivered at once, whatever their due times.", "delivered now",
    ),
    "redrive": Kind(
        "Redrive", "It is scheduled again, and delivered at once.", "They are scheduled again, and delivered at once.",
        "redriven",
    ),
    "purge": Kind("Purge", "It is gone for good. This cannot be undone.",
                  "They are gone for good. This cannot be undone.", "purged"),
}  # fmt: skip
TYPED: Final = ("to", "rate", "shift", "at", "after")
"""The fields of a question that a person fills in."""
_CHANGES: Final = ("cancel", "move", "deliver-now")
DEAD: Final = ("redrive", "purge")
_OUTCOMES: Final = {
    "already_delivered": "had been delivered",
    "already_cancelled": "had been cancelled",
    "already_dead": "are dead letters",
    "unknown": "are unknown, or ended too long ago",
    "unknown_message": "are unknown, or ended too long ago",
    "pending": "have no answer yet: look again",
    "rejected": "were refused",
}


async def confirm_change(service: Service, request: Request) -> Response:
    form = await read_form(request)
    return await _ask(service, request, kind_of(form.get("kind"), _CHANGES), selected(form))


async def confirm_redrive(service: Service, request: Request) -> Response:
    form = await read_form(request)
    return await _ask(service, request, kind_of(form.get("kind"), DEAD), selected(form))


async def confirm_matching(service: Service, request: Request) -> Response:
    """Ask whether to change all messages that match the filter of a list."""
    fields = read_query(request, ("kind", "ref", "status", *FILTERS, "limit", "cursor"))
    by_job = grant_of(request).allows(Scope.OPERATE)
    kind = kind_of(fields.get("kind", ""), _CHANGES if by_job else ("cancel",))
    if not given(fields, *FILTERS):
        raise Rejected("bad_field", "Filter the messages first: by topic, key, label or time.", "filter")
    count, more = await count_matching(service, request, api_filter(fields))
    chosen = given(fields, "status", *FILTERS)
    return await question(service, request, kind, count, more=more, fields=chosen, by_job=by_job)


async def _ask(service: Service, request: Request, kind: str, ids: list[str]) -> Response:
    request.scope[UNCHANGED] = True
    return await question(service, request, kind, len(ids), ids=ids)


async def question(
    service: Service, request: Request, kind: str, count: int, *, more: bool = False, ids: Sequence[str] = (),
    fields: Mapping[str, str] | None = None, source: str = "", by_job: bool = False,
    typed: Mapping[str, str] | None = None, is_dry_run: bool = False,
) -> Response:  # fmt: skip
    """Ask whether to change `count` messages. `more`: there may be more than were counted. The messages are those with
    these `ids`, or those that match the filter `fields`; dead letters are in the topic `source`. `typed`: the values
    that were typed into the form before."""
    page = f"dlq/topics/{source}" if source else "dlq" if kind in DEAD else "messages"
    action = "jobs" if by_job else "redrives" if kind in DEAD else "changes"
    about = await asyncio.gather(*(_described(service, request, id_, source) for id_ in ids[:_DESCRIBED]))
    topics = sorted({one["topic"] for one in about} | {(fields or {}).get("topic", "")} - {""})
    asks_readers = kind == "redrive" and source
    readers = await asyncio.gather(*(_readers(service, request, one, source) for one in topics if asks_readers))
    return render(
        request, "change.html", kind=kind, about=KINDS[kind], ids=ids, count=count, more=more, by_job=by_job,
        filter=fields or {}, source=source, action=action, back=page, is_dry_run=is_dry_run,
        described=about, readers=readers,
        home=home_of(source), visible=sees_payloads(service, request),
        typed=dict.fromkeys(TYPED, "") | {"to": home_of(source)} | dict(typed or {}),
    )  # fmt: skip


async def _described(service: Service, request: Request, id_: str, source: str) -> dict[str, Any]:
    """How a question describes a message, or a dead letter in the topic `source`; only its id if it is not found."""
    path = f"/v1/dlq/topics/{source}/{id_}" if source else f"/v1/messages/{quote(id_, safe='')}"
    try:
        one = await call_api(service, request, "GET", path)
    except (Rejected, Unavailable):
        return {"id": id_, "topic": "", "key": None, "at": None, "payload": None}
    topic = (one["origin"] or {"topic": ""})["topic"] if source else one["topic"]
    key = one.get("key_base64") or one.get("key")
    payload = preview(one) if "payload" in one or "payload_base64" in one else None
    return {"id": id_, "topic": topic, "key": key, "at": one["dead_at" if source else "deliver_at"], "payload": payload}


async def _readers(service: Service, request: Request, topic: str, source: str) -> tuple[str, list[str]]:
    """A topic and its known readers: destinations, and groups and consumers with positions in the log, including the
    group whose dead letters are in `source`."""
    admin = service.access.admin
    listed = [] if admin is None else admin.destinations.listed()
    bound = [one.name for one in listed if topic in (one.own_topic, *one.topics) and is_covered(grant_of(request), one)]
    group = "" if home_of(source) else group_of_letters(source)
    others = {f"group {group}"} if group else set[str]()
    try:
        async with asyncio.timeout(_PATIENCE_S):
            others.update(await service.gateway.bus.readers(topic))
    except (TimeoutError, Rejected, Unavailable):
        pass  # the page says that there may be more
    others = {one for one in others if not one.startswith(f"group {DESTINATION}")}
    return topic, [*(f"destination {name}" for name in bound), *sorted(others)]


async def count_matching(service: Service, request: Request, query: dict[str, str]) -> tuple[int, bool]:
    """The number of matching messages, counted for at most a second, and whether there may be more."""
    query |= {"limit": str(MAX_LIMIT)}
    count, until = 0, time.monotonic() + COUNT_S
    while True:
        listed = await call_api(service, request, "GET", "/v1/messages", query)
        count += len(listed["messages"])
        if listed["cursor"] is None:
            return count, False
        if time.monotonic() >= until:
            return count, True
        query |= {"cursor": listed["cursor"]}


async def post_change(service: Service, request: Request) -> Response:
    form = await read_form(request)
    kind = kind_of(form.get("kind"), _CHANGES)
    if fields := given({name: form.get(name) for name in ("status", *FILTERS)}, "status", *FILTERS):
        return await _change_matching(service, request, kind, fields)
    return await _change(service, request, kind, selected(form), _when(form) if kind == "move" else {})


async def post_redrive(service: Service, request: Request) -> Response:
    form = await read_form(request)
    return await _change(service, request, kind_of(form.get("kind"), DEAD), selected(form), {})


async def _change_matching(service: Service, request: Request, kind: str, fields: dict[str, str]) -> Response:
    """Cancel all messages that match. Any other change of all matches needs a job."""
    kind_of(kind, ("cancel",))
    query = api_filter(fields)
    del query["limit"]
    report = await call_api(service, request, "POST", "/v1/messages:cancel", body={"filter": query})
    return _report(request, kind, report["counts"])


async def _change(service: Service, request: Request, kind: str, ids: list[str], when: dict[str, str]) -> Response:
    if len(ids) == 1:
        return await _change_one(service, request, kind, ids[0], when)
    if kind == "cancel":
        report = await call_api(service, request, "POST", "/v1/messages:cancel", body={"ids": ids})
        return _report(request, kind, report["counts"])
    if kind == "move":
        moves = [{"id": id_, **when} for id_ in ids]
        report = await call_api(service, request, "POST", "/v1/messages:move", body={"moves": moves})
        for result in report["results"]:
            if "error" in result:  # the error is about the time, which is the same for all
                raise Rejected(result["error"]["code"], result["error"]["detail"], result["error"].get("field"))
        return _report(request, kind, report["counts"])
    counts = Counter[str]()
    for start in range(0, len(ids), _SIDE_BY_SIDE):
        some = ids[start : start + _SIDE_BY_SIDE]
        counts.update(await asyncio.gather(*(_outcome(service, request, kind, id_) for id_ in some)))
    return _report(request, kind, counts)


async def _outcome(service: Service, request: Request, kind: str, id_: str) -> str:
    """Change one of several messages, and return its outcome in the words of the API's reports."""
    try:
        answer = await call_api(service, request, "POST", _path(kind, id_))
    except Rejected as error:
        return error.code if error.code in _OUTCOMES else "rejected"
    return "pending" if answer["status"] == "pending" else KINDS[kind].done


async def _change_one(service: Service, request: Request, kind: str, id_: str, when: dict[str, str]) -> Response:
    method = {"cancel": "DELETE", "move": "PATCH"}.get(kind, "POST")
    answer = await call_api(service, request, method, _path(kind, id_), body=when or None)
    if kind == "purge" and answer["status"] != "pending":
        return _report(request, kind, {KINDS[kind].done: 1})
    done = "pending" if answer["status"] == "pending" else kind
    return redirect(request, f"messages/{quote(answer['id'])}?done={done}")


def _path(kind: str, ref: str) -> str:
    id_ = quote(ref, safe="")
    match kind:
        case "redrive" | "purge":
            return f"/v1/dlq/{id_}:{kind}"
        case "deliver-now":
            return f"/v1/messages/{id_}:deliver-now"
    return f"/v1/messages/{id_}"


def _report(request: Request, kind: str, counts: dict[str, int]) -> Response:
    about = KINDS[kind]
    others = [(counts[status], text) for status, text in _OUTCOMES.items() if counts.get(status)]
    return render(
        request, "report.html", title=f"{messages_text(counts.get(about.done, 0))} {about.done}", others=others,
        back="dlq" if kind in DEAD else "messages",
    )  # fmt: skip


def kind_of(kind: str, known: tuple[str, ...]) -> str:
    if kind not in known:
        raise Rejected("bad_field", f"The form does not say which change: {', '.join(known)}.", "kind")
    return kind


def selected(form: FormFields) -> list[str]:
    ids = list(dict.fromkeys(form.all("id")))
    if not ids:
        raise Rejected("bad_field", "No message is selected.", "id")
    if len(ids) > MAX_SELECTED:
        raise Rejected("batch_too_large", f"At most {MAX_SELECTED} messages can be selected.", "id")
    return ids


def _when(form: FormFields) -> dict[str, str]:
    """The fields for the new time: an instant, or a delay from now."""
    times = {"deliver_at": instant_text(form.get("at")), "deliver_after": form.get("after")}
    when = given(times, "deliver_at", "deliver_after")
    if not when:
        raise Rejected("bad_field", "Say when: a time, or how long from now.", "deliver_at")
    return when
