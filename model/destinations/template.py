"""Texts with placeholders, for headers and bodies of HTTP requests: `{{ key }}`.

A closed set of names and nothing else: no expressions, no loops, no filters. So a template cannot take long, reach
anything but the message, or fail on one message and not on another.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

NAMES: Final = ("id", "key", "topic", "due", "due_ms", "attempt", "payload", "payload_json")
HEADER: Final = "header."
_PLACEHOLDER: Final = re.compile(r"\{\{\s*([A-Za-z_]+(?:\.[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256})?)\s*\}\}")


class Placeholder(NamedTuple):
    """`name`: one of NAMES, or `header` with the name of a header of the message, in lower case, as `header`."""

    name: str
    header: str = ""


def parse_template(text: str) -> tuple[str | Placeholder, ...]:
    """Its texts and placeholders, one after another. Raises ValueError, which says what it may have."""
    parts: list[str | Placeholder] = []
    end = 0
    for match in _PLACEHOLDER.finditer(text):
        parts.append(text[end : match.start()])
        parts.append(_placeholder(match[1]))
        end = match.end()
    parts.append(text[end:])
    for part in parts:
        if isinstance(part, str) and "{{" in part:
            raise ValueError(f"{{{{ begins a placeholder: {_allowed()}")
    return tuple(part for part in parts if part)


def _placeholder(text: str) -> Placeholder:
    if text.startswith(HEADER):
        return Placeholder("header", text.removeprefix(HEADER).lower())
    if text not in NAMES:
        raise ValueError(f"{{{{ {text} }}}} is no placeholder: {_allowed()}")
    return Placeholder(text)


def _allowed() -> str:
    return "there are " + ", ".join(f"{{{{ {name} }}}}" for name in (*NAMES, "header.NAME"))
