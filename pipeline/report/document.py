"""A self-contained HTML page: its style, its tables, and the legends of its charts (`templates/`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

COLOURS: Final = 7
"""The number of colours in a chart, `c0` to `c6`; the last one is grey, for all other items."""
Html = Markup
"""Text that is HTML already; all other text is escaped."""


def rendered(template: str, **values: Any) -> Html:
    """A rendered template. Text in `values` is escaped unless it is `Html`."""
    return Html(_templates().get_template(template).render(values))


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page. `title` is text; the parts are HTML."""
    return rendered("page.html", title=title, parts=map(Html, parts))


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """A table. If a head ends in `|n`, its column has numbers and is aligned right.

    Whole numbers get commas, None becomes an empty cell, and text is escaped unless it is `Html`.
    """
    return _part("table", heads, [list(zip(heads, row, strict=True)) for row in rows])


def keys(colours: Mapping[str, str]) -> Html:
    """The legend of a chart. `colours`: the colour classes (`c0` …) by name."""
    return _part("keys", colours)


def _part(macro: str, *arguments: object) -> Html:
    part: Html = getattr(_templates().get_template("parts.html").module, macro)(*arguments)
    return part


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=StrictUndefined,
    )  # fmt: skip
    templates.filters |= {"figure": _figure, "one": lambda value: f"{value:.1f}"}
    return templates


def _figure(value: object) -> object:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else value
