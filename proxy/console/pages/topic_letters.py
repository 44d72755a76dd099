"""Dead letters in topics, such as a consumer group's `dlq.GROUP`: lists topics; lists, shows, redrives and purges
letters.

The API only lists whole topics. The page has the same filters as a redrive job, so it shows the messages that the job
would redrive.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.callers.access import Scope
from duemq.model.errors import OutcomeUnknown, Rejected, Unavailable
from duemq.model.messages.dead_letters import REDRIVEN_FROM
from duemq.model.messages.names import of_redrive
from duemq.model.timing import LAST_MS, format_ms, parse_instant
from duemq.model.topics import group_topics
from duemq.model.topics.topic_patterns import topic_matcher
from duemq.proxy.access import UNCHANGED
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.api_calls import call_api
from duemq.proxy.console.caller import grant_of, sees_payloads
from duemq.proxy.console.forms import given, instant_text, read_form
from duemq.proxy.console.pages.changes import COUNT_S, DEAD, kind_of, question, selected
from duemq.proxy.console.pages.messages import LIMITS, PATIENCE_S, formatted, is_cut, is_null, payload_of
from duemq.proxy.console.views import redirect, render
from duemq.proxy.request.query import MAX_LIMIT, read_query

_TIMES: Final = ("dead_from", "dead_to")
FILTERS: Final = (*_TIMES, "topic", "key", "reason")
QUERY: Final = f"{' '.join(FILTERS)} limit cursor"
_FIELDS: Final = tuple(QUERY.split())
ABSENT: Final = dict.fromkeys(
    ("key", "key_base64", "header_list", "redriven_as", "redrives")
)  # the API may omit some of them
_NO_ORIGIN: Final = {"topic": "", "reason": "", "error": ""}


ListPage = Callable[[dict[str, str]], Awaitable[tuple[list[dict[str, Any]], str | None]]]
"""Lists the matches of a query: a page of dead letters, and the cursor of the next page."""


class LetterFilter(NamedTuple):
    """A filter for dead letters. Times are in epoch ms; None: any."""

    dead_from: int
    dead_to: int
    topic: str | None
    key: str | None
    reason: str | None

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> LetterFilter:
        """The filter from the fields of a job's filter. Raises Rejected `bad_time` and `naive_time`."""
        since, until = (
            parse_instant(fields[name], name, text=True) if name in fields else default
            for name, default in zip(_TIMES, (0, LAST_MS), strict=True)
        )
        return cls(since, until, *(fields.get(name) for name in ("topic", "key", "reason")))

    def fits(self, letter: Mapping[str, Any]) -> bool:
        """Whether a letter matches, by the same test as in a job: see `proxy/jobs/topic_work.py`."""
        origin = letter["origin"] or _NO_ORIGIN
        return (
            self.dead_from <= letter["dead_at_ms"] < self.dead_to
            and self.topic in (None, origin["topic"])
            and self.key in (None, letter.get("key"))
            and self.reason in (None, origin["reason"])
        )


async def get_topics(service: Service, request: Request) -> Response:
    """List the topics of dead letters according to the settings; if a name was typed, go to that topic."""
    if name := read_query(request, ("topic",)).get("topic", "").strip():
        return redirect(request, f"dlq/topics/{quote(name, safe='')}")
    listed = await call_api(service, request, "GET", "/v1/topics")
    is_source = topic_matcher(service.ingress.limits.purgeable)
    topics = [one for one in listed["topics"] if is_source(one["topic"])]
    fresh = Counter(letter.source for letter in service.fresh_letters.letters)
    return render(request, "dead/topics.html", topics=topics, prefix=group_topics.DEAD, fresh=fresh)


async def get_letters(service: Service, request: Request) -> Response:
    source: str = request.path_params["topic"]
    fields = read_query(request, _FIELDS)
    wrong, letters, cursor = "", list[Any](), None
    try:
        chosen = LetterFilter.of(job_filter(fields, FILTERS))
        query = given(fields, "cursor") | {"limit": fields.get("limit") or LIMITS[1]}
        letters, cursor = await search(_lister(service, request), chosen, query)
        letters = await _with_redrives(service, source, letters)
    except Rejected as error:  # keep the typed values on the page
        if error.field not in FILTERS:
            raise
        wrong = error.detail
    shown = {name: value for name, value in fields.items() if name != "cursor"}
    filters = given(fields, *FILTERS)
    return render(
        request, "dead/letters.html", 400 if wrong else 200, source=source, wrong=wrong,
        letters=letters, limits=LIMITS, fields=dict.fromkeys(_FIELDS, "") | fields,
        filtered=bool(filters), purges=filters.keys() <= {"dead_to"}, visible=sees_payloads(service, request),
        next=urlencode(shown | {"cursor": cursor}) if cursor else "", query=urlencode(shown),
    )  # fmt: skip


async def get_letter(service: Service, request: Request) -> Response:
    source, place = request.path_params["topic"], request.path_params["place"]
    form = read_query(request, ("as",)).get("as", "auto")
    letter = await call_api(service, request, "GET", f"/v1/dlq/topics/{source}/{place}")
    (letter,) = await _with_redrives(service, source, [letter])
    payload, visible = payload_of(letter) or b"", sees_payloads(service, request)
    form, text = formatted(payload, form) if visible else ("", "")
    return render(
        request, "dead/letter.html", source=source, letter=letter, visible=visible,
        redriven_from=letter["headers"].get(REDRIVEN_FROM), bytes=len(payload), form=form, text=text,
        cut=is_cut(payload), is_null=is_null(letter), can_redrive=grant_of(request).allows(Scope.OPERATE),
    )  # fmt: skip


async def confirm_selected(service: Service, request: Request) -> Response:
    """Ask whether to redrive the selected letters. Single records of a topic cannot be purged."""
    form = await read_form(request)
    request.scope[UNCHANGED] = True
    ids, source = selected(form), request.path_params["topic"]
    kind = kind_of(form.get("kind"), ("redrive",))
    return await question(service, request, kind, len(ids), ids=ids, source=source, by_job=True)


async def confirm_matching(service: Service, request: Request) -> Response:
    """Ask whether to change all matches that have died by now."""
    source, fields = request.path_params["topic"], read_query(request, ("kind", *_FIELDS))
    kind = kind_of(fields.get("kind", ""), DEAD)
    chosen = job_filter(fields, FILTERS)
    chosen.setdefault("dead_to", format_ms(service.clock()))
    if kind == "purge" and len(chosen) > 1:
        raise Rejected("bad_field", "A topic is purged up to a time: clear the other filters first.", "filter")
    count, more = 0, False
    async for letters, cursor in letter_pages(
        _lister(service, request), LetterFilter.of(chosen), {"limit": str(MAX_LIMIT)}, COUNT_S
    ):
        count, more = count + len(letters), cursor is not None
    return await question(service, request, kind, count, more=more, fields=chosen, source=source, by_job=True)


def job_filter(fields: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The filter of a job from the fields of a page."""
    chosen = given(fields, *names)
    return chosen | {name: instant_text(chosen[name]) for name in _TIMES if name in chosen}


def _lister(service: Service, request: Request) -> ListPage:
    path = f"/v1/dlq/topics/{request.path_params['topic']}"

    async def page(query: dict[str, str]) -> tuple[list[dict[str, Any]], str | None]:
        listed = await call_api(service, request, "GET", path, query)
        return listed["letters"], listed["cursor"]

    return page


async def search(list_page: ListPage, chosen: LetterFilter, query: dict[str, str]) -> tuple[list[Any], str | None]:
    """The next page with matches, or the last page that the search reached in its time."""
    page: tuple[list[Any], str | None] = [], None
    async with aclosing(letter_pages(list_page, chosen, query, PATIENCE_S)) as pages:
        async for page in pages:
            if page[0]:
                break
    return page


async def letter_pages(
    list_page: ListPage, chosen: LetterFilter, query: dict[str, str], patience_s: float
) -> AsyncGenerator[tuple[list[Any], str | None]]:
    """The matches on each page, and the cursor of the next page, which is twice as long. No page is started after
    `patience_s`."""
    until = time.monotonic() + patience_s
    while True:
        letters, cursor = await list_page(query)
        yield [letter for letter in letters if chosen.fits(letter)], cursor
        if cursor is None or time.monotonic() >= until:
            return
        limit = min(2 * int(query["limit"]), MAX_LIMIT)
        query = query | {"cursor": cursor, "limit": str(limit)}


async def _with_redrives(service: Service, source: str, letters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each letter with the id of the message that it was redriven as; None if it was not redriven."""
    places = [f"{source}/{one['id'].replace(':', '/')}/{one['dead_at_ms']}" for one in letters]
    try:
        known = await service.gateway.named([(of_redrive(place), b"") for place in places]) if places else []
    except (Unavailable, OutcomeUnknown):
        known = [None] * len(places)
    return [
        ABSENT | one | {"redriven_as": None if receipt is None else receipt.id}
        for one, receipt in zip(letters, known, strict=True)
    ]
