"""An HTML page that needs no network: its style, its tables, and the keys of its charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

COLOURS: Final = 7
"""`c0` to `c6` are the colours of a chart; the last one is grey, for what has no name of its own."""

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6470; --paper: #fff; --card: #f5f6f8; --line: #d9dde3;
  --good: #11763b; --bad: #c0281f; --c0: #3b6fb6; --c1: #c77700; --c2: #2e8a45; --c3: #b8449a; --c4: #7a55c7;
  --c5: #8a5a3c; --c6: #80868f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa4b2; --paper: #14171b; --card: #1d2127;
  --line: #343a43; --good: #4cc47e; --bad: #ff7b72; --c0: #6ea8e5; --c1: #f0a83c; --c2: #62c17c; --c3: #e58acb;
  --c4: #b79cf2; --c5: #c99a78; --c6: #9aa4b2; } }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1rem; font-weight: 600; color: var(--soft); margin: 0; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
.verdict { font-size: 1.7rem; line-height: 1.25; font-weight: 700; margin: .3rem 0 1rem; }
.good { color: var(--good); } .bad { color: var(--bad); } .soft { color: var(--soft); }
.sum { display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; margin: 1.5rem 0 .5rem; }
.sum div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .4rem .8rem; }
.sum b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.sum span { color: var(--soft); font-size: .85rem; }
.sum em { font-style: normal; font-size: 1.3rem; color: var(--soft); }
.sum .wrong { border-color: var(--bad); } .sum .wrong b { color: var(--bad); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: .85em ui-monospace, monospace; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); stroke: none; }
svg rect, svg circle { fill: currentColor; } svg polyline { fill: none; stroke: currentColor; stroke-width: 2; }
svg .grid { stroke: var(--line); } svg .limit { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 6 4; }
svg text.bad { fill: var(--bad); stroke: var(--paper); stroke-width: 5; paint-order: stroke; }
.key { margin-right: 1rem; color: var(--soft); font-size: .85rem; }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em;
  background: currentColor; }
""" + "\n".join(f".c{n} {{ color: var(--c{n}); }}" for n in range(COLOURS))


class Html(str):
    """Text that is HTML already: it goes into a table as it stands, where any other text is escaped."""


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page. `title` is text, the parts are HTML."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    )
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table. A head that ends in `|n` has a column of numbers, which stand to the right.

    Whole numbers are written with commas, None is an empty cell, and text is escaped unless it is `Html`.
    """
    look = [' class="n"' if head.endswith("|n") else "" for head in heads]

    def line(tag: str, cells: Sequence[object]) -> str:
        return "".join(f"<{tag}{of}>{_cell(cell)}</{tag}>" for of, cell in zip(look, cells, strict=True))

    head = line("th", [head.removesuffix("|n") for head in heads])
    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Html):
        return value
    return escape(f"{value:,}" if isinstance(value, int) else str(value))


def keys(colours: Mapping[str, str]) -> str:
    """Which colour of a chart is what: the classes (`c0` …) by their names."""
    shown = (f'<span class="key"><i class="{look}"></i>{escape(name)}</span>' for name, look in colours.items())
    return f"<p>{''.join(shown)}</p>"
