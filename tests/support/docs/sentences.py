"""Pages with one sentence per line, so that a change of one sentence is a change of one line."""

from __future__ import annotations

import re
from typing import Final

_WHOLE: Final = re.compile(r" *(```|~~~|#{1,6} |\||<|!\[|---|:::)")
_BULLET: Final = re.compile(r"( *)((?:[-*+]|\d+\.) +)?")
_ABBREVIATION: Final = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|approx)\.|\b[A-Z]\.|\.\.\.|…)$")
_END: Final = re.compile(r"[.?!][*_\"')]*$")
_BEGIN: Final = re.compile(r"[*_`\"'(\[]*[A-Z0-9`\[(]")


def sentences(text: str) -> list[str]:
    """Those of a paragraph on one line. What is in brackets or in code is a part of its sentence."""
    found, start, depth, code = list[str](), 0, 0, False
    for n, char in enumerate(text):
        if char == "`":
            code = not code
        elif code:
            continue
        elif char in "([":
            depth += 1
        elif char in ")]":
            depth = max(0, depth - 1)
        elif char == " " and not depth:
            before = text[start:n].rstrip()
            if _END.search(before) and not _ABBREVIATION.search(before) and _BEGIN.match(text[n + 1 :]):
                found.append(before)
                start = n + 1
    found.append(text[start:].strip())
    return [one for one in found if one]


def by_sentences(page: str) -> str:
    """The page with a line for each sentence of its paragraphs and list items; code, tables and headings stay."""
    lines, out, n, block = page.split("\n"), list[str](), 0, False
    while n < len(lines):
        line = lines[n]
        if re.match(r" *(```|~~~)", line):
            block = not block
        if block or not line.strip() or _WHOLE.match(line):
            out.append(line)
            n += 1
            continue
        item = _BULLET.match(line)
        assert item is not None
        indent, bullet = item[1], item[2] or ""
        parts = [line[item.end() :].strip()]
        n += 1
        while (
            n < len(lines)
            and lines[n].strip()
            and not re.match(r" *(```|~~~|#{1,6} |\||<|!\[|[-*+] |\d+\. )", lines[n])
        ):
            parts.append(lines[n].strip())
            n += 1
        first, *rest = sentences(" ".join(parts))
        out += [indent + bullet + first, *(indent + " " * len(bullet) + one for one in rest)]
    return "\n".join(out)
