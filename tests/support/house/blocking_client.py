"""Makes the blocking client of the SDK from the asynchronous one, so that the two cannot differ: `make sdk`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.house.tree import ROOT

SOURCE: Final = ROOT / "client/http/aio"
TARGET: Final = ROOT / "client/http/blocking"
_CHANGES: Final = (
    (r"from \S+ import AsyncHttp\n", ""),
    (r"\bframes=True, ", ""),
    (r"\bAsyncHttp\b", "httpx.Client"),
    (r"\bAsyncGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\b(?:async|await) ", ""),
    (r"\basyncio(?=\n|\.sleep)", "time"),
    (r"\baiter_bytes\b", "iter_bytes"),
    (r"\ba(close|closing|read)\b", r"\1"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\bhttp\.aio\b", "http.blocking"),
)


def sources() -> list[Path]:
    return sorted(SOURCE.glob("[a-z]*.py"))


def blocking(source: Path) -> str:
    """The text of the blocking module that belongs to this one."""
    text = source.read_text()
    for pattern, replacement in _CHANGES:
        text = re.sub(pattern, replacement, text)
    name = source.relative_to(ROOT)
    text = f"# Made from {name} by `make sdk`: change that file.\n{text}"
    for command in (("check", "--fix-only", "--quiet", "--unsafe-fixes", "--select", "I,UP028"), ("format",)):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(TARGET / source.name), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


if __name__ == "__main__":
    for path in sources():
        (TARGET / path.name).write_text(blocking(path))
