"""Renders templates with the values that all pages need. The template engine escapes all content from messages or
callers."""

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

if TYPE_CHECKING:  # imported for the first page: it takes 50 ms, and most processes never show a page
    from jinja2 import Environment

NONE: Final = "\N{EN DASH}"
COUNTERS: Final = "duemq.counters"
"""Key in a request's scope: the navigation's counts per page."""
DOCS_URL: Final = "duemq.docs_url"
"""Key in a request's scope: the setting `console.docs_url`."""
ROOT_HEADER: Final = "x-console-root"
"""The header that pages make htmx send. It has the root of the console, relative to the page."""
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
    """Convert a value that a template shows. Only a plain `str` is converted: markup consists of values that were
    converted before."""
    return without_turns(value) if type(value) is str else value


def render_text(template: str, **values: Any) -> str:
    """Render a template without a request."""
    return _environment().get_template(template).render(values)


def render(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """A page, or the part of it that htmx requested. For a part, templates leave out everything around their
    content."""
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
    """The root of the console relative to a request's path, so that it works below any prefix that a proxy adds."""
    return "../" * (request.scope["raw_path"].count(b"/") - 2) or "./"


def _page_root_of(request: Request) -> str:
    """The root of the console relative to the page that will show the response; with htmx, that is the page that sends
    the request."""
    text = request.headers.get(ROOT_HEADER, "")
    return text if is_partial(request) and _ROOT.fullmatch(text) else root_of(request)


def redirect(request: Request, to: str) -> Response:
    """Redirect the browser to a page of the console, given relative to its root."""
    return Response(status_code=303, headers={"Location": root_of(request) + to})


def is_partial(request: Request) -> bool:
    """Whether htmx requests a part of a page."""
    return request.headers.get("hx-request") == "true"


def number(value: float) -> str:
    """A number with a thin space between thousands."""
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def rate(value: float) -> str:
    """A rate, in messages/s, as text."""
    if value >= 100 or value == int(value):
        return number(value)
    return f"{value:.1f}"


def size(value: float) -> str:
    """A size (bytes) as text, in the unit that leaves at most four digits."""
    for unit in _SIZES:
        if value < 1024 or unit == _SIZES[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def ms_text(value: float | None) -> str:
    """A duration (ms) as text, in its two largest units."""
    if value is None:
        return NONE
    if value < 1000:
        return f"{value:g} ms"
    whole = format_duration(int(value) // 1000 * 1000)
    return " ".join(re.findall(r"\d+[a-z]+", whole)[:2])


def input_time(ms: int) -> str:
    """A time (epoch ms) for input fields, in UTC and whole minutes."""
    return datetime.fromtimestamp(min(ms, LAST_MS) / 1000, UTC).strftime("%Y-%m-%dT%H:%M")


def messages_text(count: int) -> str:
    """`1 message`, `3 messages`."""
    return f"{number(count)} message{'' if count == 1 else 's'}"
