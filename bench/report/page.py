"""The bench as one self-contained HTML page: tables and inline pictures, nothing loaded from anywhere."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from duemq import __version__
from duemq.bench.report.figures import ScenarioResult
from duemq.bench.report.report import cells

_CSS = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #f5f7fa; margin: 0; }
main { max-width: 76rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 0 0 .5rem; }
p.where { color: #616e7c; margin: .25rem 0 1.5rem; }
section { background: #fff; border-radius: 10px; padding: 1.25rem 1.5rem; margin: 1.25rem 0;
  box-shadow: 0 1px 3px #1f293322; overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem 1.1rem .22rem 0; text-align: right; white-space: pre; }
th { font-weight: 600; color: #616e7c; border-bottom: 1px solid #cbd2d9; }
th:first-child, td:first-child { text-align: left; }
td.met { color: #0b7a5b; } td.missed { color: #c8102e; font-weight: 700; }
p.note { color: #8a5a00; margin: .4rem 0 0; } svg { width: 100%; height: auto; margin-top: .75rem; }
"""


def render(
    results: Sequence[ScenarioResult], pictures: Mapping[int, str], where: Mapping[str, Any], grown: str = ""
) -> str:
    """The page. `pictures` has SVG text by `id` of the result; a result without samples has none.

    `grown`: the picture of what waiting messages cost by their number.
    """
    place = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in where.items())
    sections = f"<section>{grown}</section>" if grown else ""
    sections += "".join(_section(result, pictures.get(id(result), "")) for result in results)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>duemq bench</title>'
        f"<style>{_CSS}</style></head><body><main><h1>duemq {escape(__version__)} bench</h1>"
        f'<p class="where">{escape(place)}</p>{sections}</main></body></html>\n'
    )


def _section(result: ScenarioResult, picture: str) -> str:
    values = ("value",) if len(result.outcomes) == 1 else ("lowest", "median", "highest")
    head = "".join(f"<th>{name}</th>" for name in ("figure", *values, "target", ""))
    body = "".join(_line(cells(row)) for row in result.rows)
    notes = "".join(f'<p class="note">note: {escape(note)}</p>' for note in result.notes)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<section><h2>{escape(result.title)}</h2>{table}{notes}{picture}</section>"


def _line(texts: Sequence[str]) -> str:
    *plain, verdict = (escape(text) for text in texts)
    return "<tr>" + "".join(f"<td>{text}</td>" for text in plain) + f'<td class="{verdict.lower()}">{verdict}</td></tr>'
