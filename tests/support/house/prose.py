"""Counts turns of phrase that read as translated, in comments, strings and pages: `make prose`.

The list comes from reading this project against codebases by native writers, which have 0.0 to 0.4 such turns per
1,000 words. Extend it when you find another one. `prose.json` has the counts of each folder and page, and
`tests/unit/house/test_prose.py` lets none of them rise; `make prose ARGS=--record` writes down what has fallen.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.house.tree import ROOT, modules

RECORD: Final = Path(__file__).with_name("prose.json")

TURNS: Final = re.compile(
    r"\b(what became of|so many|so much|anew|in place of|nobody|somebody|of its own|by itself|looks? at|a look\b"
    r"|just now|for so long|hand(?:s|ed)? on|put off|put down"
    r"|who(?:ever)? (?:asks|waits|reads|sends|calls|sees|looks|begins|holds|keeps|has|comes|dies|yields|may|can|was|is)"
    r"|wants? no more|of which|as far as|besides|where (?:it|they|there|that|one|none|no|a|nobody|somebody) "
    r"|behind (?:it|what|the|that|them|its)|are to be|is to be|is nothing to|for want of|likewise|is over|are over"
    r"|meanwhile|what (?:it|they|is|was|are|comes|stands|falls|passes|belongs|waits|others) "
    r"|anybody|everybody|for ever\b|made again|in the place of|under way|their turn|taken for"
    r"|(?:says?|said|tells?|told) of |comes? to (?:its|an|the) end)",
    re.IGNORECASE,
)


class Prose(NamedTuple):
    """What a folder or page has."""

    turns: int
    words: int

    @property
    def density(self) -> float:
        """Turns per 1,000 words."""
        return 1_000 * self.turns / self.words if self.words else 0.0


def _text(path: Path) -> str:
    """The text of a page, or the comments and strings of a module."""
    text = path.read_text()
    if path.suffix != ".py":
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(token.string for token in tokens if token.type in (tokenize.COMMENT, tokenize.STRING))


def _prose(paths: list[Path]) -> Prose:
    text = "\n".join(map(_text, paths))
    return Prose(len(TURNS.findall(text)), len(text.split()))


def _places() -> Iterator[tuple[str, list[Path]]]:
    """Each folder with the modules in it, and each page."""
    folders: dict[str, list[Path]] = {}
    for path in modules():
        folders.setdefault(str(path.parent.relative_to(ROOT)), []).append(path)
    yield from folders.items()
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("conf/**/*.toml")]):
        yield str(path.relative_to(ROOT)), [path]


def measured() -> dict[str, Prose]:
    """The counts of each folder and page as they are now."""
    return {place: _prose(paths) for place, paths in _places()}


def recorded() -> dict[str, Prose]:
    """The counts that may not rise."""
    return {place: Prose(*counts) for place, counts in json.loads(RECORD.read_text()).items()}


def main() -> None:
    now, before = measured(), recorded() if RECORD.exists() else {}
    for place, prose in sorted(now.items(), key=lambda item: -item[1].density):
        if prose.turns:
            print(f"{prose.density:5.1f}  {prose.turns:4d} of {prose.words:6d} words  {place}")
    if sys.argv[1:] == ["--record"]:
        best = {place: min(prose, before.get(place, prose)) for place, prose in now.items()}
        lines = [f"{json.dumps(place)}: {json.dumps(best[place])}" for place in sorted(best)]
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
