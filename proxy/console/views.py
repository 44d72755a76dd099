"""Templates: rendered with what every page has. What comes from messages or callers is escaped by the engine."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from duemq.model.callers.access import Scope
from duemq.model.printable import without_turns
from duemq.model.timing import LAST_MS, format_duration, format_ms
from duemq.proxy.access import caller_name
from duemq.proxy.console.assets import asset_name
from duemq.proxy.console.caller import csrf_token, grant_of
from duemq.proxy.console.help import help_of

if TYPE_CHECKING:  # made when the first page is asked for: it takes 50 ms, and most processes show none
    from jinja2 import Environment

NONE: Final = "\N{EN DASH}"
COUNTERS: Final = "duemq.counters"
"""Where the scope of a request has what the navigation counts, by page."""
DOCS_URL: Final = "duemq.docs_url"
"""And the setting `console.docs_url`."""
ROOT_HEADER: Final = "x-console-root"
"""What pages have htmx say: the console as seen from them."""
_ROOT: Final = re.compile(r"\./|(\.\./){1,9}")
_TEMPLATES: Final = Path(__file__).parent / "templates"

_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, auto_reload=False,
        trim_blocks=True, lstrip_blocks=True, finalize=_as_shown,
    )  # fmt: skip
    environment.filters |= {
        "number": number, "size": size, "ms": ms_text, "rate": rate, "at": format_ms, "input_time": input_time,
    }  # fmt: skip
    return environment


def _as_shown(value: object) -> object:
    """Of each value that a template shows. `str` alone: markup is made of values that were here before."""
    return without_turns(value) if type(value) is str else value


def render_text(template: str, **values: Any) -> str:
    """A template that knows nothing of a request."""
    return _environment().get_template(template).render(values)


def render(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """A page, or what htmx asked for: then templates leave out what is around their content."""
    grant = grant_of(request)
    text = (
        _environment()
        .get_template(template)
        .render(
            values
            | {
                "root": _page_root_of(request),
                "path": request.scope["path"].removeprefix("/console"),
                "asset": asset_name,
                "may": {str(scope): grant.allows(scope) for scope in Scope},
                "csrf": csrf_token(request),
                "caller": grant.name or caller_name(request),
                "help": help_of(request.scope["path"].removeprefix("/console")),
                "docs_url": request.scope.get(DOCS_URL, ""),
                "counters": request.scope.get(COUNTERS, {}),
                "all_topics": not grant.topics,
                "layout": "parts/bare.html" if is_partial(request) else "layout.html",
            }
        )
    )
    return HTMLResponse(text, status)


def root_of(request: Request) -> str:
    """The console as seen from the path of a request, so that it works below any prefix of a proxy."""
    return "../" * (request.scope["raw_path"].count(b"/") - 2) or "./"


def _page_root_of(request: Request) -> str:
    """The console as seen from the page that will show the answer: where htmx asks, that is the page it is in."""
    text = request.headers.get(ROOT_HEADER, "")
    return text if is_partial(request) and _ROOT.fullmatch(text) else root_of(request)


def redirect(request: Request, to: str) -> Response:
    """Have the browser load a page of the console, named as seen from its root."""
    return Response(status_code=303, headers={"Location": root_of(request) + to})


def is_partial(request: Request) -> bool:
    """Whether htmx asks, and has a page around what it gets."""
    return request.headers.get("hx-request") == "true"


def number(value: float) -> str:
    """With a thin space between thousands."""
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def rate(value: float) -> str:
    """Messages/s."""
    if value >= 100 or value == int(value):
        return number(value)
    return f"{value:.1f}"


def size(value: float) -> str:
    """Bytes, in the unit that leaves at most four digits."""
    for unit in _SIZES:
        if value < 1024 or unit == _SIZES[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def ms_text(value: float | None) -> str:
    """A duration (ms) with its two largest units."""
    if value is None:
        return NONE
    if value < 1000:
        return f"{value:g} ms"
    whole = format_duration(int(value) // 1000 * 1000)
    return " ".join(re.findall(r"\d+[a-z]+", whole)[:2])


def input_time(ms: int) -> str:
    """A time (epoch ms) as fields for times want it, in UTC and whole minutes."""
    return datetime.fromtimestamp(min(ms, LAST_MS) / 1000, UTC).strftime("%Y-%m-%dT%H:%M")


def messages_text(count: int) -> str:
    """`1 message`, `3 messages`."""
    return f"{number(count)} message{'' if count == 1 else 's'}"
