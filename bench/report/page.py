"""The bench as one self-contained HTML page: tables and inline pictures. It loads no other files."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from duemq import __version__
from duemq.bench.report.figures import ScenarioResult
from duemq.bench.report.report import cells
from duemq.pipeline.report.document import Html, document, table


def render(
    results: Sequence[ScenarioResult], pictures: Mapping[int, str], where: Mapping[str, Any], grown: str = ""
) -> str:
    """Return the page. `pictures` has SVG texts by the `id` of the result object; a result without samples has no
    picture.

    `grown`: the picture that shows the cost of waiting messages by their number.
    """
    place = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in where.items())
    head = [f"<h1>duemq {escape(__version__)} bench</h1>", f'<p class="soft">{escape(place)}</p>']
    sections = [_section(result, pictures.get(id(result), "")) for result in results]
    return document("duemq bench", [*head, *([grown] if grown else []), *sections])


def _section(result: ScenarioResult, picture: str) -> str:
    values = ("value",) if len(result.outcomes) == 1 else ("lowest", "median", "highest")
    heads = ["figure", *(f"{name}|n" for name in values), "target|n", ""]
    notes = "".join(f'<p class="soft">note: {escape(note)}</p>' for note in result.notes)
    lines = table(heads, (_line(cells(row)) for row in result.rows))
    return f"<section><h2>{escape(result.title)}</h2>{lines}{notes}{picture}</section>"


def _line(texts: Sequence[str]) -> list[str]:
    *plain, verdict = texts
    look = {"met": "good", "missed": "bad"}.get(verdict.lower(), "")
    return [*plain, Html(f'<span class="{look}">{escape(verdict)}</span>' if verdict else "")]
