"""Makes untrusted text safe to show: it cannot move the cursor, start a line or reverse letters."""

from __future__ import annotations

import re
from typing import Final

_TURNING: Final = re.compile("[\u202a-\u202e\u2066-\u2069]")  # embeddings, overrides and isolates of directions


def escaped(text: str) -> str:
    """Characters that are not printable as escapes, such as `\\n` and `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def without_turns(text: str) -> str:
    """Characters that change the direction of the text around them as escapes, so that `gpj.exe` reads so."""
    return _TURNING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
