"""The dead letters of duemq itself, by reason and time of death.

The API lists them by due time. The filters for reason and time of death are applied here, in the same way as in a job.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from duemq.model.errors import Rejected
from duemq.model.timing import format_ms
from duemq.proxy.api.endpoint import Service
from duemq.proxy.console.api_calls import call_api
from duemq.proxy.console.forms import given
from duemq.proxy.console.pages.changes import COUNT_S, DEAD, kind_of, question
from duemq.proxy.console.pages.messages import LIMITS
from duemq.proxy.console.pages.topic_letters import ABSENT, LetterFilter, ListPage, job_filter, letter_pages, search
from duemq.proxy.console.views import render
from duemq.proxy.request.query import MAX_LIMIT, PREFIXES, read_query

_OF_API: Final = ("topic", "key", "label", *PREFIXES)
FILTERS: Final = ("dead_from", "dead_to", "reason", *_OF_API)
QUERY: Final = f"{' '.join(FILTERS)} limit cursor"
_FIELDS: Final = tuple(QUERY.split())


async def get_letters(service: Service, request: Request) -> Response:
    fields = read_query(request, _FIELDS)
    wrong, letters, cursor = "", list[Any](), None
    try:
        chosen = LetterFilter.of(job_filter(fields, FILTERS))
        query = given(fields, "cursor", *_OF_API) | {"limit": fields.get("limit") or LIMITS[1]}
        letters, cursor = await search(_lister(service, request), chosen, query)
    except Rejected as error:  # keep the typed values on the page
        wrong = error.detail
    shown = {name: value for name, value in fields.items() if name != "cursor"}
    return render(
        request, "dead/letters.html", 400 if wrong else 200, source="", wrong=wrong,
        letters=[ABSENT | one for one in letters], limits=LIMITS, fields=dict.fromkeys(_FIELDS, "") | fields,
        filtered=bool(given(fields, *FILTERS)), purges=True, visible=True,
        next=urlencode(shown | {"cursor": cursor}) if cursor else "", query=urlencode(shown),
    )  # fmt: skip


async def confirm_matching(service: Service, request: Request) -> Response:
    """Ask whether to change all matches that have died by now."""
    fields = read_query(request, ("kind", *_FIELDS))
    kind, chosen = kind_of(fields.get("kind", ""), DEAD), job_filter(fields, FILTERS)
    chosen.setdefault("dead_to", format_ms(service.clock()))
    count, more, query = 0, False, given(fields, *_OF_API) | {"limit": str(MAX_LIMIT)}
    async for letters, cursor in letter_pages(_lister(service, request), LetterFilter.of(chosen), query, COUNT_S):
        count, more = count + len(letters), cursor is not None
    return await question(service, request, kind, count, more=more, fields=chosen, by_job=True)


def _lister(service: Service, request: Request) -> ListPage:
    async def page(query: dict[str, str]) -> tuple[list[dict[str, Any]], str | None]:
        listed = await call_api(service, request, "GET", "/v1/dlq", query)
        return list(map(_letter, listed["messages"])), listed["cursor"]

    return page


def _letter(message: dict[str, Any]) -> dict[str, Any]:
    """A message in the form that the API gives to a dead letter in a topic."""
    known = {"dead_at": None, "dead_at_ms": 0} | message  # a message that was redriven a moment ago lacks both
    return known | {"origin": {"topic": message["topic"], "reason": message.get("reason") or "", "error": ""}}
