"""The examples of a page, copied out of it to be run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

_ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


class PageBlocks:
    """Those of one section of a page of `docs/`, in their order."""

    def __init__(self, page: str, heading: str) -> None:
        text = (_ROOT / "docs" / page).read_text()
        match = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
        assert match, heading
        self._blocks = [(language, dedent(code)) for _, language, code in _BLOCK.findall(match[1])]

    def take(self, language: str, replace: Mapping[str, str] | None = None) -> str:
        """The next block, which is in this language, without the indentation of its list.

        `replace`: what is another on this machine, such as a port. Each has to be there.
        """
        found, code = self._blocks.pop(0)
        assert found == language, f"this block is of {found}: {code}"
        for old, new in (replace or {}).items():
            assert old in code, f"not in this block: {old}"
            code = code.replace(old, new)
        return code

    def all_taken(self) -> bool:
        return not self._blocks
