"""Makes untrusted text safe to show: the text cannot move the cursor, start a new line or reverse letters."""

from __future__ import annotations

import re
from typing import Final

_TURNING: Final = re.compile("[\u202a-\u202e\u2066-\u2069]")  # embeddings, overrides and isolates of text direction


def escaped(text: str) -> str:
    """The text with escapes, such as `\\n` and `\\u202e`, instead of characters that are not printable."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def without_turns(text: str) -> str:
    """The text with escapes instead of characters that change the direction of the text around them, so that `gpj.exe`
    is not shown as `exe.jpg`."""
    return _TURNING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
